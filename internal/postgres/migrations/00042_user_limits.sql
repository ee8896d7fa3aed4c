-- +goose Up

-- Limits of one user; null: the server's, 0: none. The row of a deleted user stays, since
-- workspaces and the audit log name it; its name is free again.
ALTER TABLE users
    ADD COLUMN max_workspaces integer CHECK (max_workspaces >= 0),
    ADD COLUMN max_bytes bigint CHECK (max_bytes >= 0),
    ADD COLUMN removed_at timestamptz,
    ADD CONSTRAINT users_removed CHECK (removed_at IS NULL OR disabled AND NOT admin);

-- +goose Down

ALTER TABLE users DROP CONSTRAINT users_removed, DROP COLUMN removed_at, DROP COLUMN max_bytes, DROP COLUMN max_workspaces;
