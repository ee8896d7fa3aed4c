-- +goose Up

-- A home that no restore could make again is not archived, and says so.
ALTER TABLE workspaces DROP CONSTRAINT workspaces_error_reason_check;
ALTER TABLE workspaces ADD CONSTRAINT workspaces_error_reason_check
    CHECK (error_reason IN ('Timeout', 'RetryExceeded', 'ActionFailed', 'DataLost', 'Unreachable', 'ImagePullFailed', 'ContainerWithoutVolume', 'ArchiveCorrupted', 'Unrestorable'));

-- +goose Down

UPDATE workspaces SET error_reason = 'ActionFailed' WHERE error_reason = 'Unrestorable';
ALTER TABLE workspaces DROP CONSTRAINT workspaces_error_reason_check;
ALTER TABLE workspaces ADD CONSTRAINT workspaces_error_reason_check
    CHECK (error_reason IN ('Timeout', 'RetryExceeded', 'ActionFailed', 'DataLost', 'Unreachable', 'ImagePullFailed', 'ContainerWithoutVolume', 'ArchiveCorrupted'));
