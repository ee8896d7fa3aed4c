-- +goose Up

-- Second factors of users who log in with a password.
CREATE TABLE passkeys (
    id            uuid PRIMARY KEY,
    user_id       uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    credential_id bytea NOT NULL CONSTRAINT passkeys_credential UNIQUE CHECK (octet_length(credential_id) BETWEEN 1 AND 1023),
    -- The host of CODEHUB_URL for which it was made: browsers offer it there alone.
    party         varchar(255) NOT NULL,
    -- Public key, counter and flags, as package passkey encodes them.
    record        jsonb NOT NULL,
    name          varchar(255) NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    last_used_at  timestamptz,
    -- Its counter did not increase at that time, so there may be a copy; null: never.
    cloned_at     timestamptz
);
CREATE INDEX passkeys_user ON passkeys (user_id);

-- Each replaces a passkey once. A code is kept as its SHA-256 only, and ends with its use.
CREATE TABLE recovery_codes (
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    hash    bytea NOT NULL CHECK (octet_length(hash) = 32),
    PRIMARY KEY (user_id, hash)
);

-- Logins whose password was right and that wait for the passkey, and registrations in a
-- session. None of them is a session.
CREATE TABLE passkey_attempts (
    -- SHA-256 of the secret in the login's cookie, or the hash of the session.
    hash       bytea PRIMARY KEY CHECK (octet_length(hash) = 32),
    user_id    uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    login      boolean NOT NULL,
    -- Of the password that was verified, as postgres.PasswordProof makes it.
    proof      text NOT NULL,
    name       varchar(255) NOT NULL DEFAULT '', -- of the new passkey
    challenge  jsonb, -- as package passkey encodes it; null: none, or it was used
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL
);
CREATE INDEX passkey_attempts_user ON passkey_attempts (user_id);
CREATE INDEX passkey_attempts_expiry ON passkey_attempts (expires_at);

-- Since when a user is suspended; null: not, or since before this column existed.
ALTER TABLE users ADD COLUMN suspended_at timestamptz;
-- +goose StatementBegin
CREATE FUNCTION codehub_suspended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.suspended_for IS NULL THEN
        NEW.suspended_at := NULL;
    ELSIF OLD.suspended_for IS NULL THEN
        NEW.suspended_at := now();
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER users_suspended BEFORE UPDATE ON users FOR EACH ROW
    WHEN (OLD.suspended_for IS DISTINCT FROM NEW.suspended_for) EXECUTE FUNCTION codehub_suspended();

-- +goose Down

DROP TRIGGER users_suspended ON users;
DROP FUNCTION codehub_suspended();
ALTER TABLE users DROP COLUMN suspended_at;
DROP TABLE passkey_attempts;
DROP TABLE recovery_codes;
DROP TABLE passkeys;
