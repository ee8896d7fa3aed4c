-- +goose Up

-- The limit that the volume of the home has, as the controller observes it; 0: none. The last
-- start that was requested to free space in a home over its limit, and the size of the home then.
ALTER TABLE workspaces
    ADD COLUMN home_limit bigint NOT NULL DEFAULT 0 CHECK (home_limit >= 0),
    ADD COLUMN freeing_at timestamptz,
    ADD COLUMN freeing_from bigint NOT NULL DEFAULT 0;

CREATE TRIGGER workspaces_sse_home AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN ((OLD.home_limit, OLD.home_bytes) IS DISTINCT FROM (NEW.home_limit, NEW.home_bytes))
    EXECUTE FUNCTION notify_workspace('ws_sse');

-- +goose Down

DROP TRIGGER workspaces_sse_home ON workspaces;
ALTER TABLE workspaces DROP COLUMN home_limit, DROP COLUMN freeing_at, DROP COLUMN freeing_from;
