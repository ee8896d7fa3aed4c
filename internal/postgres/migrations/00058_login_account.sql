-- +goose Up

-- The account that alone can allow a login by code, as in users.username_key; null: any account.
-- Servers of the version before go on: they let any account allow it that has the code.
ALTER TABLE program_logins ADD COLUMN username_key text;

-- +goose Down

ALTER TABLE program_logins DROP COLUMN username_key;
