-- +goose Up

-- Groups of users. A group can also have the users of whom an identity provider says that they
-- are members of the group claim there.
CREATE TABLE user_groups (
    id             uuid PRIMARY KEY,
    name           text NOT NULL CHECK (name <> ''),
    name_key       text NOT NULL CONSTRAINT user_groups_name_key UNIQUE,
    claim          text NOT NULL DEFAULT '',
    claim_issuer   text NOT NULL DEFAULT '' CHECK (claim <> '' OR claim_issuer = ''),
    -- Null: the group has no limit of its own; 0: no limit.
    max_running    integer CHECK (max_running >= 0),
    max_workspaces integer CHECK (max_workspaces >= 0),
    max_bytes      bigint CHECK (max_bytes >= 0),
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX user_groups_claim ON user_groups (claim) WHERE claim <> '';

CREATE TABLE group_members (
    group_id uuid NOT NULL REFERENCES user_groups (id) ON DELETE CASCADE,
    user_id  uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    admin    boolean NOT NULL DEFAULT false,
    added_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (group_id, user_id)
);
CREATE INDEX group_members_user ON group_members (user_id);

-- Who is in which group, and why: added there, or by the claim of an identity that the provider
-- accepts. A user can be in a group by both.
CREATE VIEW group_people AS
    SELECT group_id, user_id, admin, false AS claimed FROM group_members
    UNION ALL
    SELECT DISTINCT g.id, i.user_id, false, true
    FROM user_groups g
    JOIN user_claim_groups c ON c.name = g.claim
    JOIN user_identities i ON i.id = c.identity_id AND i.active AND (g.claim_issuer = '' OR g.claim_issuer = i.issuer)
    JOIN users u ON u.id = i.user_id AND u.removed_at IS NULL
    WHERE g.claim <> '';

-- The limits of users: a user's own, else the most generous one of the user's groups, where 0 is
-- no limit; null: the server's. This is the only place that decides it.
CREATE VIEW user_limits AS
    SELECT u.id AS user_id,
        COALESCE(u.max_running, g.max_running) AS max_running,
        COALESCE(u.max_workspaces, g.max_workspaces) AS max_workspaces,
        COALESCE(u.max_bytes, g.max_bytes) AS max_bytes
    FROM users u
    LEFT JOIN LATERAL (
        SELECT CASE WHEN bool_or(max_running = 0) THEN 0 ELSE max(max_running) END AS max_running,
            CASE WHEN bool_or(max_workspaces = 0) THEN 0 ELSE max(max_workspaces) END AS max_workspaces,
            CASE WHEN bool_or(max_bytes = 0) THEN 0 ELSE max(max_bytes) END AS max_bytes
        FROM user_groups WHERE id IN (SELECT group_id FROM group_people p WHERE p.user_id = u.id)
    ) g ON true;

-- +goose Down

DROP VIEW user_limits;
DROP VIEW group_people;
DROP TABLE group_members;
DROP TABLE user_groups;
