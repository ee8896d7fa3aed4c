-- +goose Up

ALTER TABLE workspaces ADD COLUMN template jsonb CHECK (jsonb_typeof(template) = 'object');
COMMENT ON COLUMN workspaces.template IS 'name and version of the template that it was created from, its parameters, the settings that this version gave, and the version before; null: none';
CREATE TABLE template_versions (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name     text NOT NULL CHECK (name <> ''),
    body     text CHECK (octet_length(body) <= 65536),
    username text NOT NULL,
    saved_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE template_versions IS 'Every version of the templates that administrators saved (docs/templates.md). The last one of a name counts.';
COMMENT ON COLUMN template_versions.body IS 'YAML; null: the template was deleted';
CREATE INDEX template_versions_name ON template_versions (name, id);
