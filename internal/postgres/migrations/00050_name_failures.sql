-- +goose Up

-- Failed logins with names of no user who can log in with a password, so that all servers lock
-- them out like users. There are at most 65536 rows: a name replaces another one in its slot.
CREATE TABLE name_failures (
    -- SHA-256 of installation.failure_key and the name, so that an attacker cannot choose
    -- names that replace a certain one.
    hash         bytea NOT NULL CHECK (octet_length(hash) = 32),
    slot         integer PRIMARY KEY GENERATED ALWAYS AS (get_byte(hash, 0) * 256 + get_byte(hash, 1)) STORED,
    failures     integer NOT NULL DEFAULT 0 CHECK (failures >= 0),
    failed_at    timestamptz NOT NULL DEFAULT now(),
    locked_until timestamptz
);
CREATE INDEX name_failures_hash ON name_failures (hash);

ALTER TABLE installation ADD COLUMN failure_key uuid NOT NULL DEFAULT gen_random_uuid();

-- The last of the failed logins, which do not count forever; null: before this version.
ALTER TABLE users ADD COLUMN failed_at timestamptz;

-- +goose Down

ALTER TABLE users DROP COLUMN failed_at;
ALTER TABLE installation DROP COLUMN failure_key;
DROP TABLE name_failures;
