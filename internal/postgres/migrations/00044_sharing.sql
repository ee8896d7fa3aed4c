-- +goose Up

-- With whom owners share their workspaces: 'use' lets in, 'view' shows the state.
CREATE TABLE workspace_shares (
    id           uuid PRIMARY KEY,
    workspace_id uuid NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    user_id      uuid REFERENCES users (id) ON DELETE CASCADE,
    group_id     uuid REFERENCES user_groups (id) ON DELETE CASCADE,
    access       text NOT NULL CHECK (access IN ('use', 'view')),
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK ((user_id IS NULL) <> (group_id IS NULL)),
    CONSTRAINT workspace_shares_user UNIQUE (workspace_id, user_id),
    CONSTRAINT workspace_shares_group UNIQUE (workspace_id, group_id)
);
CREATE INDEX workspace_shares_of_user ON workspace_shares (user_id) WHERE user_id IS NOT NULL;
CREATE INDEX workspace_shares_of_group ON workspace_shares (group_id) WHERE group_id IS NOT NULL;

-- Who has access to whose workspace now. Nobody has while the owner or the guest is not active, or
-- the workspace is deleted.
CREATE VIEW workspace_guests AS
    SELECT s.workspace_id, p.user_id, bool_or(s.access = 'use') AS may_use
    FROM workspace_shares s
    JOIN workspaces w ON w.id = s.workspace_id AND w.deleted_at IS NULL
    JOIN users o ON o.id = w.owner_user_id AND o.active
    JOIN LATERAL (
        SELECT s.user_id WHERE s.user_id IS NOT NULL
        UNION
        SELECT m.user_id FROM group_people m WHERE m.group_id = s.group_id
    ) p ON true
    JOIN users u ON u.id = p.user_id AND u.active AND u.id <> w.owner_user_id
    GROUP BY s.workspace_id, p.user_id;

-- The proxy, attachments and open pages read who has access again.
-- +goose StatementBegin
CREATE FUNCTION notify_shared(which uuid[]) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('ws_sse', json_build_object('id', id, 'owner', owner_user_id)::text) FROM workspaces WHERE id = ANY (which);
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION notify_workspace_share() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM notify_shared(ARRAY[CASE WHEN TG_OP = 'DELETE' THEN OLD.workspace_id ELSE NEW.workspace_id END]);
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER workspace_shares_sse AFTER INSERT OR UPDATE OR DELETE ON workspace_shares
    FOR EACH ROW EXECUTE FUNCTION notify_workspace_share();

-- +goose StatementBegin
CREATE FUNCTION notify_group_people() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    changed uuid[];
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'group_members' THEN
        changed := ARRAY[CASE WHEN TG_OP = 'DELETE' THEN OLD.group_id ELSE NEW.group_id END];
    WHEN 'user_groups' THEN
        changed := ARRAY[NEW.id];
    WHEN 'user_claim_groups' THEN
        changed := ARRAY(SELECT id FROM user_groups WHERE claim = CASE WHEN TG_OP = 'DELETE' THEN OLD.name ELSE NEW.name END);
    WHEN 'user_identities' THEN
        changed := ARRAY(SELECT g.id FROM user_groups g JOIN user_claim_groups c ON c.name = g.claim WHERE c.identity_id = NEW.id);
    END CASE;
    PERFORM notify_shared(ARRAY(SELECT DISTINCT workspace_id FROM workspace_shares WHERE group_id = ANY (changed)));
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER group_members_shared AFTER INSERT OR DELETE ON group_members
    FOR EACH ROW EXECUTE FUNCTION notify_group_people();
CREATE TRIGGER user_groups_shared AFTER UPDATE ON user_groups
    FOR EACH ROW WHEN ((OLD.claim, OLD.claim_issuer) IS DISTINCT FROM (NEW.claim, NEW.claim_issuer))
    EXECUTE FUNCTION notify_group_people();
CREATE TRIGGER user_claim_groups_shared AFTER INSERT OR DELETE ON user_claim_groups
    FOR EACH ROW EXECUTE FUNCTION notify_group_people();
CREATE TRIGGER user_identities_shared AFTER UPDATE ON user_identities
    FOR EACH ROW WHEN (OLD.active IS DISTINCT FROM NEW.active) EXECUTE FUNCTION notify_group_people();

-- Guests of an owner who is not active have no access, and the owner's shared ports are in
-- effect for nobody. Guests who are not active themselves lose their sessions.
-- +goose StatementBegin
CREATE FUNCTION notify_owner_active() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM notify_shared(ARRAY(
        SELECT id FROM workspaces w
        WHERE owner_user_id = NEW.id AND (EXISTS (SELECT FROM workspace_shares s WHERE s.workspace_id = w.id) OR EXISTS (SELECT FROM port_shares p WHERE p.workspace_id = w.id))));
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER users_shared AFTER UPDATE ON users
    FOR EACH ROW WHEN (OLD.active IS DISTINCT FROM NEW.active) EXECUTE FUNCTION notify_owner_active();

-- What a former owner has shared does not stay shared.
-- +goose StatementBegin
CREATE FUNCTION end_workspace_shares() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM workspace_shares WHERE workspace_id = NEW.id;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER workspaces_end_shares AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN (OLD.owner_user_id IS DISTINCT FROM NEW.owner_user_id)
    EXECUTE FUNCTION end_workspace_shares();

-- +goose Down

DROP TRIGGER workspaces_end_shares ON workspaces;
DROP FUNCTION end_workspace_shares();
DROP TRIGGER users_shared ON users;
DROP FUNCTION notify_owner_active();
DROP TRIGGER user_identities_shared ON user_identities;
DROP TRIGGER user_claim_groups_shared ON user_claim_groups;
DROP TRIGGER user_groups_shared ON user_groups;
DROP TRIGGER group_members_shared ON group_members;
DROP FUNCTION notify_group_people();
DROP VIEW workspace_guests;
DROP TABLE workspace_shares;
DROP FUNCTION notify_workspace_share();
DROP FUNCTION notify_shared(uuid[]);
