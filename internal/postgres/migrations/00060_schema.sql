-- The schema of codehub 0.1.0. Databases that the versions before it had migrated up to 60 have
-- the same schema, so this is migration 60. docs/database.md is made of the comments on tables and
-- columns: go test -run TestDatabasePageIsCurrent ./internal/postgres -update.

-- +goose Up

-- The installation and its servers

CREATE TABLE installation (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    id          uuid NOT NULL,
    failure_key uuid NOT NULL DEFAULT gen_random_uuid(),
    moves_until timestamptz
);
COMMENT ON TABLE installation IS 'In one row.';
COMMENT ON COLUMN installation.id IS 'the label of everything in Docker, and the prefix in the bucket';
COMMENT ON COLUMN installation.failure_key IS 'hashes `name_failures`, and makes the setup code';
COMMENT ON COLUMN installation.moves_until IS 'administrators may move workspaces away (docs/move.md)';

CREATE TABLE compatibility (
    one         boolean PRIMARY KEY DEFAULT true CHECK (one),
    works_since bigint NOT NULL
);
COMMENT ON TABLE compatibility IS 'Which servers work with the database as it is, in one row. A server reads it at its start and at each heartbeat.';
COMMENT ON COLUMN compatibility.works_since IS 'the newest migration that servers have to know';
INSERT INTO compatibility (works_since) VALUES (60);

CREATE TABLE replicas (
    id          uuid PRIMARY KEY,
    hostname    text NOT NULL DEFAULT '',
    version     text NOT NULL DEFAULT '',
    started_at  timestamptz NOT NULL DEFAULT now(),
    seen_at     timestamptz NOT NULL DEFAULT now(),
    flushed_at  timestamptz,
    flush_epoch text,
    health      jsonb NOT NULL DEFAULT '{}',
    settings    jsonb NOT NULL DEFAULT '{}'
);
COMMENT ON TABLE replicas IS 'The servers. Each writes its own row every 5 s, and does not count once it has been silent for 60 s.';
COMMENT ON COLUMN replicas.flushed_at IS 'activity recorded until then is flushed';
COMMENT ON COLUMN replicas.flush_epoch IS '`database`, or an epoch of Redis (docs/adr/0011-an-epoch-for-the-activity-in-redis.md)';
COMMENT ON COLUMN replicas.settings IS 'must be the same on all servers';
CREATE INDEX replicas_seen ON replicas (seen_at);

