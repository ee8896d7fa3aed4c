-- +goose Up

-- Ports of workspaces that their owners share with other users, or with any visitor.
CREATE TABLE port_shares (
    workspace_id uuid NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    port         integer NOT NULL CHECK (port BETWEEN 1 AND 65535),
    visible_to   text NOT NULL CHECK (visible_to IN ('users', 'public')),
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,
    PRIMARY KEY (workspace_id, port),
    CHECK (visible_to <> 'public' OR expires_at IS NOT NULL)
);

-- The proxy and the open pages read the shares again.
-- +goose StatementBegin
CREATE FUNCTION notify_port_share() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    changed uuid := CASE WHEN TG_OP = 'DELETE' THEN OLD.workspace_id ELSE NEW.workspace_id END;
    owner uuid;
BEGIN
    SELECT owner_user_id INTO owner FROM workspaces WHERE id = changed;
    IF FOUND THEN
        PERFORM pg_notify('ws_sse', json_build_object('id', changed, 'owner', owner)::text);
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER port_shares_sse AFTER INSERT OR UPDATE OR DELETE ON port_shares
    FOR EACH ROW EXECUTE FUNCTION notify_port_share();

-- What a former owner has shared does not stay shared.
-- +goose StatementBegin
CREATE FUNCTION end_port_shares() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM port_shares WHERE workspace_id = NEW.id;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER workspaces_end_port_shares AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN (OLD.owner_user_id IS DISTINCT FROM NEW.owner_user_id)
    EXECUTE FUNCTION end_port_shares();

-- +goose Down

DROP TRIGGER workspaces_end_port_shares ON workspaces;
DROP FUNCTION end_port_shares();
DROP TABLE port_shares;
DROP FUNCTION notify_port_share();
