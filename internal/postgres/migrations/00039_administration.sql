-- +goose Up

-- state is the state for display: the rule of lifecycle.StateOf, in SQL, by which administrators
-- sort and filter the workspaces of all users. The bytes are those of the last measurement.
ALTER TABLE workspaces
    ADD COLUMN home_bytes bigint CHECK (home_bytes >= 0),
    ADD COLUMN archives_bytes bigint CHECK (archives_bytes >= 0),
    ADD COLUMN total_bytes bigint NOT NULL GENERATED ALWAYS AS (COALESCE(home_bytes, 0) + COALESCE(archives_bytes, 0)) STORED,
    ADD COLUMN state text NOT NULL GENERATED ALWAYS AS (CASE
        WHEN phase = 'DELETED' THEN 'deleted'
        WHEN deleted_at IS NOT NULL THEN CASE
            WHEN COALESCE(error_reason, 'ActionFailed') NOT IN ('ActionFailed', 'Unreachable', 'Unrestorable') THEN 'delete_failed'
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
    END) STORED;

CREATE INDEX workspaces_all_name ON workspaces (lower(name) COLLATE "C", id) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_all_state ON workspaces (state COLLATE "C", id) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_all_image ON workspaces (image_ref COLLATE "C", id) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_all_size ON workspaces (total_bytes, id) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_all_last_use ON workspaces (COALESCE(last_access_at, created_at), id) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_all_created ON workspaces (created_at, id) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_all_owner ON workspaces (owner_user_id, id) WHERE deleted_at IS NULL;
CREATE INDEX users_by_name ON users (username_key COLLATE "C", id);

-- What workspaces used, by day (UTC) and owner. Written by the leader.
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
CREATE INDEX workspace_usage_day ON workspace_usage (day, workspace_id);

-- +goose Down

DROP TABLE workspace_usage;
DROP INDEX users_by_name;
DROP INDEX workspaces_all_name, workspaces_all_state, workspaces_all_image, workspaces_all_size, workspaces_all_last_use, workspaces_all_created, workspaces_all_owner;
ALTER TABLE workspaces DROP COLUMN state, DROP COLUMN total_bytes, DROP COLUMN home_bytes, DROP COLUMN archives_bytes;
