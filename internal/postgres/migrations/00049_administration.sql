-- +goose Up

-- The limits of users, and where each comes from: a user's own, else the most generous one of the
-- user's groups, where 0 is no limit; null: the server's. This is the only place that decides it.
CREATE OR REPLACE VIEW user_limits AS
    SELECT u.id AS user_id,
        COALESCE(u.max_running, g.max_running) AS max_running,
        COALESCE(u.max_workspaces, g.max_workspaces) AS max_workspaces,
        COALESCE(u.max_bytes, g.max_bytes) AS max_bytes,
        CASE WHEN u.max_running IS NOT NULL THEN 'own' WHEN g.max_running IS NOT NULL THEN 'group' ELSE 'server' END AS running_from,
        CASE WHEN u.max_workspaces IS NOT NULL THEN 'own' WHEN g.max_workspaces IS NOT NULL THEN 'group' ELSE 'server' END AS workspaces_from,
        CASE WHEN u.max_bytes IS NOT NULL THEN 'own' WHEN g.max_bytes IS NOT NULL THEN 'group' ELSE 'server' END AS bytes_from,
        CASE WHEN u.max_running IS NULL THEN g.running_group END AS running_group,
        CASE WHEN u.max_workspaces IS NULL THEN g.workspaces_group END AS workspaces_group,
        CASE WHEN u.max_bytes IS NULL THEN g.bytes_group END AS bytes_group
    FROM users u
    LEFT JOIN LATERAL (
        SELECT CASE WHEN bool_or(max_running = 0) THEN 0 ELSE max(max_running) END AS max_running,
            CASE WHEN bool_or(max_workspaces = 0) THEN 0 ELSE max(max_workspaces) END AS max_workspaces,
            CASE WHEN bool_or(max_bytes = 0) THEN 0 ELSE max(max_bytes) END AS max_bytes,
            -- The groups that these are of; of several, the first by name.
            (array_agg(name ORDER BY max_running = 0 DESC, max_running DESC, name_key) FILTER (WHERE max_running IS NOT NULL))[1] AS running_group,
            (array_agg(name ORDER BY max_workspaces = 0 DESC, max_workspaces DESC, name_key) FILTER (WHERE max_workspaces IS NOT NULL))[1] AS workspaces_group,
            (array_agg(name ORDER BY max_bytes = 0 DESC, max_bytes DESC, name_key) FILTER (WHERE max_bytes IS NOT NULL))[1] AS bytes_group
        FROM user_groups WHERE id IN (SELECT group_id FROM group_people p WHERE p.user_id = u.id)
    ) g ON true;

-- A notice that an administrator changed the size of a workspace.
ALTER TABLE user_notices DROP CONSTRAINT user_notices_kind_check,
    ADD CONSTRAINT user_notices_kind_check CHECK (kind IN ('message', 'stop', 'archive', 'cancel', 'recover', 'delete', 'undelete', 'timeouts', 'size', 'handed_over', 'received', 'shared'));

-- +goose Down

DELETE FROM user_notices WHERE kind = 'size';
ALTER TABLE user_notices DROP CONSTRAINT user_notices_kind_check,
    ADD CONSTRAINT user_notices_kind_check CHECK (kind IN ('message', 'stop', 'archive', 'cancel', 'recover', 'delete', 'undelete', 'timeouts', 'handed_over', 'received', 'shared'));

DROP VIEW user_limits;
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
