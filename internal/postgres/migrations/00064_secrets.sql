-- +goose Up

-- Secrets of users and groups. Servers of the version before go on: they deliver none.
CREATE TABLE secrets (
    id           uuid PRIMARY KEY,
    user_id      uuid REFERENCES users (id) ON DELETE CASCADE,
    group_id     uuid REFERENCES user_groups (id) ON DELETE CASCADE,
    workspace_id uuid REFERENCES workspaces (id) ON DELETE CASCADE,
    name         text NOT NULL CHECK (name <> ''),
    variable     text NOT NULL DEFAULT '',
    path         text NOT NULL DEFAULT '',
    value        bytea NOT NULL,
    size         integer NOT NULL CHECK (size > 0),
    version      integer NOT NULL DEFAULT 1,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (num_nonnulls(user_id, group_id) = 1),
    CHECK (variable <> '' OR path <> ''),
    CHECK (workspace_id IS NULL OR user_id IS NOT NULL)
);
COMMENT ON TABLE secrets IS 'Secrets of users and of groups (docs/secrets.md). Only the start of a workspace and a rotation of the keys read a value.';
COMMENT ON COLUMN secrets.user_id IS 'null: it is of a group';
COMMENT ON COLUMN secrets.workspace_id IS 'null: for all workspaces of the user, or of the group''s members';
COMMENT ON COLUMN secrets.variable IS 'environment variable; empty: none';
COMMENT ON COLUMN secrets.path IS 'file, such as `~/.npmrc`; empty: none';
COMMENT ON COLUMN secrets.value IS 'encrypted for this row and its owner (docs/security.md#encrypted-values)';
COMMENT ON COLUMN secrets.size IS 'bytes of the value';
COMMENT ON COLUMN secrets.version IS 'counts changes that a running workspace does not have';
CREATE UNIQUE INDEX secrets_name ON secrets (COALESCE(user_id, group_id), name);
CREATE UNIQUE INDEX secrets_variable ON secrets (COALESCE(user_id, group_id), COALESCE(workspace_id, '00000000-0000-0000-0000-000000000000'), variable) WHERE variable <> '';
CREATE UNIQUE INDEX secrets_path ON secrets (COALESCE(user_id, group_id), COALESCE(workspace_id, '00000000-0000-0000-0000-000000000000'), path) WHERE path <> '';
CREATE INDEX secrets_group ON secrets (group_id) WHERE group_id IS NOT NULL;
CREATE INDEX secrets_workspace ON secrets (workspace_id) WHERE workspace_id IS NOT NULL;
