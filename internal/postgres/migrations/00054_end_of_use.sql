-- +goose Up

-- Servers before it do not close the connections of a session that ends on a workspace's host.
UPDATE compatibility SET works_since = 54;

-- Who may use a workspace can leave code there that takes a session of another visitor on the
-- workspace's host. So when a guest may no longer use it, the sessions of all its visitors end.
-- Tickets first: a ticket that is being redeemed is waited for, and the next statement sees the
-- session that it became.
-- +goose StatementBegin
CREATE FUNCTION end_visits(which uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM tickets WHERE workspace_id = ANY (which);
    DELETE FROM workspace_sessions WHERE workspace_id = ANY (which);
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION end_visits_of_share() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM end_visits(ARRAY[OLD.workspace_id]);
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER workspace_shares_ended AFTER DELETE ON workspace_shares
    FOR EACH ROW WHEN (OLD.access = 'use') EXECUTE FUNCTION end_visits_of_share();
CREATE TRIGGER workspace_shares_narrowed AFTER UPDATE ON workspace_shares
    FOR EACH ROW WHEN (OLD.access = 'use' AND NEW.access <> 'use') EXECUTE FUNCTION end_visits_of_share();

-- +goose StatementBegin
CREATE FUNCTION end_visits_of_members() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    changed uuid[];
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'group_members' THEN
        changed := ARRAY[OLD.group_id];
    WHEN 'user_groups' THEN
        changed := ARRAY[OLD.id];
    WHEN 'user_claim_groups' THEN
        changed := ARRAY(SELECT id FROM user_groups WHERE claim = OLD.name);
    WHEN 'user_identities' THEN
        changed := ARRAY(SELECT g.id FROM user_groups g JOIN user_claim_groups c ON c.name = g.claim WHERE c.identity_id = OLD.id);
    END CASE;
    PERFORM end_visits(ARRAY(SELECT DISTINCT workspace_id FROM workspace_shares WHERE access = 'use' AND group_id = ANY (changed)));
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER group_members_ended AFTER DELETE ON group_members
    FOR EACH ROW EXECUTE FUNCTION end_visits_of_members();
CREATE TRIGGER user_claim_groups_ended AFTER DELETE ON user_claim_groups
    FOR EACH ROW EXECUTE FUNCTION end_visits_of_members();
CREATE TRIGGER user_groups_claim_ended AFTER UPDATE ON user_groups
    FOR EACH ROW WHEN ((OLD.claim, OLD.claim_issuer) IS DISTINCT FROM (NEW.claim, NEW.claim_issuer))
    EXECUTE FUNCTION end_visits_of_members();
CREATE TRIGGER user_identities_ended AFTER UPDATE ON user_identities
    FOR EACH ROW WHEN (OLD.active AND NOT NEW.active) EXECUTE FUNCTION end_visits_of_members();

-- A guest who is disabled or suspended.
-- +goose StatementBegin
CREATE FUNCTION end_visits_of_user() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM end_visits(ARRAY(
        SELECT DISTINCT workspace_id FROM workspace_shares
        WHERE access = 'use' AND (user_id = NEW.id OR group_id IN (SELECT group_id FROM group_people WHERE user_id = NEW.id))));
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER users_visits_ended AFTER UPDATE ON users
    FOR EACH ROW WHEN (OLD.active AND NOT NEW.active) EXECUTE FUNCTION end_visits_of_user();

-- Connections and caches of the session end with it. Its hash names it; it has no user of its own.
-- +goose StatementBegin
CREATE FUNCTION notify_workspace_session_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('auth_changed', json_build_object('user', '', 'session', encode(OLD.hash, 'hex'))::text);
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER workspace_sessions_ended AFTER DELETE ON workspace_sessions
    FOR EACH ROW EXECUTE FUNCTION notify_workspace_session_ended();

-- +goose Down

DROP TRIGGER workspace_sessions_ended ON workspace_sessions;
DROP FUNCTION notify_workspace_session_ended();
DROP TRIGGER users_visits_ended ON users;
DROP FUNCTION end_visits_of_user();
DROP TRIGGER user_identities_ended ON user_identities;
DROP TRIGGER user_groups_claim_ended ON user_groups;
DROP TRIGGER user_claim_groups_ended ON user_claim_groups;
DROP TRIGGER group_members_ended ON group_members;
DROP FUNCTION end_visits_of_members();
DROP TRIGGER workspace_shares_narrowed ON workspace_shares;
DROP TRIGGER workspace_shares_ended ON workspace_shares;
DROP FUNCTION end_visits_of_share();
DROP FUNCTION end_visits(uuid[]);
