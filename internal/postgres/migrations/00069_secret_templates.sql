-- +goose Up

-- Secrets for the workspaces of one template. A server of the version before would deliver them to
-- all workspaces.
UPDATE compatibility SET works_since = 69;
ALTER TABLE secrets ADD COLUMN template text CHECK (template <> '');
ALTER TABLE secrets ADD CONSTRAINT secrets_scope CHECK (workspace_id IS NULL OR template IS NULL);
COMMENT ON COLUMN secrets.template IS 'name of the only template whose workspaces get it; null: it does not matter';
DROP INDEX secrets_variable;
DROP INDEX secrets_path;
CREATE UNIQUE INDEX secrets_variable ON secrets (COALESCE(user_id, group_id), COALESCE(workspace_id, '00000000-0000-0000-0000-000000000000'), COALESCE(template, ''), variable) WHERE variable <> '';
CREATE UNIQUE INDEX secrets_path ON secrets (COALESCE(user_id, group_id), COALESCE(workspace_id, '00000000-0000-0000-0000-000000000000'), COALESCE(template, ''), path) WHERE path <> '';
