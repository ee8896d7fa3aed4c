-- +goose Up

-- A backup or an archive of another workspace is kept while a fork names it.
CREATE INDEX workspaces_archive_key ON workspaces (archive_key) WHERE archive_key IS NOT NULL;
