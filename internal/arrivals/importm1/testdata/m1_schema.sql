-- The database of codehub's first version, as its one migration (0359b8100232)
-- left it on PostgreSQL. Its ids and most texts had no bound there, times were
-- with time zone in the end and without one at first (m1_schema_naive.sql), and
-- what a name, a status or a key may be was for the program to see to.

CREATE TYPE workspacestatus AS ENUM
    ('CREATED', 'PROVISIONING', 'RUNNING', 'STOPPING', 'STOPPED', 'DELETING', 'ERROR', 'DELETED');

CREATE TABLE alembic_version (version_num varchar(32) PRIMARY KEY);
INSERT INTO alembic_version VALUES ('0359b8100232');

CREATE TABLE users (
    id                    varchar NOT NULL PRIMARY KEY,
    username              varchar NOT NULL,
    password_hash         varchar NOT NULL,
    created_at            timestamptz NOT NULL,
    failed_login_attempts integer NOT NULL,
    locked_until          timestamptz,
    last_failed_at        timestamptz
);
CREATE UNIQUE INDEX ix_users_username ON users (username);

CREATE TABLE sessions (
    id         varchar NOT NULL PRIMARY KEY,
    user_id    varchar NOT NULL REFERENCES users (id),
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    revoked_at timestamptz
);
CREATE INDEX ix_sessions_user_id ON sessions (user_id);

CREATE TABLE workspaces (
    id               varchar NOT NULL PRIMARY KEY,
    owner_user_id    varchar NOT NULL REFERENCES users (id),
    name             varchar NOT NULL,
    description      varchar,
    memo             text,
    status           workspacestatus NOT NULL,
    image_ref        varchar NOT NULL,
    instance_backend varchar NOT NULL,
    storage_backend  varchar NOT NULL,
    home_store_key   varchar NOT NULL,
    home_ctx         text,
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    deleted_at       timestamptz
);
CREATE INDEX ix_workspaces_deleted_at ON workspaces (deleted_at);
CREATE INDEX ix_workspaces_owner_user_id ON workspaces (owner_user_id);
