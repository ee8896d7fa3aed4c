-- +goose Up

-- What administrators did to workspaces of a user, and messages of theirs, until the user
-- dismisses them. Names are copied, so that a notice outlives what it describes.
CREATE TABLE user_notices (
    id             uuid PRIMARY KEY,
    user_id        uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    kind           text NOT NULL CHECK (kind IN ('message', 'stop', 'archive', 'cancel', 'recover', 'delete', 'undelete', 'timeouts', 'handed_over', 'received')),
    workspace_id   uuid,
    workspace_name text NOT NULL DEFAULT '',
    by_username    text NOT NULL,
    other_username text NOT NULL DEFAULT '',
    message        text NOT NULL DEFAULT '' CHECK (char_length(message) <= 2000),
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX user_notices_user ON user_notices (user_id, created_at, id);

-- The text that administrators show to all users; there is none without a row.
CREATE TABLE banner (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    message  text NOT NULL CHECK (char_length(message) BETWEEN 1 AND 2000),
    username text NOT NULL,
    set_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Open pages read the notices of the user again, those of all users if there is no user.
-- +goose StatementBegin
CREATE FUNCTION notify_notices() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_TABLE_NAME = 'banner' THEN
        PERFORM pg_notify('notices_changed', json_build_object('user', '')::text);
    ELSE
        PERFORM pg_notify('notices_changed', json_build_object('user', COALESCE(NEW.user_id, OLD.user_id))::text);
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER user_notices_changed AFTER INSERT OR DELETE ON user_notices
    FOR EACH ROW EXECUTE FUNCTION notify_notices();
CREATE TRIGGER banner_changed AFTER INSERT OR UPDATE OR DELETE ON banner
    FOR EACH ROW EXECUTE FUNCTION notify_notices();

-- +goose Down

DROP TABLE banner;
DROP TABLE user_notices;
DROP FUNCTION notify_notices();
