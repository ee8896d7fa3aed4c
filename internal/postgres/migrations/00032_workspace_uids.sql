-- +goose Up

-- The uid of a workspace on the host is the first of CODEHUB_WORKSPACE_UIDS plus this.
CREATE SEQUENCE workspace_uid_offsets MINVALUE 0 START 0;
ALTER TABLE workspaces ADD COLUMN uid_offset bigint NOT NULL DEFAULT nextval('workspace_uid_offsets');
-- All homes so far belong to 1000. They are given to the uid when they are next used.
UPDATE workspaces SET home_ctx = home_ctx || '{"uid": 1000}' WHERE home_ctx ->> 'state' NOT IN ('absent', 'filling');
ALTER SEQUENCE workspace_uid_offsets OWNED BY workspaces.uid_offset;

-- +goose Down

ALTER TABLE workspaces DROP COLUMN uid_offset;
UPDATE workspaces SET home_ctx = home_ctx - 'uid' WHERE home_ctx ? 'uid';
