-- People, how they log in, and what they did. Tokens and session ids are kept
-- as their SHA-256 only.

-- +goose Up
CREATE TABLE installation (
    only_row   boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    id         uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE users (
    id            uuid PRIMARY KEY,
    username      text NOT NULL CHECK (char_length(username) BETWEEN 1 AND 255),
    -- The username folded for comparison. It is computed by codehub, so that
    -- it does not depend on the locale that the database was made with.
    username_key  text NOT NULL CONSTRAINT users_username_key UNIQUE,
    password_hash text NOT NULL,
    admin         boolean NOT NULL DEFAULT false,
    disabled      boolean NOT NULL DEFAULT false,
    max_running   integer CHECK (max_running >= 0),
    failed_logins integer NOT NULL DEFAULT 0 CHECK (failed_logins >= 0),
    locked_until  timestamptz,
    created_at    timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE sessions (
    hash       bytea PRIMARY KEY CHECK (octet_length(hash) = 32),
    user_id    uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    user_agent text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL
);
CREATE INDEX sessions_user ON sessions (user_id);
CREATE INDEX sessions_expiry ON sessions (expires_at);

CREATE TABLE api_tokens (
    id           uuid PRIMARY KEY,
    user_id      uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    name         varchar(255) NOT NULL CHECK (name <> ''),
    hash         bytea NOT NULL CONSTRAINT api_tokens_hash UNIQUE CHECK (octet_length(hash) = 32),
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,
    last_used_at timestamptz
);
CREATE INDEX api_tokens_user ON api_tokens (user_id, created_at);

-- Names are copied in, and nothing is referenced: a record outlives what it
-- speaks of.
CREATE TABLE audit_log (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL DEFAULT now(),
    user_id  uuid,
    username text NOT NULL,
    token_id uuid,
    action   text NOT NULL CHECK (action <> ''),
    target   text NOT NULL DEFAULT '',
    details  jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX audit_log_at ON audit_log (at, id);
CREATE INDEX audit_log_user ON audit_log (user_id, id);
CREATE INDEX audit_log_target ON audit_log (target, id);
