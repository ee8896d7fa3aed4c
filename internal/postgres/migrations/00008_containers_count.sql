-- A container counts against the limits wherever it is seen: after a start that
-- was given up it is still there for a moment, and may even come to answer.
-- Before, whoever cancelled a start could have one more.

-- +goose Up
ALTER TABLE workspaces DROP COLUMN holds_slot; -- and its indexes with it
ALTER TABLE workspaces ADD COLUMN holds_slot boolean NOT NULL GENERATED ALWAYS AS (
    deleted_at IS NULL AND phase <> 'DELETED' AND (
        phase = 'RUNNING'
        OR operation = 'STARTING'
        OR (desired_state = 'RUNNING' AND (phase <> 'ERROR' OR recover_requested_at IS NOT NULL))
        OR COALESCE(conditions #>> '{infra.container_ready,reason}', 'NotObserved') NOT IN ('NoContainer', 'NotObserved')
    )
) STORED;
CREATE INDEX workspaces_running_by_owner ON workspaces (owner_user_id) WHERE holds_slot;
CREATE INDEX workspaces_running ON workspaces (id) WHERE holds_slot;
