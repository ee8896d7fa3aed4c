-- +goose Up

-- A new owner gets the workspace, and the proxy closes the former owner's connections.
CREATE TRIGGER workspaces_sse_owner AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN (OLD.owner_user_id IS DISTINCT FROM NEW.owner_user_id)
    EXECUTE FUNCTION notify_workspace('ws_sse');

-- +goose Down

DROP TRIGGER workspaces_sse_owner ON workspaces;
