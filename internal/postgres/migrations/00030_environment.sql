-- +goose Up

-- A workspace has environment variables of its own and its owner's time zone. Both are used from
-- the next start on, so the digest of the present container's variables is kept beside them.
ALTER TABLE workspaces
    ADD COLUMN env jsonb CHECK (jsonb_typeof(env) = 'object'),
    ADD COLUMN running_env_digest varchar(64),
    ADD COLUMN time_zone varchar(64);

CREATE TRIGGER workspaces_sse_env AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN ((OLD.env, OLD.running_env_digest) IS DISTINCT FROM (NEW.env, NEW.running_env_digest))
    EXECUTE FUNCTION notify_workspace('ws_sse');

-- The values may be secrets of the former owner.
-- +goose StatementBegin
CREATE FUNCTION clear_environment() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.env := NULL;
    NEW.time_zone := NULL;
    RETURN NEW;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER workspaces_environment_owner BEFORE UPDATE ON workspaces
    FOR EACH ROW WHEN (OLD.owner_user_id IS DISTINCT FROM NEW.owner_user_id)
    EXECUTE FUNCTION clear_environment();

-- +goose Down

DROP TRIGGER workspaces_environment_owner ON workspaces;
DROP FUNCTION clear_environment();
DROP TRIGGER workspaces_sse_env ON workspaces;
ALTER TABLE workspaces DROP COLUMN env, DROP COLUMN running_env_digest, DROP COLUMN time_zone;
