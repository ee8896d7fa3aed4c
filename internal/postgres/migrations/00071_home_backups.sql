-- +goose Up

-- Backups of homes in use. Servers of the version before go on: they make none, and restore none.
CREATE TABLE home_backups (
    id           uuid PRIMARY KEY,
    workspace_id uuid NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    state        text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'running', 'done', 'failed')),
    cause        text NOT NULL CHECK (cause IN ('schedule', 'request', 'archive', 'restore', 'image', 'hand_over')),
    note         text NOT NULL DEFAULT '',
    key          varchar(1024) UNIQUE,
    digest       text NOT NULL DEFAULT '',
    size         bigint NOT NULL DEFAULT 0,
    entries      bigint NOT NULL DEFAULT 0,
    files        bigint NOT NULL DEFAULT 0,
    bytes        bigint NOT NULL DEFAULT 0,
    skipped      bigint NOT NULL DEFAULT 0,
    stored       bigint NOT NULL DEFAULT 0,
    changed      bigint NOT NULL DEFAULT 0,
    problems     bigint NOT NULL DEFAULT 0,
    added        bigint NOT NULL DEFAULT 0,
    modified     bigint NOT NULL DEFAULT 0,
    removed      bigint NOT NULL DEFAULT 0,
    error        text NOT NULL DEFAULT '',
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    begun_at     timestamptz,
    ended_at     timestamptz,
    unchanged_at timestamptz,
    verified_at  timestamptz,
    damage       text NOT NULL DEFAULT '',
    expired_at   timestamptz,
    CONSTRAINT home_backups_done CHECK (state <> 'done' OR key IS NOT NULL AND digest <> '' AND ended_at IS NOT NULL)
);
CREATE UNIQUE INDEX home_backups_present ON home_backups (workspace_id) WHERE state IN ('waiting', 'running');
CREATE INDEX home_backups_listed ON home_backups (workspace_id, created_at DESC, id) WHERE expired_at IS NULL;
CREATE INDEX home_backups_expired ON home_backups (expired_at) WHERE expired_at IS NOT NULL;
COMMENT ON TABLE home_backups IS 'Backups of homes that are or were in use ([archives](archives.md#backups)). Requests insert waiting rows; the leader writes the rest';
COMMENT ON COLUMN home_backups.cause IS 'why it is made; the last four: before this step';
COMMENT ON COLUMN home_backups.key IS 'of its manifest in the bucket, recorded before the job starts';
COMMENT ON COLUMN home_backups.digest IS 'SHA-256 of the manifest, whose length is size';
COMMENT ON COLUMN home_backups.stored IS 'bytes of the packs that it added';
COMMENT ON COLUMN home_backups.changed IS 'files that changed while they were read';
COMMENT ON COLUMN home_backups.problems IS 'files that could not be read';
COMMENT ON COLUMN home_backups.added IS 'files that the backup before does not have; modified and removed likewise';
COMMENT ON COLUMN home_backups.unchanged_at IS 'a later look found the home as this backup has it';
COMMENT ON COLUMN home_backups.verified_at IS 'when a drill last compared all of it';
COMMENT ON COLUMN home_backups.damage IS 'what that drill found; empty: nothing';
COMMENT ON COLUMN home_backups.expired_at IS 'from then on it is not listed, and its objects are removed once no job can need them';

ALTER TABLE workspaces ADD COLUMN restore_from jsonb,
    ADD COLUMN backup_interval_seconds integer CHECK (backup_interval_seconds >= 0),
    ADD COLUMN backup_keep varchar(100);
COMMENT ON COLUMN workspaces.restore_from IS 'the backup that is to replace the home, which is archived first';
COMMENT ON COLUMN workspaces.backup_interval_seconds IS 'between two backups of the home; null: the server''s, 0: none';
COMMENT ON COLUMN workspaces.backup_keep IS 'which backups are kept; null: the server''s rule';
