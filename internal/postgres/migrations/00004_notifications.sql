-- Notifications of changes, with ids only: a receiver reads the row by id and owner
-- (docs/database.md#notifications). A lost notification costs only time.

-- +goose Up
-- +goose StatementBegin
CREATE FUNCTION notify_workspace() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify(TG_ARGV[0], json_build_object('id', NEW.id, 'owner', NEW.owner_user_id)::text);
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER workspaces_sse_insert AFTER INSERT ON workspaces
    FOR EACH ROW EXECUTE FUNCTION notify_workspace('ws_sse');

CREATE TRIGGER workspaces_sse_update AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN (
        (OLD.phase, OLD.operation, OLD.error_reason, OLD.error_message, OLD.desired_state, OLD.next_desired_state,
         OLD.archive_key, OLD.deleted_at, OLD.progress, OLD.stop_reason,
         OLD.conditions #>> '{infra.container_ready,reason}',
         OLD.name, OLD.description, OLD.memo, OLD.standby_ttl_seconds, OLD.archive_ttl_seconds, OLD.keep_awake_until)
        IS DISTINCT FROM
        (NEW.phase, NEW.operation, NEW.error_reason, NEW.error_message, NEW.desired_state, NEW.next_desired_state,
         NEW.archive_key, NEW.deleted_at, NEW.progress, NEW.stop_reason,
         NEW.conditions #>> '{infra.container_ready,reason}',
         NEW.name, NEW.description, NEW.memo, NEW.standby_ttl_seconds, NEW.archive_ttl_seconds, NEW.keep_awake_until)
    ) EXECUTE FUNCTION notify_workspace('ws_sse');

CREATE TRIGGER workspaces_wake_insert AFTER INSERT ON workspaces
    FOR EACH ROW EXECUTE FUNCTION notify_workspace('ws_wake');

-- A request wakes when it is made; that the controller has cleared it is news
-- to nobody.
CREATE TRIGGER workspaces_wake_update AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN (
        OLD.desired_state <> NEW.desired_state
        OR OLD.deleted_at IS DISTINCT FROM NEW.deleted_at
        OR (NEW.next_desired_state IS NOT NULL AND OLD.next_desired_state IS DISTINCT FROM NEW.next_desired_state)
        OR (NEW.recover_requested_at IS NOT NULL AND OLD.recover_requested_at IS DISTINCT FROM NEW.recover_requested_at)
        OR (NEW.cancel_requested_at IS NOT NULL AND OLD.cancel_requested_at IS DISTINCT FROM NEW.cancel_requested_at)
        OR (NEW.force_stop_requested_at IS NOT NULL AND OLD.force_stop_requested_at IS DISTINCT FROM NEW.force_stop_requested_at)
    ) EXECUTE FUNCTION notify_workspace('ws_wake');

CREATE TRIGGER workspaces_deleted AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN (OLD.deleted_at IS NULL AND NEW.deleted_at IS NOT NULL)
    EXECUTE FUNCTION notify_workspace('ws_deleted');

-- The end of a session or of an API token, with its hash in hex.
-- +goose StatementBegin
CREATE FUNCTION notify_session_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('auth_changed', json_build_object('user', OLD.user_id, 'session', encode(OLD.hash, 'hex'))::text);
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER sessions_ended AFTER DELETE ON sessions
    FOR EACH ROW EXECUTE FUNCTION notify_session_ended();
CREATE TRIGGER api_tokens_ended AFTER DELETE ON api_tokens
    FOR EACH ROW EXECUTE FUNCTION notify_session_ended();

-- +goose StatementBegin
CREATE FUNCTION notify_user_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('auth_changed', json_build_object('user', OLD.id, 'session', '')::text);
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- Failed logins change nobody's rights.
CREATE TRIGGER users_changed AFTER UPDATE ON users
    FOR EACH ROW WHEN (
        (OLD.username, OLD.password_hash, OLD.admin, OLD.disabled, OLD.max_running)
        IS DISTINCT FROM
        (NEW.username, NEW.password_hash, NEW.admin, NEW.disabled, NEW.max_running)
    ) EXECUTE FUNCTION notify_user_changed();
CREATE TRIGGER users_removed AFTER DELETE ON users
    FOR EACH ROW EXECUTE FUNCTION notify_user_changed();
