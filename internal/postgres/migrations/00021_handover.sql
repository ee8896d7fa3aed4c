-- +goose Up

-- A workspace gets another owner: the proxy closes the former owner's connections, whose
-- event streams drop the workspace, and the new owner's show it.
-- +goose StatementBegin
CREATE FUNCTION notify_handover() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('ws_sse', json_build_object('id', NEW.id, 'owner', OLD.owner_user_id)::text);
    PERFORM pg_notify('ws_sse', json_build_object('id', NEW.id, 'owner', NEW.owner_user_id)::text);
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER workspaces_sse_owner AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN (OLD.owner_user_id IS DISTINCT FROM NEW.owner_user_id)
    EXECUTE FUNCTION notify_handover();

-- +goose Down

DROP TRIGGER workspaces_sse_owner ON workspaces;
DROP FUNCTION notify_handover();
