-- +goose Up

-- The client's address at the login; empty for sessions from before this column, and
-- where it was not known.
ALTER TABLE sessions ADD COLUMN address text NOT NULL DEFAULT '';

-- +goose Down

ALTER TABLE sessions DROP COLUMN address;
