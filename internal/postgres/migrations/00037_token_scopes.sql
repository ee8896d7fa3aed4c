-- +goose Up

-- What a token may do, and the one workspace that it is for; null: all of its user's.
ALTER TABLE api_tokens
    ADD COLUMN scope text NOT NULL DEFAULT 'admin' CHECK (scope IN ('read', 'workspaces', 'admin')),
    ADD COLUMN workspace_id uuid REFERENCES workspaces (id) ON DELETE CASCADE,
    ADD CONSTRAINT api_tokens_limit CHECK (workspace_id IS NULL OR scope <> 'admin');
CREATE INDEX api_tokens_workspace ON api_tokens (workspace_id) WHERE workspace_id IS NOT NULL;

-- +goose Down

-- A token must not get more rights.
DELETE FROM api_tokens WHERE scope <> 'admin';
ALTER TABLE api_tokens DROP CONSTRAINT api_tokens_limit, DROP COLUMN workspace_id, DROP COLUMN scope;
