-- Keys with which users log in by SSH, and the key by which the servers identify
-- themselves.

-- +goose Up

-- The hash is the SHA-256 of the key in SSH's own form: the key's fingerprint. It names
-- the connections that were opened with the key, as the hashes of sessions do.
CREATE TABLE ssh_keys (
    id           uuid PRIMARY KEY,
    user_id      uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    name         varchar(255) NOT NULL CHECK (name <> ''),
    public_key   text NOT NULL,
    hash         bytea NOT NULL CONSTRAINT ssh_keys_hash UNIQUE CHECK (octet_length(hash) = 32),
    created_at   timestamptz NOT NULL DEFAULT now(),
    last_used_at timestamptz
);
CREATE INDEX ssh_keys_user ON ssh_keys (user_id, created_at);

CREATE TRIGGER ssh_keys_ended AFTER DELETE ON ssh_keys
    FOR EACH ROW EXECUTE FUNCTION notify_session_ended();

CREATE TABLE ssh_host_key (
    only_row   boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    seed       bytea NOT NULL CHECK (octet_length(seed) = 32),
    created_at timestamptz NOT NULL DEFAULT now()
);

-- +goose Down

DROP TABLE ssh_host_key;
DROP TABLE ssh_keys;
