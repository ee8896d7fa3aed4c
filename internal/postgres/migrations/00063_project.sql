-- +goose Up

-- What a workspace was created to work on. Servers of the version before go on: they start it without.
ALTER TABLE workspaces ADD COLUMN project jsonb CHECK (octet_length(project::text) <= 131072);
COMMENT ON COLUMN workspaces.project IS 'what the workspace was created to work on, such as the repositories that its first start clones; NULL: nothing';
