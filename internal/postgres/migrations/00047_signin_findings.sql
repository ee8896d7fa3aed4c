-- +goose Up

-- The proxy reads the shares of a user's workspaces again when the user's access ends or
-- resumes: only those of active users are in effect.
-- +goose StatementBegin
CREATE FUNCTION notify_owner_active() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('ws_sse', json_build_object('id', w.id, 'owner', NEW.id)::text)
    FROM workspaces w WHERE w.owner_user_id = NEW.id AND EXISTS (SELECT FROM port_shares p WHERE p.workspace_id = w.id);
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER users_active AFTER UPDATE ON users
    FOR EACH ROW WHEN (OLD.active IS DISTINCT FROM NEW.active)
    EXECUTE FUNCTION notify_owner_active();

-- The identities of users that were deleted before this version.
DELETE FROM user_identities i USING users u WHERE u.id = i.user_id AND u.removed_at IS NOT NULL;

-- A logout without a provider's session ends the logins of its subject that had begun before.
ALTER TABLE provider_logouts
    ADD COLUMN subject     text,
    ADD COLUMN received_at timestamptz NOT NULL DEFAULT now();
CREATE INDEX provider_logouts_subject ON provider_logouts (issuer, subject) WHERE provider_session IS NULL;

-- Until when the token of a program's login is valid. Logins that began before this version
-- have none, and begin again.
DELETE FROM program_logins;
ALTER TABLE program_logins ADD COLUMN token_expires_at timestamptz NOT NULL;

-- +goose Down

ALTER TABLE program_logins DROP COLUMN token_expires_at;
ALTER TABLE provider_logouts DROP COLUMN subject, DROP COLUMN received_at;

DROP TRIGGER users_active ON users;
DROP FUNCTION notify_owner_active();
