-- +goose Up

-- A session has an id that its owner can be shown, and the time of its last use.
ALTER TABLE sessions
    ADD COLUMN id uuid NOT NULL DEFAULT gen_random_uuid() CONSTRAINT sessions_id UNIQUE,
    ADD COLUMN last_used_at timestamptz;

-- The stop of a restart: a queued start follows it.
ALTER TABLE workspaces DROP CONSTRAINT workspaces_desired_cause_check;
ALTER TABLE workspaces ADD CONSTRAINT workspaces_desired_cause_check
    CHECK (desired_cause IN ('idle', 'unused', 'restart'));

-- +goose Down

UPDATE workspaces SET desired_cause = NULL WHERE desired_cause = 'restart';
ALTER TABLE workspaces DROP CONSTRAINT workspaces_desired_cause_check;
ALTER TABLE workspaces ADD CONSTRAINT workspaces_desired_cause_check
    CHECK (desired_cause IN ('idle', 'unused'));
ALTER TABLE sessions DROP COLUMN last_used_at, DROP COLUMN id;
