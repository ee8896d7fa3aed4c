-- +goose Up

-- The leader's heartbeat. A follower that finds it old terminates exactly the session
-- that it names (docs/adr/0009-heartbeat-and-fence-of-the-leader.md).
CREATE TABLE leader (
    only_row      boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    replica_id    uuid NOT NULL,
    pid           integer NOT NULL,
    backend_start timestamptz NOT NULL,
    taken_at      timestamptz NOT NULL DEFAULT now(),
    beat_at       timestamptz NOT NULL DEFAULT now()
);

-- The serving replicas. flushed_at is the watermark up to which a replica has
-- handed on the activity that it saw.
CREATE TABLE replicas (
    id         uuid PRIMARY KEY,
    hostname   text NOT NULL DEFAULT '',
    version    text NOT NULL DEFAULT '',
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at    timestamptz NOT NULL DEFAULT now(),
    flushed_at timestamptz
);
CREATE INDEX replicas_seen ON replicas (seen_at);

-- Every archive that is known: the generations of a workspace's home, and what
-- a listing of the bucket found. The workspace is not referenced: an archive
-- may outlive its row.
CREATE TABLE archives (
    key               varchar(1024) PRIMARY KEY,
    workspace_id      uuid NOT NULL,
    archive_op_id     uuid NOT NULL,
    digest            text NOT NULL DEFAULT '',
    size              bigint NOT NULL DEFAULT 0,
    entries           bigint NOT NULL DEFAULT 0,
    created_at        timestamptz NOT NULL DEFAULT now(),
    verified_at       timestamptz,
    superseded_at     timestamptz,
    unprotected_since timestamptz
);
CREATE INDEX archives_workspace ON archives (workspace_id, created_at DESC);
CREATE INDEX archives_unprotected ON archives (unprotected_since) WHERE unprotected_since IS NOT NULL;
