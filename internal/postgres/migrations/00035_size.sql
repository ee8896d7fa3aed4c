-- +goose Up

-- A workspace has one of the sizes that administrators offer, by its name; NULL is the default
-- one. The next start uses it, so the size of the present container is kept with it.
ALTER TABLE workspaces
    ADD COLUMN size varchar(40),
    ADD COLUMN running_size varchar(40);

CREATE TRIGGER workspaces_sse_size AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN ((OLD.size, OLD.running_size) IS DISTINCT FROM (NEW.size, NEW.running_size))
    EXECUTE FUNCTION notify_workspace('ws_sse');

-- +goose Down

DROP TRIGGER workspaces_sse_size ON workspaces;
ALTER TABLE workspaces DROP COLUMN size, DROP COLUMN running_size;
