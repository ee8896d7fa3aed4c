-- What import-m1 has brought over from a database of the first version, by its
-- ids there. Nothing is referenced: what people have removed here since is not
-- brought over a second time.

-- +goose Up
CREATE TABLE m1_users (
    old_id      text PRIMARY KEY,
    user_id     uuid NOT NULL,
    imported_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE m1_workspaces (
    old_id        text PRIMARY KEY,
    workspace_id  uuid NOT NULL CONSTRAINT m1_workspaces_workspace UNIQUE,
    -- Of the copy of the home that is under way, or the one that counts. Each
    -- try has its own; NULL where there was no home.
    archive_op_id uuid,
    -- Of earlier tries, whose objects are still to be removed from the bucket.
    abandoned     uuid[] NOT NULL DEFAULT '{}',
    claimed_at    timestamptz NOT NULL DEFAULT now(),
    -- Set in the transaction that makes the workspace. From then on its owner
    -- works in it, and nothing is ever copied to it again.
    imported_at   timestamptz
);
