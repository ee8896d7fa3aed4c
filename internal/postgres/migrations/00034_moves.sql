-- +goose Up

-- Until when administrators may move workspaces to another installation; null: never.
ALTER TABLE installation ADD COLUMN moves_until timestamptz;

-- What codehub move has brought here from other installations. Nothing is referenced: what
-- users have removed here since is not moved a second time.
CREATE TABLE moved_users (
    source  uuid NOT NULL,
    old_id  uuid NOT NULL,
    user_id uuid NOT NULL,
    PRIMARY KEY (source, old_id)
);

CREATE TABLE moved_workspaces (
    source        uuid NOT NULL,
    workspace_id  uuid NOT NULL,
    archive_op_id uuid NOT NULL,
    abandoned     uuid[] NOT NULL DEFAULT '{}',
    version       text NOT NULL DEFAULT '',
    moved_at      timestamptz,
    PRIMARY KEY (source, workspace_id)
);

-- +goose Down

DROP TABLE moved_workspaces;
DROP TABLE moved_users;
ALTER TABLE installation DROP COLUMN moves_until;
