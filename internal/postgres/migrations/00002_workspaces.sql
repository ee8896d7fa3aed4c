-- +goose Up
CREATE TABLE workspaces (
    id                      uuid PRIMARY KEY,
    owner_user_id           uuid NOT NULL CONSTRAINT workspaces_owner REFERENCES users (id),
    name                    varchar(255) NOT NULL CHECK (name <> ''),
    description             text NOT NULL DEFAULT '',
    memo                    text NOT NULL DEFAULT '',
    image_ref               varchar(512) NOT NULL CHECK (image_ref <> ''),
    instance_backend        text NOT NULL CHECK (instance_backend IN ('local-docker', 'k8s')),
    storage_backend         text NOT NULL CHECK (storage_backend IN ('docker-volume', 'local-dir', 'k8s-pvc')),
    home_store_key          varchar(512) NOT NULL,

    -- Written by the workspace controller alone.
    home_ctx                jsonb NOT NULL DEFAULT '{"state": "absent"}'
                            CHECK (COALESCE(home_ctx ->> 'state', '') IN ('absent', 'filling', 'live', 'removing')),
    conditions              jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(conditions) = 'object'),
    phase                   text NOT NULL DEFAULT 'PENDING'
                            CHECK (phase IN ('PENDING', 'ARCHIVED', 'STANDBY', 'RUNNING', 'ERROR', 'DELETING', 'DELETED')),
    phase_changed_at        timestamptz NOT NULL DEFAULT now(),
    observed_at             timestamptz,
    operation               text NOT NULL DEFAULT 'NONE'
                            CHECK (operation IN ('NONE', 'PROVISIONING', 'CREATE_EMPTY_ARCHIVE', 'RESTORING', 'STARTING', 'STOPPING', 'ARCHIVING', 'DELETING')),
    op_id                   uuid,
    op_started_at           timestamptz,
    progress                jsonb,
    archive_op_id           uuid,
    archive_key             varchar(1024),
    archive_digest          text NOT NULL DEFAULT '',
    archive_size            bigint NOT NULL DEFAULT 0,
    archive_entries         bigint NOT NULL DEFAULT 0,
    error_reason            text
                            CHECK (error_reason IN ('Timeout', 'RetryExceeded', 'ActionFailed', 'DataLost', 'Unreachable', 'ImagePullFailed', 'ContainerWithoutVolume', 'ArchiveCorrupted')),
    error_message           text,
    error_count             integer NOT NULL DEFAULT 0 CHECK (error_count >= 0),
    retry_at                timestamptz,
    stop_reason             text,

    -- Written by the API layer alone.
    desired_state           text NOT NULL CHECK (desired_state IN ('ARCHIVED', 'STANDBY', 'RUNNING')),
    next_desired_state      text CHECK (next_desired_state IN ('DELETED', 'ARCHIVED', 'STANDBY', 'RUNNING')),
    deleted_at              timestamptz,
    last_access_at          timestamptz,
    last_access_kind        text,
    keep_awake_until        timestamptz,
    standby_ttl_seconds     integer CHECK (standby_ttl_seconds >= 0), -- NULL: the server's default, 0: never
    archive_ttl_seconds     integer CHECK (archive_ttl_seconds >= 0),

    -- Requests: set by the API layer, cleared by the controller.
    recover_requested_at    timestamptz,
    recover_action          text CHECK (recover_action IN ('afresh', 'empty')),
    cancel_requested_at     timestamptz,
    force_stop_requested_at timestamptz,

    created_at              timestamptz NOT NULL DEFAULT now(),
    updated_at              timestamptz NOT NULL DEFAULT now(),

    -- Whether the workspace counts against the running limits. In ERROR a
    -- wish alone does not count, since nothing acts on it, but a container
    -- does, and so does a wish that a requested recovery is about to set free.
    -- DELETING without deleted_at is a deletion just taken back, whose
    -- container may still be there.
    holds_slot              boolean NOT NULL GENERATED ALWAYS AS (
        deleted_at IS NULL AND phase <> 'DELETED' AND (
            phase = 'RUNNING'
            OR operation = 'STARTING'
            OR (desired_state = 'RUNNING' AND (phase <> 'ERROR' OR recover_requested_at IS NOT NULL))
            OR (phase IN ('ERROR', 'DELETING')
                AND COALESCE(conditions #>> '{infra.container_ready,reason}', 'NotObserved') NOT IN ('NoContainer', 'NotObserved'))
        )
    ) STORED,

    CONSTRAINT workspaces_claim CHECK ((op_id IS NOT NULL) = (operation <> 'NONE')),
    CONSTRAINT workspaces_error_is_idle CHECK (phase <> 'ERROR' OR operation = 'NONE'),
    CONSTRAINT workspaces_deletion CHECK (deleted_at IS NOT NULL OR phase <> 'DELETED'),
    CONSTRAINT workspaces_recovery CHECK ((recover_action IS NOT NULL) = (recover_requested_at IS NOT NULL))
) WITH (fillfactor = 80);

CREATE UNIQUE INDEX workspaces_name ON workspaces (owner_user_id, name) WHERE deleted_at IS NULL;

-- Lists, newest first.
CREATE INDEX workspaces_list ON workspaces (owner_user_id, created_at DESC, id DESC) WHERE deleted_at IS NULL;

-- What the controller looks at on every tick.
CREATE INDEX workspaces_candidates ON workspaces (id) WHERE phase <> 'DELETED';
CREATE INDEX workspaces_ttl_candidates ON workspaces (phase, phase_changed_at)
    WHERE operation = 'NONE' AND deleted_at IS NULL AND phase IN ('RUNNING', 'STANDBY');
CREATE INDEX workspaces_running_by_owner ON workspaces (owner_user_id) WHERE holds_slot;
CREATE INDEX workspaces_running ON workspaces (id) WHERE holds_slot;
CREATE INDEX workspaces_error ON workspaces (id) WHERE phase = 'ERROR';
CREATE INDEX workspaces_operation ON workspaces (operation, id) WHERE operation <> 'NONE';
CREATE INDEX workspaces_in_grace ON workspaces (deleted_at) WHERE deleted_at IS NOT NULL AND phase <> 'DELETED';

-- A one-time entry to a workspace with an origin of its own. It ends with the session
-- that it was made from.
CREATE TABLE tickets (
    hash         bytea PRIMARY KEY CHECK (octet_length(hash) = 32),
    user_id      uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    session_hash bytea NOT NULL REFERENCES sessions (hash) ON DELETE CASCADE,
    workspace_id uuid NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    nonce_hash   bytea NOT NULL CHECK (octet_length(nonce_hash) = 32),
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz NOT NULL
);
CREATE INDEX tickets_session ON tickets (session_hash);
CREATE INDEX tickets_user ON tickets (user_id);
CREATE INDEX tickets_workspace ON tickets (workspace_id);
CREATE INDEX tickets_expiry ON tickets (expires_at);
