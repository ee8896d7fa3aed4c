-- Many servers on one database: who they are, what each has handed on of what
-- people did, which time nobody watched, and what the backend holds that no
-- workspace owns.

-- +goose Up
ALTER TABLE replicas
    -- What it can reach, for administrators: {"<backend>": {…}}.
    ADD COLUMN health jsonb NOT NULL DEFAULT '{}',
    -- What all servers of an installation must have in common, by name.
    ADD COLUMN settings jsonb NOT NULL DEFAULT '{}',
    -- Where what it flushed was put: 'database', or the epoch of the bus, which
    -- ends when the bus loses what it held. NULL before the first flush.
    ADD COLUMN flush_epoch text;

-- Activity is recorded through this time, which is "now" for idle timeouts
-- (docs/states.md#which-time-counts). Only the leader moves it.
CREATE TABLE activity_clock (
    only_row      boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    watched_until timestamptz
);
INSERT INTO activity_clock DEFAULT VALUES;

-- Times in which nobody saw what people did: they count for no workspace.
CREATE TABLE unwatched (
    began timestamptz PRIMARY KEY,
    ended timestamptz NOT NULL CHECK (ended > began)
);
CREATE INDEX unwatched_ended ON unwatched (ended);

-- How much of the time since base nobody watched.
-- +goose StatementBegin
CREATE FUNCTION unwatched_since(base timestamptz) RETURNS interval LANGUAGE sql STABLE AS $$
    SELECT COALESCE(sum(ended - GREATEST(began, base)), '0') FROM unwatched WHERE ended > base
$$;
-- +goose StatementEnd

-- Why desired_state is what it is, where nobody asked for it: idle (the
-- standby TTL) or unused (the archive TTL). Whoever writes desired_state
-- writes this.
ALTER TABLE workspaces
    ADD COLUMN desired_cause text CHECK (desired_cause IN ('idle', 'unused'));

-- A later end is news to whoever watches the time that is left. Rarely: each
-- is an event for every open page.
CREATE TRIGGER workspaces_sse_access AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN (
        NEW.last_access_at IS NOT NULL
        AND (OLD.last_access_at IS NULL OR NEW.last_access_at >= OLD.last_access_at + interval '20 seconds')
    ) EXECUTE FUNCTION notify_workspace('ws_sse');

-- What the backend holds of this installation and no workspace owns. The
-- leader alone writes it.
CREATE TABLE orphans (
    kind          text NOT NULL CHECK (kind IN ('container', 'volume', 'job')),
    name          text NOT NULL,
    workspace_id  text NOT NULL DEFAULT '',
    detail        text NOT NULL DEFAULT '',
    -- It is not removed by itself: a home, or one of suspiciously many.
    kept          boolean NOT NULL DEFAULT false,
    first_seen_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, name)
);

-- What event streams tell to be gone.
CREATE INDEX workspaces_deleted_by_owner ON workspaces (owner_user_id, deleted_at DESC) WHERE deleted_at IS NOT NULL;
