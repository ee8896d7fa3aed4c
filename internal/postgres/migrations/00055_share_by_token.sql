-- +goose Up

-- The API token with limits by which a port was shared: the share ends with it. Null: another
-- credential.
ALTER TABLE port_shares ADD COLUMN token_id uuid REFERENCES api_tokens (id) ON DELETE CASCADE;
CREATE INDEX port_shares_token ON port_shares (token_id) WHERE token_id IS NOT NULL;

-- +goose Down

ALTER TABLE port_shares DROP COLUMN token_id;
