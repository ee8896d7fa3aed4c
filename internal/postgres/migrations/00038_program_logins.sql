-- +goose Up

-- Logins of the command line that wait for a user's answer in a browser, or for the program
-- to take the answer. Secrets are kept as their SHA-256 only.
CREATE TABLE program_logins (
    id           uuid PRIMARY KEY,
    -- What the program redeems: a code that it was sent by the browser, or the device code
    -- that it was given at the beginning.
    hash         bytea NOT NULL CONSTRAINT program_logins_hash UNIQUE CHECK (octet_length(hash) = 32),
    -- Of a login by a code that the user types in.
    user_code    text CONSTRAINT program_logins_user_code UNIQUE,
    -- Of a login by a browser on the same machine: the SHA-256 of the program's secret.
    challenge    bytea CHECK (octet_length(challenge) = 32),
    name         varchar(255) NOT NULL,
    address      text NOT NULL DEFAULT '',
    -- The session of the user who has allowed it; null: not yet.
    session_hash bytea REFERENCES sessions (hash) ON DELETE CASCADE,
    polled_at    timestamptz,
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz NOT NULL
);
CREATE INDEX program_logins_expiry ON program_logins (expires_at);
CREATE INDEX program_logins_address ON program_logins (address);
CREATE INDEX program_logins_session ON program_logins (session_hash);

-- +goose Down

DROP TABLE program_logins;
