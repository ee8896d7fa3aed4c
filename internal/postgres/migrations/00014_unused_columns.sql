-- +goose Up

-- Nothing reads these columns. observed_at was never written: all workspaces are
-- observed together, and the administrators' page shows when that was.
ALTER TABLE workspaces
    DROP COLUMN observed_at,
    DROP COLUMN instance_backend,
    DROP COLUMN home_store_key,
    DROP COLUMN archive_entries;
ALTER TABLE leader DROP COLUMN taken_at;
ALTER TABLE installation DROP COLUMN created_at;
ALTER TABLE m1_users DROP COLUMN imported_at;
ALTER TABLE m1_workspaces DROP COLUMN claimed_at;

-- +goose Down

ALTER TABLE m1_workspaces ADD COLUMN claimed_at timestamptz NOT NULL DEFAULT now();
ALTER TABLE m1_users ADD COLUMN imported_at timestamptz NOT NULL DEFAULT now();
ALTER TABLE installation ADD COLUMN created_at timestamptz NOT NULL DEFAULT now();
ALTER TABLE leader ADD COLUMN taken_at timestamptz NOT NULL DEFAULT now();
ALTER TABLE workspaces
    ADD COLUMN observed_at timestamptz,
    ADD COLUMN instance_backend text NOT NULL DEFAULT 'local-docker' CHECK (instance_backend IN ('local-docker', 'k8s')),
    ADD COLUMN home_store_key varchar(512),
    ADD COLUMN archive_entries bigint NOT NULL DEFAULT 0;
UPDATE workspaces SET home_store_key = 'ws-' || id || '-home';
ALTER TABLE workspaces ALTER COLUMN home_store_key SET NOT NULL, ALTER COLUMN instance_backend DROP DEFAULT;
