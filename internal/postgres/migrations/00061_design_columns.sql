-- +goose Up

-- Columns that the design names. Servers of the version before go on: they leave observed_at as it is.
ALTER TABLE workspaces
    ADD COLUMN observed_at timestamptz,
    ADD COLUMN instance_backend text NOT NULL GENERATED ALWAYS AS (CASE storage_backend WHEN 'k8s-pvc' THEN 'k8s' ELSE 'local-docker' END) STORED,
    ADD COLUMN home_store_key varchar(512) NOT NULL GENERATED ALWAYS AS ('ws-' || id::text || '-home') STORED;
COMMENT ON COLUMN workspaces.observed_at IS 'when the controller last wrote what it observed; it writes only differences';
COMMENT ON COLUMN workspaces.instance_backend IS 'what runs the container';
COMMENT ON COLUMN workspaces.home_store_key IS 'name of the home''s volume';
