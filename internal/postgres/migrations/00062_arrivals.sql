-- +goose Up

-- One record of what came from elsewhere. Servers of the version before read m1_workspaces.
UPDATE compatibility SET works_since = 62;
CREATE TABLE arrivals (
    source        text NOT NULL,
    kind          text NOT NULL CHECK (kind IN ('user', 'workspace')),
    old_id        text NOT NULL,
    id            uuid NOT NULL,
    archive_op_id uuid,
    abandoned     uuid[] NOT NULL DEFAULT '{}',
    version       text NOT NULL DEFAULT '',
    arrived_at    timestamptz,
    PRIMARY KEY (source, kind, old_id)
);
COMMENT ON TABLE arrivals IS 'Users and workspaces that `codehub import` has brought here (docs/move.md). The proxy redirects old addresses of the first version.';
COMMENT ON COLUMN arrivals.source IS 'the installation, or `first-version`';
COMMENT ON COLUMN arrivals.old_id IS 'there; `id` is the one here';
COMMENT ON COLUMN arrivals.archive_op_id IS 'the copy that counts or is being made';
COMMENT ON COLUMN arrivals.abandoned IS 'earlier copies, to be removed';
COMMENT ON COLUMN arrivals.version IS 'that was imported: the source removes no other one';
COMMENT ON COLUMN arrivals.arrived_at IS 'from then on an import never changes the workspace';
INSERT INTO arrivals (source, kind, old_id, id, arrived_at) SELECT 'first-version', 'user', old_id, user_id, now() FROM m1_users;
INSERT INTO arrivals (source, kind, old_id, id, arrived_at) SELECT source::text, 'user', old_id::text, user_id, now() FROM moved_users;
INSERT INTO arrivals (source, kind, old_id, id, archive_op_id, abandoned, arrived_at)
    SELECT 'first-version', 'workspace', old_id, workspace_id, archive_op_id, abandoned, imported_at FROM m1_workspaces;
INSERT INTO arrivals (source, kind, old_id, id, archive_op_id, abandoned, version, arrived_at)
    SELECT source::text, 'workspace', workspace_id::text, workspace_id, archive_op_id, abandoned, version, moved_at FROM moved_workspaces;
DROP TABLE m1_users, m1_workspaces, moved_users, moved_workspaces;
