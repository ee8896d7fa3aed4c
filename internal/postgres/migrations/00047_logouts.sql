-- +goose Up

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
