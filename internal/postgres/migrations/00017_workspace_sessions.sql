-- A visitor has a session of its own on the host of each workspace, made from a
-- ticket and ended with the session that the ticket was issued for. Secrets are kept
-- as their SHA-256 only.

-- +goose Up

CREATE TABLE workspace_sessions (
    hash         bytea PRIMARY KEY CHECK (octet_length(hash) = 32),
    session_hash bytea NOT NULL REFERENCES sessions (hash) ON DELETE CASCADE,
    workspace_id uuid NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    port         integer NOT NULL CHECK (port BETWEEN 0 AND 65535),
    created_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX workspace_sessions_session ON workspace_sessions (session_hash, workspace_id, port, created_at);
CREATE INDEX workspace_sessions_workspace ON workspace_sessions (workspace_id);

-- The port in the workspace that a ticket is for; 0: the workspace's IDE.
ALTER TABLE tickets ADD COLUMN port integer NOT NULL DEFAULT 0 CHECK (port BETWEEN 0 AND 65535);

-- +goose Down

ALTER TABLE tickets DROP COLUMN port;
DROP TABLE workspace_sessions;
