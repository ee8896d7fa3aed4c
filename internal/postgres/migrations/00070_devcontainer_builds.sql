-- +goose Up

-- Builds of images from the files of repositories. Servers of the version before go on: they build none.
CREATE TABLE devcontainer_builds (
    workspace_id uuid PRIMARY KEY REFERENCES workspaces (id) ON DELETE CASCADE,
    id           uuid NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    user_id      uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    file         text NOT NULL CHECK (file <> ''),
    image        text NOT NULL DEFAULT '',
    state        text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'building', 'done', 'failed', 'canceled')),
    step         text NOT NULL DEFAULT '',
    error        text NOT NULL DEFAULT '',
    log          text NOT NULL DEFAULT '',
    ignored      jsonb NOT NULL DEFAULT '[]',
    canceled     boolean NOT NULL DEFAULT false,
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at     timestamptz,
    CONSTRAINT devcontainer_builds_ended CHECK ((ended_at IS NULL) = (state IN ('waiting', 'building')))
);
CREATE INDEX devcontainer_builds_user ON devcontainer_builds (user_id);
COMMENT ON TABLE devcontainer_builds IS 'The last build of an image from a devcontainer.json of each workspace (docs/devcontainer.md)';
COMMENT ON COLUMN devcontainer_builds.id IS 'that of the build: an earlier one no longer writes';
COMMENT ON COLUMN devcontainer_builds.user_id IS 'the owner of the workspace, who has one build at a time';
COMMENT ON COLUMN devcontainer_builds.image IS 'what it builds; empty: not yet known';
COMMENT ON COLUMN devcontainer_builds.log IS 'the end of what the build printed';
COMMENT ON COLUMN devcontainer_builds.ignored IS 'what its Features ask for and do not get';
COMMENT ON COLUMN devcontainer_builds.canceled IS 'the server that builds is asked to end it';
COMMENT ON COLUMN devcontainer_builds.seen_at IS 'when that server last wrote; a build that is not seen has ended with its server';