CREATE TABLE leader (
    only_row      boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    replica_id    uuid NOT NULL,
    pid           integer NOT NULL,
    backend_start timestamptz NOT NULL,
    beat_at       timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE leader IS 'The heartbeat of the server that leads, in one row, written by it (docs/adr/0009-heartbeat-and-fence-of-the-leader.md).';
COMMENT ON COLUMN leader.pid IS 'the session that holds the lock';
COMMENT ON COLUMN leader.backend_start IS 'when that session began, which makes `pid` unique';

CREATE TABLE activity_clock (
    only_row      boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    watched_until timestamptz
);
COMMENT ON TABLE activity_clock IS 'The clock of idle timeouts, in one row, written by the leader (docs/states.md#which-time-counts).';
COMMENT ON COLUMN activity_clock.watched_until IS 'activity is recorded through this time';
INSERT INTO activity_clock DEFAULT VALUES;

CREATE TABLE unwatched (
    began timestamptz PRIMARY KEY,
    ended timestamptz NOT NULL,
    CHECK (ended > began)
);
COMMENT ON TABLE unwatched IS 'Times in which no server recorded activity: they do not count toward idle timeouts. Written by the leader. `unwatched_since(base)` returns their sum since a time.';
CREATE INDEX unwatched_ended ON unwatched (ended);
-- +goose StatementBegin
CREATE FUNCTION unwatched_since(base timestamptz) RETURNS interval LANGUAGE sql STABLE AS $$
    SELECT COALESCE(sum(ended - GREATEST(began, base)), '0') FROM unwatched WHERE ended > base
$$;
-- +goose StatementEnd

CREATE TABLE gc_state (
    only_row      boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    run           uuid,
    serial        bigint NOT NULL DEFAULT 0,
    next_run      uuid,
    next_serial   bigint,
    mark_wanted   boolean NOT NULL DEFAULT false,
    ran_at        timestamptz,
    restored_at   timestamptz,
    delete_grace  interval NOT NULL DEFAULT '00:00:00',
    delay         interval NOT NULL DEFAULT '00:00:00',
    keep          integer NOT NULL DEFAULT 0 CHECK (keep >= 0),
    hold          text,
    hold_since    timestamptz,
    take_over     boolean NOT NULL DEFAULT false,
    taken_over_at timestamptz,
    CONSTRAINT gc_state_next CHECK ((next_run IS NULL) = (next_serial IS NULL))
);
COMMENT ON TABLE gc_state IS 'The state of garbage collection, and of the marks by which a restored database is detected, in one row (docs/adr/0008-a-restored-database-is-detected.md). Written by the leader, `codehub gc` and the takeover.';
COMMENT ON COLUMN gc_state.next_run IS 'announced before it is stored elsewhere, so that a crash does not look like a restored database';
COMMENT ON COLUMN gc_state.mark_wanted IS 'an undelete asks for a new mark';
COMMENT ON COLUMN gc_state.restored_at IS 'waits start again from here';
COMMENT ON COLUMN gc_state.delete_grace IS 'settings of the last garbage collection: `codehub gc` without them does not remove more';
COMMENT ON COLUMN gc_state.hold IS 'the marks show that another database led last';
COMMENT ON COLUMN gc_state.take_over IS 'an administrator has decided to use this database';
INSERT INTO gc_state DEFAULT VALUES;

CREATE TABLE past_marks (
    run     uuid PRIMARY KEY,
    left_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE past_marks IS 'Marks of the last 30 days that this database has replaced.';
CREATE INDEX past_marks_left_at ON past_marks (left_at);

CREATE TABLE orphans (
    kind          text NOT NULL CHECK (kind IN ('container', 'volume', 'job', 'set-aside')),
    name          text NOT NULL,
    workspace_id  text NOT NULL DEFAULT '',
    detail        text NOT NULL DEFAULT '',
    kept          boolean NOT NULL DEFAULT false,
    first_seen_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, name)
);
COMMENT ON TABLE orphans IS 'Containers, volumes and jobs in Docker that no workspace owns, and set-aside volumes. Written by the leader.';
COMMENT ON COLUMN orphans.workspace_id IS 'according to its label';
COMMENT ON COLUMN orphans.kept IS 'not removed automatically';
COMMENT ON COLUMN orphans.first_seen_at IS 'removed `CODEHUB_ORPHAN_DELAY` later';

-- Users and their logins

CREATE TABLE users (
    id                   uuid PRIMARY KEY,
    username             text NOT NULL CHECK (char_length(username) BETWEEN 1 AND 255),
    username_key         text NOT NULL CONSTRAINT users_username_key UNIQUE,
    password_hash        text NOT NULL,
    admin                boolean NOT NULL DEFAULT false,
    disabled             boolean NOT NULL DEFAULT false,
    suspended_for        text CHECK (suspended_for IN ('refused', 'not_allowed', 'unreachable')),
    suspended_at         timestamptz,
    active               boolean NOT NULL GENERATED ALWAYS AS (NOT disabled AND suspended_for IS NULL) STORED,
    password_login_until timestamptz,
    max_running          integer CHECK (max_running >= 0),
    max_workspaces       integer CHECK (max_workspaces >= 0),
    max_bytes            bigint CHECK (max_bytes >= 0),
    removed_at           timestamptz,
    failed_logins        integer NOT NULL DEFAULT 0 CHECK (failed_logins >= 0),
    failed_at            timestamptz,
    locked_until         timestamptz,
    created_at           timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT users_removed CHECK (removed_at IS NULL OR disabled AND NOT admin)
);
COMMENT ON TABLE users IS 'Users, written by user administration and logins.';
COMMENT ON COLUMN users.username_key IS 'without differences of case and Unicode form';
COMMENT ON COLUMN users.password_hash IS 'argon2id; empty: an identity provider alone';
COMMENT ON COLUMN users.disabled IS 'cannot log in; workspaces stay';
COMMENT ON COLUMN users.suspended_for IS 'why access has no effect until the identity provider confirms the user; null: it has effect (docs/signin.md#when-access-ends)';
COMMENT ON COLUMN users.active IS 'sessions, tokens and keys of inactive users have no effect';
COMMENT ON COLUMN users.password_login_until IS 'although password logins are off';
COMMENT ON COLUMN users.max_running IS 'null: those of groups or the server, 0: none';
COMMENT ON COLUMN users.removed_at IS 'when the user was deleted. The row stays, disabled and with another `username_key`, for what names it';
COMMENT ON COLUMN users.failed_logins IS 'each less than a day after the one before';
CREATE INDEX users_by_name ON users (username_key COLLATE "C", id);

CREATE TABLE invitations (
    user_id    uuid PRIMARY KEY REFERENCES users (id) ON DELETE CASCADE,
    hash       bytea NOT NULL CONSTRAINT invitations_hash UNIQUE CHECK (octet_length(hash) = 32),
    proof      text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL
);
COMMENT ON TABLE invitations IS 'Links with which users set their passwords. A new password, disabling and deletion of the user end them. Written by administrators.';
COMMENT ON COLUMN invitations.proof IS 'of the password, or none, that the user had then';

CREATE TABLE name_failures (
    hash         bytea NOT NULL CHECK (octet_length(hash) = 32),
    slot         integer PRIMARY KEY GENERATED ALWAYS AS (get_byte(hash, 0) * 256 + get_byte(hash, 1)) STORED,
    failures     integer NOT NULL DEFAULT 0 CHECK (failures >= 0),
    failed_at    timestamptz NOT NULL DEFAULT now(),
    locked_until timestamptz
);
COMMENT ON TABLE name_failures IS 'Failed logins with names that no password logs in, at most 65,536: they are locked out like users, so that a lockout does not show which users exist. The leader removes those that are a day old.';
COMMENT ON COLUMN name_failures.hash IS 'of `installation.failure_key` and the name';
COMMENT ON COLUMN name_failures.slot IS 'another name of the same slot replaces this one';
CREATE INDEX name_failures_hash ON name_failures (hash);

CREATE TABLE user_identities (
    id            uuid PRIMARY KEY,
    user_id       uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    issuer        text NOT NULL CHECK (issuer <> ''),
    subject       text NOT NULL CHECK (subject <> ''),
    username      text NOT NULL DEFAULT '',
    active        boolean NOT NULL DEFAULT true,
    refresh_token bytea,
    admin_granted boolean NOT NULL DEFAULT false,
    created_at    timestamptz NOT NULL DEFAULT now(),
    checked_at    timestamptz NOT NULL DEFAULT now(),
    tried_at      timestamptz NOT NULL DEFAULT now(),
    claimed_until timestamptz,
    failing_since timestamptz,
    CONSTRAINT user_identities_subject UNIQUE (issuer, subject)
);
COMMENT ON TABLE user_identities IS 'Accounts of users at identity providers, written at logins, by moves, and by the leader when it asks the providers again (docs/signin.md).';
COMMENT ON COLUMN user_identities.active IS 'the provider accepted the user at the last check';
COMMENT ON COLUMN user_identities.refresh_token IS 'encrypted';
COMMENT ON COLUMN user_identities.admin_granted IS 'made the user an administrator';
COMMENT ON COLUMN user_identities.claimed_until IS 'no other server checks it before';
CREATE INDEX user_identities_tried ON user_identities (tried_at) WHERE active;
CREATE INDEX user_identities_user ON user_identities (user_id);

CREATE TABLE user_claim_groups (
    identity_id uuid NOT NULL REFERENCES user_identities (id) ON DELETE CASCADE,
    name        text NOT NULL CHECK (name <> ''),
    PRIMARY KEY (identity_id, name)
);
COMMENT ON TABLE user_claim_groups IS 'Groups of a user according to the provider at the last check, at most 500 of an identity.';
CREATE INDEX user_claim_groups_name ON user_claim_groups (name);

CREATE TABLE provider_logouts (
    issuer           text NOT NULL,
    token_id         text NOT NULL,
    provider_session text,
    subject          text,
    received_at      timestamptz NOT NULL DEFAULT now(),
    expires_at       timestamptz NOT NULL,
    PRIMARY KEY (issuer, token_id)
);
COMMENT ON TABLE provider_logouts IS 'Logout tokens of providers, for 30 min: each counts once, and a login of a session that the provider has ended is refused.';
COMMENT ON COLUMN provider_logouts.token_id IS '`jti`';
COMMENT ON COLUMN provider_logouts.provider_session IS '`sid`; null: all of the subject';
COMMENT ON COLUMN provider_logouts.subject IS '`sub`';
COMMENT ON COLUMN provider_logouts.received_at IS 'earlier logins of the subject are refused without a `provider_session`';
CREATE INDEX provider_logouts_session ON provider_logouts (issuer, provider_session);
CREATE INDEX provider_logouts_subject ON provider_logouts (issuer, subject) WHERE provider_session IS NULL;

CREATE TABLE sessions (
    hash             bytea PRIMARY KEY CHECK (octet_length(hash) = 32),
    user_id          uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    user_agent       text NOT NULL DEFAULT '',
    address          text NOT NULL DEFAULT '',
    created_at       timestamptz NOT NULL DEFAULT now(),
    expires_at       timestamptz NOT NULL,
    id               uuid NOT NULL DEFAULT gen_random_uuid() CONSTRAINT sessions_id UNIQUE,
    last_used_at     timestamptz,
    identity_id      uuid REFERENCES user_identities (id) ON DELETE CASCADE,
    provider_session text
);
COMMENT ON TABLE sessions IS 'Logins of browsers. The leader removes expired ones.';
COMMENT ON COLUMN sessions.expires_at IS '30 days after the login';
COMMENT ON COLUMN sessions.last_used_at IS 'to the minute or so';
COMMENT ON COLUMN sessions.identity_id IS 'null: a password';
COMMENT ON COLUMN sessions.provider_session IS 'the provider''s `sid`';
CREATE INDEX sessions_expiry ON sessions (expires_at);
CREATE INDEX sessions_identity ON sessions (identity_id);
CREATE INDEX sessions_user ON sessions (user_id);

CREATE TABLE program_logins (
    id               uuid PRIMARY KEY,
    hash             bytea NOT NULL CONSTRAINT program_logins_hash UNIQUE CHECK (octet_length(hash) = 32),
    user_code        text CONSTRAINT program_logins_user_code UNIQUE,
    challenge        bytea CHECK (octet_length(challenge) = 32),
    name             varchar(255) NOT NULL,
    address          text NOT NULL DEFAULT '',
    username_key     text,
    session_hash     bytea REFERENCES sessions (hash) ON DELETE CASCADE,
    polled_at        timestamptz,
    token_expires_at timestamptz NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    expires_at       timestamptz NOT NULL
);
COMMENT ON TABLE program_logins IS 'Logins of the command line that wait for a user, or for the program to take its token.';
COMMENT ON COLUMN program_logins.hash IS 'of the code that the program redeems';
COMMENT ON COLUMN program_logins.user_code IS 'null: the browser brings the code';
COMMENT ON COLUMN program_logins.username_key IS 'the account that alone can allow it; null: any';
COMMENT ON COLUMN program_logins.session_hash IS 'of the user who has allowed it';
CREATE INDEX program_logins_address ON program_logins (address);
CREATE INDEX program_logins_expiry ON program_logins (expires_at);
CREATE INDEX program_logins_session ON program_logins (session_hash);

CREATE TABLE passkeys (
    id            uuid PRIMARY KEY,
    user_id       uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    credential_id bytea NOT NULL CONSTRAINT passkeys_credential UNIQUE CHECK (octet_length(credential_id) BETWEEN 1 AND 1023),
    party         varchar(255) NOT NULL,
    record        jsonb NOT NULL,
    name          varchar(255) NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    last_used_at  timestamptz,
    cloned_at     timestamptz
);
COMMENT ON TABLE passkeys IS 'Second factors of users who log in with a password (docs/signin.md#passkeys).';
COMMENT ON COLUMN passkeys.party IS 'the host of `CODEHUB_URL`';
COMMENT ON COLUMN passkeys.record IS 'public key, counter and flags';
COMMENT ON COLUMN passkeys.cloned_at IS 'a login was refused because the counter did not increase';
CREATE INDEX passkeys_user ON passkeys (user_id);

CREATE TABLE recovery_codes (
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    hash    bytea NOT NULL CHECK (octet_length(hash) = 32),
    PRIMARY KEY (user_id, hash)
);
COMMENT ON TABLE recovery_codes IS 'Codes that replace a passkey at one login.';

CREATE TABLE passkey_attempts (
    hash       bytea PRIMARY KEY CHECK (octet_length(hash) = 32),
    user_id    uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    login      boolean NOT NULL,
    proof      text NOT NULL,
    name       varchar(255) NOT NULL DEFAULT '',
    challenge  jsonb,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL
);
COMMENT ON TABLE passkey_attempts IS 'Logins with a right password that wait for a passkey, at most 10 of a user, and registrations in a session. The leader removes expired ones.';
COMMENT ON COLUMN passkey_attempts.hash IS 'of the login''s cookie, or the session''s';
COMMENT ON COLUMN passkey_attempts.login IS 'else a registration';
CREATE INDEX passkey_attempts_expiry ON passkey_attempts (expires_at);
CREATE INDEX passkey_attempts_user ON passkey_attempts (user_id);

CREATE TABLE ssh_keys (
    id           uuid PRIMARY KEY,
    user_id      uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    name         varchar(255) NOT NULL CHECK (name <> ''),
    public_key   text NOT NULL,
    hash         bytea NOT NULL CONSTRAINT ssh_keys_hash UNIQUE CHECK (octet_length(hash) = 32),
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,
    last_used_at timestamptz
);
COMMENT ON TABLE ssh_keys IS 'Public keys for SSH (docs/ssh.md). The removal of a key ends its connections.';
COMMENT ON COLUMN ssh_keys.hash IS 'the fingerprint';
CREATE INDEX ssh_keys_user ON ssh_keys (user_id, created_at);

CREATE TABLE ssh_host_key (
    only_row   boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    seed       bytea NOT NULL CHECK (octet_length(seed) = 32),
    created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE ssh_host_key IS 'The key by which all servers identify themselves to SSH clients, in one row.';

-- Groups

CREATE TABLE user_groups (
    id             uuid PRIMARY KEY,
    name           text NOT NULL CHECK (name <> ''),
    name_key       text NOT NULL CONSTRAINT user_groups_name_key UNIQUE,
    claim          text NOT NULL DEFAULT '',
    claim_issuer   text NOT NULL DEFAULT '',
    max_running    integer CHECK (max_running >= 0),
    max_workspaces integer CHECK (max_workspaces >= 0),
    max_bytes      bigint CHECK (max_bytes >= 0),
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (claim <> '' OR claim_issuer = '')
);
COMMENT ON TABLE user_groups IS 'Groups of users (docs/administration.md#groups), written by administrators.';
COMMENT ON COLUMN user_groups.claim IS 'group of an identity provider whose members belong to this one';
COMMENT ON COLUMN user_groups.claim_issuer IS 'that provider; empty: any';
COMMENT ON COLUMN user_groups.max_running IS 'of each member without an own limit; null: none here, 0: unlimited';
CREATE INDEX user_groups_claim ON user_groups (claim) WHERE claim <> '';

CREATE TABLE group_members (
    group_id uuid NOT NULL REFERENCES user_groups (id) ON DELETE CASCADE,
    user_id  uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    admin    boolean NOT NULL DEFAULT false,
    added_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (group_id, user_id)
);
COMMENT ON TABLE group_members IS 'Users who were added to a group, by administrators and those of the group.';
CREATE INDEX group_members_user ON group_members (user_id);

CREATE VIEW group_people AS
    SELECT group_id, user_id, admin, false AS claimed FROM group_members
    UNION ALL
    SELECT DISTINCT g.id, i.user_id, false, true
    FROM user_groups g
    JOIN user_claim_groups c ON c.name = g.claim
    JOIN user_identities i ON i.id = c.identity_id AND i.active AND (g.claim_issuer = '' OR g.claim_issuer = i.issuer)
    JOIN users u ON u.id = i.user_id AND u.removed_at IS NULL
    WHERE g.claim <> '';
COMMENT ON VIEW group_people IS 'Who is in which group. A user who was added and is in the claim has two rows.';

CREATE VIEW user_limits AS
    SELECT u.id AS user_id,
        COALESCE(u.max_running, g.max_running) AS max_running,
        COALESCE(u.max_workspaces, g.max_workspaces) AS max_workspaces,
        COALESCE(u.max_bytes, g.max_bytes) AS max_bytes,
        CASE WHEN u.max_running IS NOT NULL THEN 'own' WHEN g.max_running IS NOT NULL THEN 'group' ELSE 'server' END AS running_from,
        CASE WHEN u.max_workspaces IS NOT NULL THEN 'own' WHEN g.max_workspaces IS NOT NULL THEN 'group' ELSE 'server' END AS workspaces_from,
        CASE WHEN u.max_bytes IS NOT NULL THEN 'own' WHEN g.max_bytes IS NOT NULL THEN 'group' ELSE 'server' END AS bytes_from,
        CASE WHEN u.max_running IS NULL THEN g.running_group END AS running_group,
        CASE WHEN u.max_workspaces IS NULL THEN g.workspaces_group END AS workspaces_group,
        CASE WHEN u.max_bytes IS NULL THEN g.bytes_group END AS bytes_group
    FROM users u
    LEFT JOIN LATERAL (
        SELECT CASE WHEN bool_or(max_running = 0) THEN 0 ELSE max(max_running) END AS max_running,
            CASE WHEN bool_or(max_workspaces = 0) THEN 0 ELSE max(max_workspaces) END AS max_workspaces,
            CASE WHEN bool_or(max_bytes = 0) THEN 0 ELSE max(max_bytes) END AS max_bytes,
            -- The groups that these are of; of several, the first by name.
            (array_agg(name ORDER BY max_running = 0 DESC, max_running DESC, name_key) FILTER (WHERE max_running IS NOT NULL))[1] AS running_group,
            (array_agg(name ORDER BY max_workspaces = 0 DESC, max_workspaces DESC, name_key) FILTER (WHERE max_workspaces IS NOT NULL))[1] AS workspaces_group,
            (array_agg(name ORDER BY max_bytes = 0 DESC, max_bytes DESC, name_key) FILTER (WHERE max_bytes IS NOT NULL))[1] AS bytes_group
        FROM user_groups WHERE id IN (SELECT group_id FROM group_people p WHERE p.user_id = u.id)
    ) g ON true;
COMMENT ON VIEW user_limits IS 'The limits of each user: the user''s own, else the most generous of the user''s groups, else null: the server''s. No other place decides this.';
COMMENT ON COLUMN user_limits.running_group IS 'of several, the first by name';

-- Workspaces

CREATE SEQUENCE workspace_uid_offsets MINVALUE 0 START 0;
CREATE TABLE workspaces (
    id                      uuid PRIMARY KEY,
    owner_user_id           uuid NOT NULL CONSTRAINT workspaces_owner REFERENCES users (id),
    name                    varchar(255) NOT NULL CHECK (name <> ''),
    description             text NOT NULL DEFAULT '',
    memo                    text NOT NULL DEFAULT '',
    image_ref               varchar(512) NOT NULL CHECK (image_ref <> ''),
    previous_image_ref      varchar(512),
    running_image_ref       varchar(512),
    image_pin               jsonb,
    image_newer             text,
    image_generation        integer NOT NULL DEFAULT 0,
    image_pull              boolean NOT NULL DEFAULT false,
    env                     jsonb CHECK (jsonb_typeof(env) = 'object'),
    size                    varchar(40),
    running_size            varchar(40),
    running_env_digest      varchar(64),
    time_zone               varchar(64),
    uid_offset              bigint NOT NULL DEFAULT nextval('workspace_uid_offsets'),
    storage_backend         text NOT NULL CHECK (storage_backend IN ('docker-volume', 'local-dir', 'k8s-pvc')),
    home_ctx                jsonb NOT NULL DEFAULT '{"state": "absent"}' CHECK (COALESCE(home_ctx ->> 'state', '') IN ('absent', 'filling', 'live', 'archived', 'discarding', 'deleting')),
    conditions              jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(conditions) = 'object'),
    phase                   text NOT NULL DEFAULT 'PENDING' CHECK (phase IN ('PENDING', 'ARCHIVED', 'STANDBY', 'RUNNING', 'ERROR', 'DELETING', 'DELETED')),
    phase_changed_at        timestamptz NOT NULL DEFAULT now(),
    operation               text NOT NULL DEFAULT 'NONE' CHECK (operation IN ('NONE', 'PROVISIONING', 'CREATE_EMPTY_ARCHIVE', 'RESTORING', 'STARTING', 'STOPPING', 'ARCHIVING', 'DELETING')),
    op_id                   uuid,
    op_started_at           timestamptz,
    progress                jsonb,
    archive_op_id           uuid,
    archive_key             varchar(1024),
    archive_digest          text NOT NULL DEFAULT '',
    archive_size            bigint NOT NULL DEFAULT 0,
    error_reason            text CHECK (error_reason IN ('Timeout', 'RetryExceeded', 'ActionFailed', 'DataLost', 'ImagePullFailed', 'ImagePullTooSlow', 'ImageNotAllowed', 'ContainerWithoutVolume', 'ArchiveCorrupted', 'Unrestorable')),
    error_message           text,
    error_count             integer NOT NULL DEFAULT 0 CHECK (error_count >= 0),
    retry_at                timestamptz,
    stop_reason             text,
    desired_state           text NOT NULL CHECK (desired_state IN ('ARCHIVED', 'STANDBY', 'RUNNING')),
    desired_cause           text CHECK (desired_cause IN ('idle', 'unused', 'restart')),
    next_desired_state      text CHECK (next_desired_state IN ('DELETED', 'ARCHIVED', 'STANDBY', 'RUNNING')),
    deleted_at              timestamptz,
    last_access_at          timestamptz,
    last_access_kind        text,
    keep_awake_until        timestamptz,
    awake_while_working     boolean NOT NULL DEFAULT false,
    standby_ttl_seconds     integer CHECK (standby_ttl_seconds >= 0),
    archive_ttl_seconds     integer CHECK (archive_ttl_seconds >= 0),
    recover_requested_at    timestamptz,
    recover_action          text CHECK (recover_action IN ('afresh', 'empty', 'archive', 'set_aside')),
    recover_archive         jsonb CHECK (recover_archive IS NULL OR COALESCE(recover_archive ->> 'key', '') <> ''),
    cancel_requested_at     timestamptz,
    force_stop_requested_at timestamptz,
    home_bytes              bigint CHECK (home_bytes >= 0),
    archives_bytes          bigint CHECK (archives_bytes >= 0),
    home_limit              bigint NOT NULL DEFAULT 0 CHECK (home_limit >= 0),
    freeing_at              timestamptz,
    freeing_from            bigint NOT NULL DEFAULT 0,
    total_bytes             bigint NOT NULL GENERATED ALWAYS AS (COALESCE(home_bytes, 0) + COALESCE(archives_bytes, 0)) STORED,
    state                   text NOT NULL GENERATED ALWAYS AS (CASE
        WHEN phase = 'DELETED' THEN 'deleted'
        WHEN deleted_at IS NOT NULL THEN CASE
            WHEN COALESCE(error_reason, 'ActionFailed') NOT IN ('ActionFailed', 'Unrestorable') THEN 'delete_failed'
            WHEN operation = 'NONE' AND home_ctx ->> 'state' <> 'deleting' THEN 'deleted'
            ELSE 'deleting' END
        WHEN operation = 'PROVISIONING' THEN 'preparing'
        WHEN operation IN ('CREATE_EMPTY_ARCHIVE', 'ARCHIVING') THEN 'archiving'
        WHEN operation = 'RESTORING' THEN 'restoring'
        WHEN operation = 'STARTING' THEN 'starting'
        WHEN operation = 'STOPPING' THEN 'stopping'
        WHEN operation = 'DELETING' THEN 'deleting'
        WHEN phase = 'ERROR' THEN 'error'
        WHEN phase = 'RUNNING' THEN CASE desired_state WHEN 'RUNNING' THEN 'running' ELSE 'stopping' END
        WHEN phase = 'STANDBY' OR phase = 'DELETING' AND home_ctx ->> 'state' = 'live' THEN
            CASE desired_state WHEN 'RUNNING' THEN 'starting' WHEN 'STANDBY' THEN 'stopped' ELSE 'archiving' END
        WHEN phase IN ('ARCHIVED', 'DELETING') THEN CASE desired_state WHEN 'ARCHIVED' THEN 'archived' ELSE 'restoring' END
        ELSE CASE desired_state WHEN 'ARCHIVED' THEN 'pending' ELSE 'preparing' END
    END) STORED,
    created_at              timestamptz NOT NULL DEFAULT now(),
    updated_at              timestamptz NOT NULL DEFAULT now(),
    holds_slot              boolean NOT NULL GENERATED ALWAYS AS (
        deleted_at IS NULL AND phase <> 'DELETED' AND (
            phase = 'RUNNING'
            OR operation = 'STARTING'
            OR (desired_state = 'RUNNING' AND (phase <> 'ERROR' OR recover_requested_at IS NOT NULL))
            OR COALESCE(conditions #>> '{infra.container_ready,reason}', 'NotObserved') NOT IN ('NoContainer', 'NotObserved')
        )
    ) STORED,
    CONSTRAINT workspaces_claim CHECK ((op_id IS NOT NULL) = (operation <> 'NONE')),
    CONSTRAINT workspaces_deletion CHECK (deleted_at IS NOT NULL OR phase <> 'DELETED'),
    CONSTRAINT workspaces_error_is_idle CHECK (phase <> 'ERROR' OR operation = 'NONE'),
    CONSTRAINT workspaces_recover_archive CHECK ((recover_archive IS NOT NULL) = COALESCE(recover_action = 'archive', false)),
    CONSTRAINT workspaces_recovery CHECK ((recover_action IS NOT NULL) = (recover_requested_at IS NOT NULL))
) WITH (fillfactor = 80);
ALTER SEQUENCE workspace_uid_offsets OWNED BY workspaces.uid_offset;
COMMENT ON TABLE workspaces IS 'One row per workspace. It stays after the deletion, with the phase DELETED.';
COMMENT ON COLUMN workspaces.id IS 'UUIDv7, after which container, volume and archives are named';
COMMENT ON COLUMN workspaces.image_ref IS 'of the next start';
COMMENT ON COLUMN workspaces.image_pin IS 'the image of the last start: reference, ID, digest, generation, and why it is another one than requested (docs/images.md#the-image-stays-the-same)';
COMMENT ON COLUMN workspaces.image_newer IS 'ID or digest that `image_ref` has now, if it is not the pinned one';
COMMENT ON COLUMN workspaces.image_generation IS 'counts requests for another image; earlier pins no longer hold';
COMMENT ON COLUMN workspaces.image_pull IS 'the next start pulls the image';
COMMENT ON COLUMN workspaces.env IS 'the values may be secrets';
COMMENT ON COLUMN workspaces.size IS 'null: the default (docs/workspaces.md#sizes)';
COMMENT ON COLUMN workspaces.running_env_digest IS 'of the container''s `env`';
COMMENT ON COLUMN workspaces.time_zone IS 'of the owner';
COMMENT ON COLUMN workspaces.uid_offset IS 'added to the first of `CODEHUB_WORKSPACE_UIDS`, modulo the range';
COMMENT ON COLUMN workspaces.storage_backend IS 'what keeps the home';
COMMENT ON COLUMN workspaces.home_ctx IS 'state of the home, the claim its volume was created for, the archive restored into it, its uid, those that interrupted changes were to give it (`next_uids`), and whether an image gave its files their owners (`from_image`) (docs/states.md#the-home)';
COMMENT ON COLUMN workspaces.conditions IS 'observed facts, each with status, reason, message and time of the last change (docs/states.md#conditions)';
COMMENT ON COLUMN workspaces.phase IS 'what the conditions add up to';
COMMENT ON COLUMN workspaces.op_id IS 'the operation''s claim';
COMMENT ON COLUMN workspaces.op_started_at IS 'its deadline counts from here, or from later progress (docs/states.md#operations)';
COMMENT ON COLUMN workspaces.progress IS 'step, bytes and entries';
COMMENT ON COLUMN workspaces.error_reason IS 'why the last attempt failed; final in the phase ERROR';
COMMENT ON COLUMN workspaces.error_count IS 'in a row';
COMMENT ON COLUMN workspaces.stop_reason IS '`idle`, `requested`, `forced`, `exited`';
COMMENT ON COLUMN workspaces.desired_cause IS 'why it is not what a user requested';
COMMENT ON COLUMN workspaces.next_desired_state IS 'a request that waits until no operation runs';
COMMENT ON COLUMN workspaces.last_access_at IS 'last activity; flushes write it as well';
COMMENT ON COLUMN workspaces.keep_awake_until IS 'no idle timeout before this';
COMMENT ON COLUMN workspaces.awake_while_working IS 'processes that are at work count as activity';
COMMENT ON COLUMN workspaces.standby_ttl_seconds IS 'idle timeout until it stops; null: the server''s, 0: never';
COMMENT ON COLUMN workspaces.archive_ttl_seconds IS 'likewise until it is archived';
COMMENT ON COLUMN workspaces.home_bytes IS 'last measurement by the leader';
COMMENT ON COLUMN workspaces.home_limit IS 'of the home''s volume, as observed; 0: none (docs/workspaces.md)';
COMMENT ON COLUMN workspaces.freeing_at IS 'last start that was requested to free space over a limit';
COMMENT ON COLUMN workspaces.state IS 'for display (docs/states.md#the-state): the rule of `lifecycle.StateOf`';
COMMENT ON COLUMN workspaces.updated_at IS 'last change that users can see';
COMMENT ON COLUMN workspaces.holds_slot IS 'counts against the running limits';
CREATE INDEX workspaces_all_created ON workspaces (created_at, id) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_all_image ON workspaces (image_ref COLLATE "C", id) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_all_last_use ON workspaces (COALESCE(last_access_at, created_at), id) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_all_name ON workspaces (lower(name) COLLATE "C", id) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_all_owner ON workspaces (owner_user_id, id) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_all_size ON workspaces (total_bytes, id) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_all_state ON workspaces (state COLLATE "C", id) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_candidates ON workspaces (id) WHERE phase <> 'DELETED';
CREATE INDEX workspaces_deleted_by_owner ON workspaces (owner_user_id, deleted_at DESC) WHERE deleted_at IS NOT NULL;
CREATE INDEX workspaces_error ON workspaces (id) WHERE phase = 'ERROR';
CREATE INDEX workspaces_in_grace ON workspaces (deleted_at) WHERE deleted_at IS NOT NULL AND phase <> 'DELETED';
CREATE INDEX workspaces_list ON workspaces (owner_user_id, created_at DESC, id DESC) WHERE deleted_at IS NULL;
CREATE UNIQUE INDEX workspaces_name ON workspaces (owner_user_id, name) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_operation ON workspaces (operation, id) WHERE operation <> 'NONE';
CREATE INDEX workspaces_running ON workspaces (id) WHERE holds_slot;
CREATE INDEX workspaces_running_by_owner ON workspaces (owner_user_id) WHERE holds_slot;
CREATE INDEX workspaces_ttl_candidates ON workspaces (phase, phase_changed_at) WHERE operation = 'NONE' AND deleted_at IS NULL AND phase IN ('RUNNING', 'STANDBY');

CREATE TABLE archives (
    key               varchar(1024) PRIMARY KEY,
    workspace_id      uuid NOT NULL,
    archive_op_id     uuid NOT NULL,
    digest            text NOT NULL DEFAULT '',
    size              bigint NOT NULL DEFAULT 0,
    entries           bigint NOT NULL DEFAULT 0,
    skipped           bigint NOT NULL DEFAULT 0 CHECK (skipped >= 0),
    created_at        timestamptz NOT NULL DEFAULT now(),
    verified_at       timestamptz,
    superseded_at     timestamptz,
    unprotected_since timestamptz,
    origin            text NOT NULL DEFAULT 'made' CHECK (origin IN ('made', 'found')),
    complete_at       timestamptz,
    missing_since     timestamptz,
    deleting_at       timestamptz
);
COMMENT ON TABLE archives IS 'Every archive that is known. A row may outlive its workspace. The controller inserts it before the job starts and completes it; garbage collection writes the columns from `unprotected_since` on. Both lock the workspace''s row.';
COMMENT ON COLUMN archives.skipped IS 'sockets, FIFOs and devices';
COMMENT ON COLUMN archives.verified_at IS 'when it became the current archive';
COMMENT ON COLUMN archives.unprotected_since IS 'no workspace uses it; removed after `CODEHUB_GC_DELAY`';
COMMENT ON COLUMN archives.origin IS '`found` in the bucket, not made by a known operation';
COMMENT ON COLUMN archives.complete_at IS 'its `.meta` is there, if not verified';
COMMENT ON COLUMN archives.missing_since IS 'from the bucket';
COMMENT ON COLUMN archives.deleting_at IS 'removal has begun; a trigger refuses a workspace that would name it';
CREATE INDEX archives_unprotected ON archives (unprotected_since) WHERE unprotected_since IS NOT NULL;
CREATE INDEX archives_verified ON archives (verified_at);
CREATE INDEX archives_workspace ON archives (workspace_id, created_at DESC);

CREATE TABLE workspace_busy (
    workspace_id uuid PRIMARY KEY REFERENCES workspaces (id) ON DELETE CASCADE,
    confirmed_at timestamptz NOT NULL,
    held_since   timestamptz,
    work_day     date,
    work_seconds integer NOT NULL DEFAULT 0 CHECK (work_seconds >= 0)
);
COMMENT ON TABLE workspace_busy IS 'Activity that agents have confirmed before an idle timeout. Written by the leader.';
COMMENT ON COLUMN workspace_busy.confirmed_at IS '`last_access_at`, unless the workspace was used otherwise since';
COMMENT ON COLUMN workspace_busy.held_since IS 'since when commands have kept it awake without another use';
COMMENT ON COLUMN workspace_busy.work_day IS 'last day (UTC) on which working processes kept it awake';

CREATE TABLE workspace_usage (
    day             date NOT NULL,
    workspace_id    uuid NOT NULL,
    owner_user_id   uuid NOT NULL,
    running_seconds double precision NOT NULL DEFAULT 0,
    cpu_seconds     double precision NOT NULL DEFAULT 0,
    memory_seconds  double precision NOT NULL DEFAULT 0,
    home_bytes      bigint NOT NULL DEFAULT 0,
    archives_bytes  bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (workspace_id, day, owner_user_id)
);
COMMENT ON TABLE workspace_usage IS 'What workspaces used, by day (UTC) and owner (docs/administration.md#what-workspaces-cost). Written by the leader; removed after `CODEHUB_USAGE_KEEP`.';
COMMENT ON COLUMN workspace_usage.home_bytes IS 'largest of the day';
CREATE INDEX workspace_usage_day ON workspace_usage (day, workspace_id);

CREATE TABLE api_tokens (
    id           uuid PRIMARY KEY,
    user_id      uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    name         varchar(255) NOT NULL CHECK (name <> ''),
    hash         bytea NOT NULL CONSTRAINT api_tokens_hash UNIQUE CHECK (octet_length(hash) = 32),
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,
    last_used_at timestamptz,
    scope        text NOT NULL DEFAULT 'admin' CHECK (scope IN ('read', 'workspaces', 'admin')),
    workspace_id uuid REFERENCES workspaces (id) ON DELETE CASCADE,
    CONSTRAINT api_tokens_limit CHECK (workspace_id IS NULL OR scope <> 'admin')
);
COMMENT ON TABLE api_tokens IS 'API tokens, those of `codehub login` included.';
COMMENT ON COLUMN api_tokens.scope IS 'docs/api.md#scopes-of-api-tokens';
COMMENT ON COLUMN api_tokens.workspace_id IS 'the only workspace that it is for; null: all';
CREATE INDEX api_tokens_user ON api_tokens (user_id, created_at);
CREATE INDEX api_tokens_workspace ON api_tokens (workspace_id) WHERE workspace_id IS NOT NULL;

CREATE TABLE tickets (
    hash         bytea PRIMARY KEY CHECK (octet_length(hash) = 32),
    user_id      uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    session_hash bytea NOT NULL REFERENCES sessions (hash) ON DELETE CASCADE,
    workspace_id uuid NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    port         integer NOT NULL DEFAULT 0 CHECK (port BETWEEN 0 AND 65535),
    nonce_hash   bytea NOT NULL CHECK (octet_length(nonce_hash) = 32),
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz NOT NULL
);
COMMENT ON TABLE tickets IS 'One-time tickets that carry a visitor from the dashboard to the origin of a workspace (docs/security.md#an-origin-for-each-workspace).';
COMMENT ON COLUMN tickets.port IS '0: the IDE';
COMMENT ON COLUMN tickets.nonce_hash IS 'of the cookie that it is bound to';
CREATE INDEX tickets_expiry ON tickets (expires_at);
CREATE INDEX tickets_session ON tickets (session_hash);
CREATE INDEX tickets_user ON tickets (user_id);
CREATE INDEX tickets_workspace ON tickets (workspace_id);

CREATE TABLE workspace_sessions (
    hash         bytea PRIMARY KEY CHECK (octet_length(hash) = 32),
    session_hash bytea NOT NULL REFERENCES sessions (hash) ON DELETE CASCADE,
    workspace_id uuid NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    port         integer NOT NULL CHECK (port BETWEEN 0 AND 65535),
    created_at   timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE workspace_sessions IS 'Sessions on the origins of workspaces, each made from a ticket. When a guest may no longer use a workspace, triggers end all its sessions and tickets (docs/ports.md#when-access-ends).';
COMMENT ON COLUMN workspace_sessions.port IS '0: the IDE';
CREATE INDEX workspace_sessions_session ON workspace_sessions (session_hash, workspace_id, port, created_at);
CREATE INDEX workspace_sessions_workspace ON workspace_sessions (workspace_id);

CREATE TABLE port_shares (
    workspace_id uuid NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    port         integer NOT NULL CHECK (port BETWEEN 1 AND 65535),
    visible_to   text NOT NULL CHECK (visible_to IN ('users', 'public')),
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,
    token_id     uuid REFERENCES api_tokens (id) ON DELETE CASCADE,
    CHECK (visible_to <> 'public' OR expires_at IS NOT NULL),
    PRIMARY KEY (workspace_id, port)
);
COMMENT ON TABLE port_shares IS 'Ports that owners share (docs/ports.md#share-a-port). A hand-over of the workspace removes them.';
COMMENT ON COLUMN port_shares.token_id IS 'the limited API token that shared it, with which it ends';
CREATE INDEX port_shares_token ON port_shares (token_id) WHERE token_id IS NOT NULL;

-- Sharing

CREATE TABLE workspace_shares (
    id           uuid PRIMARY KEY,
    workspace_id uuid NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    user_id      uuid REFERENCES users (id) ON DELETE CASCADE,
    group_id     uuid REFERENCES user_groups (id) ON DELETE CASCADE,
    access       text NOT NULL CHECK (access IN ('use', 'view')),
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK ((user_id IS NULL) <> (group_id IS NULL)),
    CONSTRAINT workspace_shares_group UNIQUE (workspace_id, group_id),
    CONSTRAINT workspace_shares_user UNIQUE (workspace_id, user_id)
);
COMMENT ON TABLE workspace_shares IS 'With whom owners share their workspaces (docs/ports.md#share-a-workspace): a user or a group. A hand-over removes the rows.';
CREATE INDEX workspace_shares_of_group ON workspace_shares (group_id) WHERE group_id IS NOT NULL;
CREATE INDEX workspace_shares_of_user ON workspace_shares (user_id) WHERE user_id IS NOT NULL;

CREATE VIEW workspace_guests AS
    SELECT s.workspace_id, p.user_id, bool_or(s.access = 'use') AS may_use
    FROM workspace_shares s
    JOIN workspaces w ON w.id = s.workspace_id AND w.deleted_at IS NULL
    JOIN users o ON o.id = w.owner_user_id AND o.active
    JOIN LATERAL (
        SELECT s.user_id WHERE s.user_id IS NOT NULL
        UNION
        SELECT m.user_id FROM group_people m WHERE m.group_id = s.group_id
    ) p ON true
    JOIN users u ON u.id = p.user_id AND u.active AND u.id <> w.owner_user_id
    GROUP BY s.workspace_id, p.user_id;
COMMENT ON VIEW workspace_guests IS 'Who has access to whose workspace now. No rows while the owner or guest is inactive, or the workspace is deleted.';

CREATE TABLE hand_over_requests (
    workspace_id uuid PRIMARY KEY REFERENCES workspaces (id) ON DELETE CASCADE,
    user_id      uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    to_user_id   uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    name         text NOT NULL,
    by_username  text NOT NULL,
    message      text NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    declined_at  timestamptz
);
COMMENT ON TABLE hand_over_requests IS 'Hand-overs that wait for the owner (docs/administration.md#hand-over). A row counts only while `user_id` owns the workspace.';
COMMENT ON COLUMN hand_over_requests.user_id IS 'the owner';
COMMENT ON COLUMN hand_over_requests.name IS 'of the workspace there; empty: unchanged';
CREATE INDEX hand_over_requests_user ON hand_over_requests (user_id);

-- Notices and the audit log

CREATE TABLE user_notices (
    id             uuid PRIMARY KEY,
    user_id        uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    kind           text NOT NULL CHECK (kind IN ('message', 'stop', 'archive', 'cancel', 'recover', 'delete', 'undelete', 'timeouts', 'size', 'handed_over', 'received', 'shared')),
    workspace_id   uuid,
    workspace_name text NOT NULL DEFAULT '',
    by_username    text NOT NULL,
    other_username text NOT NULL DEFAULT '',
    message        text NOT NULL DEFAULT '' CHECK (char_length(message) <= 2000),
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE user_notices IS 'What administrators did to workspaces of a user, their messages, and what others share, until the user dismisses them; removed after 90 days. Names are copied.';
CREATE INDEX user_notices_shared ON user_notices (workspace_id) WHERE kind = 'shared';
CREATE INDEX user_notices_user ON user_notices (user_id, created_at, id);

CREATE TABLE banner (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    message  text NOT NULL CHECK (char_length(message) BETWEEN 1 AND 2000),
    username text NOT NULL,
    set_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE banner IS 'The text that all users see, in at most one row, written by administrators.';

CREATE TABLE audit_log (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL DEFAULT now(),
    user_id  uuid,
    username text NOT NULL,
    token_id uuid,
    address  inet,
    action   text NOT NULL CHECK (action <> ''),
    target   text NOT NULL DEFAULT '',
    details  jsonb NOT NULL DEFAULT '{}'
);
COMMENT ON TABLE audit_log IS 'Actions of users and of codehub (docs/administration.md#audit-log). Triggers refuse changes, and removals in the first day; rows end after `CODEHUB_AUDIT_KEEP`. Names are copied.';
COMMENT ON COLUMN audit_log.user_id IS 'null: the server';
CREATE INDEX audit_log_action ON audit_log (action text_pattern_ops, id);
CREATE INDEX audit_log_at ON audit_log (at, id);
CREATE INDEX audit_log_target ON audit_log (target, id);
CREATE INDEX audit_log_user ON audit_log (user_id, id);
CREATE INDEX audit_log_username ON audit_log (lower(username), id);

-- What came from other installations

CREATE TABLE m1_users (
    old_id  text PRIMARY KEY,
    user_id uuid NOT NULL
);
COMMENT ON TABLE m1_users IS 'Users that `import-m1` has imported, by their id in the first version.';

CREATE TABLE m1_workspaces (
    old_id        text PRIMARY KEY,
    workspace_id  uuid NOT NULL CONSTRAINT m1_workspaces_workspace UNIQUE,
    archive_op_id uuid,
    abandoned     uuid[] NOT NULL DEFAULT '{}',
    imported_at   timestamptz
);
COMMENT ON TABLE m1_workspaces IS 'Likewise workspaces. The proxy redirects their old addresses.';
COMMENT ON COLUMN m1_workspaces.archive_op_id IS 'the copy that counts or is being made';
COMMENT ON COLUMN m1_workspaces.imported_at IS 'from then on the import never changes the workspace';

CREATE TABLE moved_users (
    source  uuid NOT NULL,
    old_id  uuid NOT NULL,
    user_id uuid NOT NULL,
    PRIMARY KEY (source, old_id)
);
COMMENT ON TABLE moved_users IS 'Users that `codehub move` has moved here (docs/move.md).';

CREATE TABLE moved_workspaces (
    source        uuid NOT NULL,
    workspace_id  uuid NOT NULL,
    archive_op_id uuid NOT NULL,
    abandoned     uuid[] NOT NULL DEFAULT '{}',
    version       text NOT NULL DEFAULT '',
    moved_at      timestamptz,
    PRIMARY KEY (source, workspace_id)
);
COMMENT ON TABLE moved_workspaces IS 'Likewise workspaces, which keep their ids.';
COMMENT ON COLUMN moved_workspaces.abandoned IS 'earlier copies, to be removed';
COMMENT ON COLUMN moved_workspaces.version IS 'that was moved: the source removes no other one';

-- Notifications of changes, with ids only: a receiver reads the row. A lost one costs only time.

-- +goose StatementBegin
CREATE FUNCTION notify_workspace() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify(TG_ARGV[0], json_build_object('id', NEW.id, 'owner', NEW.owner_user_id)::text);
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER workspaces_sse_insert AFTER INSERT ON workspaces
    FOR EACH ROW EXECUTE FUNCTION notify_workspace('ws_sse');
CREATE TRIGGER workspaces_sse_update AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN (
        (OLD.phase, OLD.operation, OLD.error_reason, OLD.error_message, OLD.desired_state, OLD.next_desired_state,
         OLD.archive_key, OLD.deleted_at, OLD.progress, OLD.stop_reason,
         OLD.conditions #>> '{infra.container_ready,reason}',
         OLD.name, OLD.description, OLD.memo, OLD.standby_ttl_seconds, OLD.archive_ttl_seconds, OLD.keep_awake_until)
        IS DISTINCT FROM
        (NEW.phase, NEW.operation, NEW.error_reason, NEW.error_message, NEW.desired_state, NEW.next_desired_state,
         NEW.archive_key, NEW.deleted_at, NEW.progress, NEW.stop_reason,
         NEW.conditions #>> '{infra.container_ready,reason}',
         NEW.name, NEW.description, NEW.memo, NEW.standby_ttl_seconds, NEW.archive_ttl_seconds, NEW.keep_awake_until)
    ) EXECUTE FUNCTION notify_workspace('ws_sse');
CREATE TRIGGER workspaces_wake_insert AFTER INSERT ON workspaces
    FOR EACH ROW EXECUTE FUNCTION notify_workspace('ws_wake');
-- A request wakes the controller when it is made, not when the controller has cleared it.
CREATE TRIGGER workspaces_wake_update AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN (
        OLD.desired_state <> NEW.desired_state
        OR OLD.deleted_at IS DISTINCT FROM NEW.deleted_at
        OR (NEW.next_desired_state IS NOT NULL AND OLD.next_desired_state IS DISTINCT FROM NEW.next_desired_state)
        OR (NEW.recover_requested_at IS NOT NULL AND OLD.recover_requested_at IS DISTINCT FROM NEW.recover_requested_at)
        OR (NEW.cancel_requested_at IS NOT NULL AND OLD.cancel_requested_at IS DISTINCT FROM NEW.cancel_requested_at)
        OR (NEW.force_stop_requested_at IS NOT NULL AND OLD.force_stop_requested_at IS DISTINCT FROM NEW.force_stop_requested_at)
    ) EXECUTE FUNCTION notify_workspace('ws_wake');
CREATE TRIGGER workspaces_deleted AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN (OLD.deleted_at IS NULL AND NEW.deleted_at IS NOT NULL)
    EXECUTE FUNCTION notify_workspace('ws_deleted');
-- A later end of the idle timeout, every 20 s at most: each is an event for every open page.
CREATE TRIGGER workspaces_sse_access AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN (
        NEW.last_access_at IS NOT NULL
        AND (OLD.last_access_at IS NULL OR NEW.last_access_at >= OLD.last_access_at + interval '20 seconds')
    ) EXECUTE FUNCTION notify_workspace('ws_sse');
CREATE TRIGGER workspaces_sse_image AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN ((OLD.image_ref, OLD.running_image_ref, OLD.previous_image_ref)
        IS DISTINCT FROM (NEW.image_ref, NEW.running_image_ref, NEW.previous_image_ref))
    EXECUTE FUNCTION notify_workspace('ws_sse');
CREATE TRIGGER workspaces_sse_pin AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN ((OLD.image_generation, OLD.image_pin, OLD.image_newer)
        IS DISTINCT FROM (NEW.image_generation, NEW.image_pin, NEW.image_newer))
    EXECUTE FUNCTION notify_workspace('ws_sse');
CREATE TRIGGER workspaces_sse_env AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN ((OLD.env, OLD.running_env_digest) IS DISTINCT FROM (NEW.env, NEW.running_env_digest))
    EXECUTE FUNCTION notify_workspace('ws_sse');
CREATE TRIGGER workspaces_sse_size AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN ((OLD.size, OLD.running_size) IS DISTINCT FROM (NEW.size, NEW.running_size))
    EXECUTE FUNCTION notify_workspace('ws_sse');
CREATE TRIGGER workspaces_sse_home AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN ((OLD.home_limit, OLD.home_bytes) IS DISTINCT FROM (NEW.home_limit, NEW.home_bytes))
    EXECUTE FUNCTION notify_workspace('ws_sse');

-- A workspace gets another owner: the proxy closes the former owner's connections, whose
-- event streams drop the workspace, and the new owner's show it.
-- +goose StatementBegin
CREATE FUNCTION notify_handover() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('ws_sse', json_build_object('id', NEW.id, 'owner', OLD.owner_user_id)::text);
    PERFORM pg_notify('ws_sse', json_build_object('id', NEW.id, 'owner', NEW.owner_user_id)::text);
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER workspaces_sse_owner AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN (OLD.owner_user_id IS DISTINCT FROM NEW.owner_user_id)
    EXECUTE FUNCTION notify_handover();

-- The proxy and the open pages read the shares again.
-- +goose StatementBegin
CREATE FUNCTION notify_port_share() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    changed uuid := CASE WHEN TG_OP = 'DELETE' THEN OLD.workspace_id ELSE NEW.workspace_id END;
    owner uuid;
BEGIN
    SELECT owner_user_id INTO owner FROM workspaces WHERE id = changed;
    IF FOUND THEN
        PERFORM pg_notify('ws_sse', json_build_object('id', changed, 'owner', owner)::text);
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER port_shares_sse AFTER INSERT OR UPDATE OR DELETE ON port_shares
    FOR EACH ROW EXECUTE FUNCTION notify_port_share();

-- The proxy, attachments and open pages read who has access again.
-- +goose StatementBegin
CREATE FUNCTION notify_shared(which uuid[]) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('ws_sse', json_build_object('id', id, 'owner', owner_user_id)::text) FROM workspaces WHERE id = ANY (which);
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION notify_workspace_share() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM notify_shared(ARRAY[CASE WHEN TG_OP = 'DELETE' THEN OLD.workspace_id ELSE NEW.workspace_id END]);
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER workspace_shares_sse AFTER INSERT OR UPDATE OR DELETE ON workspace_shares
    FOR EACH ROW EXECUTE FUNCTION notify_workspace_share();

-- +goose StatementBegin
CREATE FUNCTION notify_group_people() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    changed uuid[];
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'group_members' THEN
        changed := ARRAY[CASE WHEN TG_OP = 'DELETE' THEN OLD.group_id ELSE NEW.group_id END];
    WHEN 'user_groups' THEN
        changed := ARRAY[NEW.id];
    WHEN 'user_claim_groups' THEN
        changed := ARRAY(SELECT id FROM user_groups WHERE claim = CASE WHEN TG_OP = 'DELETE' THEN OLD.name ELSE NEW.name END);
    WHEN 'user_identities' THEN
        changed := ARRAY(SELECT g.id FROM user_groups g JOIN user_claim_groups c ON c.name = g.claim WHERE c.identity_id = NEW.id);
    END CASE;
    PERFORM notify_shared(ARRAY(SELECT DISTINCT workspace_id FROM workspace_shares WHERE group_id = ANY (changed)));
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER group_members_shared AFTER INSERT OR DELETE ON group_members
    FOR EACH ROW EXECUTE FUNCTION notify_group_people();
CREATE TRIGGER user_groups_shared AFTER UPDATE ON user_groups
    FOR EACH ROW WHEN ((OLD.claim, OLD.claim_issuer) IS DISTINCT FROM (NEW.claim, NEW.claim_issuer))
    EXECUTE FUNCTION notify_group_people();
CREATE TRIGGER user_claim_groups_shared AFTER INSERT OR DELETE ON user_claim_groups
    FOR EACH ROW EXECUTE FUNCTION notify_group_people();
CREATE TRIGGER user_identities_shared AFTER UPDATE ON user_identities
    FOR EACH ROW WHEN (OLD.active IS DISTINCT FROM NEW.active) EXECUTE FUNCTION notify_group_people();

-- Guests of an owner who is not active have no access, and the owner's shared ports have no
-- effect. Guests who are not active themselves lose their sessions.
-- +goose StatementBegin
CREATE FUNCTION notify_owner_active() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM notify_shared(ARRAY(
        SELECT id FROM workspaces w
        WHERE owner_user_id = NEW.id AND (EXISTS (SELECT FROM workspace_shares s WHERE s.workspace_id = w.id) OR EXISTS (SELECT FROM port_shares p WHERE p.workspace_id = w.id))));
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER users_shared AFTER UPDATE ON users
    FOR EACH ROW WHEN (OLD.active IS DISTINCT FROM NEW.active) EXECUTE FUNCTION notify_owner_active();

-- The end of a session or of an API token, with its hash in hex.
-- +goose StatementBegin
CREATE FUNCTION notify_session_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('auth_changed', json_build_object('user', OLD.user_id, 'session', encode(OLD.hash, 'hex'))::text);
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER sessions_ended AFTER DELETE ON sessions
    FOR EACH ROW EXECUTE FUNCTION notify_session_ended();
CREATE TRIGGER api_tokens_ended AFTER DELETE ON api_tokens
    FOR EACH ROW EXECUTE FUNCTION notify_session_ended();
CREATE TRIGGER ssh_keys_ended AFTER DELETE ON ssh_keys
    FOR EACH ROW EXECUTE FUNCTION notify_session_ended();

-- Connections and caches of the session end with it. Its hash names it; it has no user of its own.
-- +goose StatementBegin
CREATE FUNCTION notify_workspace_session_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('auth_changed', json_build_object('user', '', 'session', encode(OLD.hash, 'hex'))::text);
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER workspace_sessions_ended AFTER DELETE ON workspace_sessions
    FOR EACH ROW EXECUTE FUNCTION notify_workspace_session_ended();

-- +goose StatementBegin
CREATE FUNCTION notify_user_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('auth_changed', json_build_object('user', OLD.id, 'session', '')::text);
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER users_changed AFTER UPDATE ON users
    FOR EACH ROW WHEN (
        (OLD.username, OLD.password_hash, OLD.admin, OLD.active, OLD.max_running)
        IS DISTINCT FROM
        (NEW.username, NEW.password_hash, NEW.admin, NEW.active, NEW.max_running)
    ) EXECUTE FUNCTION notify_user_changed();
CREATE TRIGGER users_removed AFTER DELETE ON users
    FOR EACH ROW EXECUTE FUNCTION notify_user_changed();

-- Open pages read the notices of the user again, those of all users if there is no user.
-- +goose StatementBegin
CREATE FUNCTION notify_notices() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_TABLE_NAME = 'banner' THEN
        PERFORM pg_notify('notices_changed', json_build_object('user', '')::text);
    ELSE
        PERFORM pg_notify('notices_changed', json_build_object('user', COALESCE(NEW.user_id, OLD.user_id))::text);
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER user_notices_changed AFTER INSERT OR DELETE ON user_notices
    FOR EACH ROW EXECUTE FUNCTION notify_notices();
CREATE TRIGGER banner_changed AFTER INSERT OR UPDATE OR DELETE ON banner
    FOR EACH ROW EXECUTE FUNCTION notify_notices();
-- The owner reads them among the notices.
CREATE TRIGGER hand_over_requests_changed AFTER INSERT OR UPDATE OR DELETE ON hand_over_requests
    FOR EACH ROW EXECUTE FUNCTION notify_notices();

-- What ends with something else

-- What a former owner has shared does not stay shared.
-- +goose StatementBegin
CREATE FUNCTION end_port_shares() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM port_shares WHERE workspace_id = NEW.id;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER workspaces_end_port_shares AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN (OLD.owner_user_id IS DISTINCT FROM NEW.owner_user_id)
    EXECUTE FUNCTION end_port_shares();

-- What a former owner has shared does not stay shared.
-- +goose StatementBegin
CREATE FUNCTION end_workspace_shares() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM workspace_shares WHERE workspace_id = NEW.id;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER workspaces_end_shares AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN (OLD.owner_user_id IS DISTINCT FROM NEW.owner_user_id)
    EXECUTE FUNCTION end_workspace_shares();

-- A notice of a share ends with it, unless another share gives the user access.
-- +goose StatementBegin
CREATE FUNCTION end_share_notices() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM user_notices n
    WHERE n.kind = 'shared' AND n.workspace_id = OLD.workspace_id
        AND NOT EXISTS (SELECT FROM workspace_guests g WHERE g.workspace_id = n.workspace_id AND g.user_id = n.user_id);
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER workspace_shares_notices AFTER DELETE ON workspace_shares
    FOR EACH ROW EXECUTE FUNCTION end_share_notices();

-- The values may be secrets of the former owner.
-- +goose StatementBegin
CREATE FUNCTION clear_environment() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.env := NULL;
    NEW.time_zone := NULL;
    RETURN NEW;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER workspaces_environment_owner BEFORE UPDATE ON workspaces
    FOR EACH ROW WHEN (OLD.owner_user_id IS DISTINCT FROM NEW.owner_user_id)
    EXECUTE FUNCTION clear_environment();

-- +goose StatementBegin
CREATE FUNCTION codehub_suspended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.suspended_for IS NULL THEN
        NEW.suspended_at := NULL;
    ELSIF OLD.suspended_for IS NULL THEN
        NEW.suspended_at := now();
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER users_suspended BEFORE UPDATE ON users FOR EACH ROW
    WHEN (OLD.suspended_for IS DISTINCT FROM NEW.suspended_for) EXECUTE FUNCTION codehub_suspended();

-- Who may use a workspace can leave code there that takes a session of another visitor on the
-- workspace's host. So when a guest may no longer use it, the sessions of all its visitors end.
-- Tickets first: a ticket that is being redeemed is waited for, and the next statement sees the
-- session that it became.
-- +goose StatementBegin
CREATE FUNCTION end_visits(which uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM tickets WHERE workspace_id = ANY (which);
    DELETE FROM workspace_sessions WHERE workspace_id = ANY (which);
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION end_visits_of_share() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM end_visits(ARRAY[OLD.workspace_id]);
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER workspace_shares_ended AFTER DELETE ON workspace_shares
    FOR EACH ROW WHEN (OLD.access = 'use') EXECUTE FUNCTION end_visits_of_share();
CREATE TRIGGER workspace_shares_narrowed AFTER UPDATE ON workspace_shares
    FOR EACH ROW WHEN (OLD.access = 'use' AND NEW.access <> 'use') EXECUTE FUNCTION end_visits_of_share();

-- +goose StatementBegin
CREATE FUNCTION end_visits_of_members() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    changed uuid[];
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'group_members' THEN
        changed := ARRAY[OLD.group_id];
    WHEN 'user_groups' THEN
        changed := ARRAY[OLD.id];
    WHEN 'user_claim_groups' THEN
        changed := ARRAY(SELECT id FROM user_groups WHERE claim = OLD.name);
    WHEN 'user_identities' THEN
        changed := ARRAY(SELECT g.id FROM user_groups g JOIN user_claim_groups c ON c.name = g.claim WHERE c.identity_id = OLD.id);
    END CASE;
    PERFORM end_visits(ARRAY(SELECT DISTINCT workspace_id FROM workspace_shares WHERE access = 'use' AND group_id = ANY (changed)));
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER group_members_ended AFTER DELETE ON group_members
    FOR EACH ROW EXECUTE FUNCTION end_visits_of_members();
CREATE TRIGGER user_claim_groups_ended AFTER DELETE ON user_claim_groups
    FOR EACH ROW EXECUTE FUNCTION end_visits_of_members();
CREATE TRIGGER user_groups_claim_ended AFTER UPDATE ON user_groups
    FOR EACH ROW WHEN ((OLD.claim, OLD.claim_issuer) IS DISTINCT FROM (NEW.claim, NEW.claim_issuer))
    EXECUTE FUNCTION end_visits_of_members();
CREATE TRIGGER user_identities_ended AFTER UPDATE ON user_identities
    FOR EACH ROW WHEN (OLD.active AND NOT NEW.active) EXECUTE FUNCTION end_visits_of_members();

-- A guest who is disabled or suspended.
-- +goose StatementBegin
CREATE FUNCTION end_visits_of_user() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM end_visits(ARRAY(
        SELECT DISTINCT workspace_id FROM workspace_shares
        WHERE access = 'use' AND (user_id = NEW.id OR group_id IN (SELECT group_id FROM group_people WHERE user_id = NEW.id))));
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER users_visits_ended AFTER UPDATE ON users
    FOR EACH ROW WHEN (OLD.active AND NOT NEW.active) EXECUTE FUNCTION end_visits_of_user();

-- What no code can change

-- Whatever the code does: no workspace comes to name an archive that is going.
-- +goose StatementBegin
CREATE FUNCTION check_archive_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM archives
        WHERE key IN (NEW.archive_key, NEW.recover_archive ->> 'key') AND deleting_at IS NOT NULL)
    THEN
        RAISE EXCEPTION 'workspace % would name an archive that is being removed', NEW.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'workspaces_archive_is_kept';
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER workspaces_archive_insert AFTER INSERT ON workspaces
    FOR EACH ROW WHEN (NEW.archive_key IS NOT NULL AND NEW.deleted_at IS NULL)
    EXECUTE FUNCTION check_archive_is_kept();
CREATE TRIGGER workspaces_archive_update AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN (
        NEW.archive_key IS NOT NULL AND OLD.archive_key IS DISTINCT FROM NEW.archive_key
        OR NEW.recover_archive IS NOT NULL AND OLD.recover_archive IS DISTINCT FROM NEW.recover_archive
        OR OLD.deleted_at IS NOT NULL AND NEW.deleted_at IS NULL
    ) EXECUTE FUNCTION check_archive_is_kept();

-- Entries are added and never changed. Only those that are at least a day old can be removed,
-- by the retention. See docs/adr/0025.
-- +goose StatementBegin
CREATE FUNCTION keep_audit_log() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND OLD.at < clock_timestamp() - interval '1 day' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'entries of the audit log cannot be changed or removed' USING ERRCODE = 'insufficient_privilege';
END
$$;
-- +goose StatementEnd
CREATE TRIGGER audit_log_rows BEFORE UPDATE OR DELETE ON audit_log
    FOR EACH ROW EXECUTE FUNCTION keep_audit_log();
CREATE TRIGGER audit_log_truncate BEFORE TRUNCATE ON audit_log
    FOR EACH STATEMENT EXECUTE FUNCTION keep_audit_log();

-- The time of an entry is that at which it is added: none can be antedated.
-- +goose StatementBegin
CREATE FUNCTION stamp_audit_log() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.at := clock_timestamp();
    RETURN NEW;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER audit_log_stamp BEFORE INSERT ON audit_log
    FOR EACH ROW EXECUTE FUNCTION stamp_audit_log();
