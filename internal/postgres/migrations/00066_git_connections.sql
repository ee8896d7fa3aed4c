-- +goose Up

-- Connections of users to Git servers. Servers of the version before go on: they answer for none.
CREATE TABLE git_connections (
    id            uuid PRIMARY KEY,
    user_id       uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    host          text NOT NULL CHECK (host <> ''),
    kind          text NOT NULL CHECK (kind IN ('token', 'oauth')),
    provider      text NOT NULL DEFAULT '',
    login         text NOT NULL CHECK (login <> ''),
    access_token  bytea NOT NULL,
    refresh_token bytea,
    expires_at    timestamptz,
    error         text NOT NULL DEFAULT '',
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK ((kind = 'oauth') = (provider <> '')),
    CONSTRAINT git_connections_host UNIQUE (user_id, host)
);
COMMENT ON TABLE git_connections IS 'Tokens of users for Git servers (docs/git.md). Only the credential helper of a workspace, a refresh and a rotation of the keys read one.';
COMMENT ON COLUMN git_connections.host IS 'in lower case, with a port that is not the default; begins with `http://` for a server without TLS';
COMMENT ON COLUMN git_connections.provider IS 'name of the OAuth2 app; empty: the user entered the token';
COMMENT ON COLUMN git_connections.access_token IS 'encrypted for this row, its owner and its host (docs/security.md#encrypted-values)';
COMMENT ON COLUMN git_connections.refresh_token IS 'as `access_token`; null: there is none';
COMMENT ON COLUMN git_connections.expires_at IS 'of the access token; null: unknown';
COMMENT ON COLUMN git_connections.error IS 'why the last refresh failed; empty: it did not';
COMMENT ON COLUMN git_connections.changed_at IS 'of the tokens';

ALTER TABLE workspace_shares ADD COLUMN git boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN workspace_shares.git IS 'whether the owner''s Git connections may be used in the workspace while this share exists';
