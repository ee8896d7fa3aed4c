-- +goose Up

-- Whether processes that are at work keep the workspace awake, if its owner wants that.
ALTER TABLE workspaces ADD COLUMN awake_while_working boolean NOT NULL DEFAULT false;

-- What agents have confirmed: since when a workspace is held awake without another use, and
-- for how long processes at work have kept it awake on a day (UTC).
CREATE TABLE workspace_busy (
    workspace_id uuid PRIMARY KEY REFERENCES workspaces (id) ON DELETE CASCADE,
    confirmed_at timestamptz NOT NULL,
    held_since   timestamptz,
    work_day     date,
    work_seconds integer NOT NULL DEFAULT 0 CHECK (work_seconds >= 0)
);

-- +goose Down

DROP TABLE workspace_busy;
ALTER TABLE workspaces DROP COLUMN awake_while_working;
