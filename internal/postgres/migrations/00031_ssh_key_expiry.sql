-- +goose Up

-- A key that was added with an expiring API token expires with it; null: never. Keys from
-- before this column do not expire.
ALTER TABLE ssh_keys ADD COLUMN expires_at timestamptz;

-- +goose Down

ALTER TABLE ssh_keys DROP COLUMN expires_at;
