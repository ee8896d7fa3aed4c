-- What is in the way of a workspace's home can be set aside.

-- +goose Up
ALTER TABLE workspaces
    DROP CONSTRAINT workspaces_recover_action_check,
    ADD CONSTRAINT workspaces_recover_action_check CHECK (recover_action IN ('afresh', 'empty', 'archive', 'set_aside'));
ALTER TABLE orphans
    DROP CONSTRAINT orphans_kind_check,
    ADD CONSTRAINT orphans_kind_check CHECK (kind IN ('container', 'volume', 'job', 'set-aside'));
