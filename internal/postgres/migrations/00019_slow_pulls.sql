-- +goose Up

-- A pull that is too slow is cancelled, with a reason of its own.
ALTER TABLE workspaces DROP CONSTRAINT workspaces_error_reason_check;
ALTER TABLE workspaces ADD CONSTRAINT workspaces_error_reason_check
    CHECK (error_reason IN ('Timeout', 'RetryExceeded', 'ActionFailed', 'DataLost', 'Unreachable', 'ImagePullFailed', 'ImagePullTooSlow', 'ContainerWithoutVolume', 'ArchiveCorrupted', 'Unrestorable'));

-- +goose Down

UPDATE workspaces SET error_reason = 'ImagePullFailed' WHERE error_reason = 'ImagePullTooSlow';
ALTER TABLE workspaces DROP CONSTRAINT workspaces_error_reason_check;
ALTER TABLE workspaces ADD CONSTRAINT workspaces_error_reason_check
    CHECK (error_reason IN ('Timeout', 'RetryExceeded', 'ActionFailed', 'DataLost', 'Unreachable', 'ImagePullFailed', 'ContainerWithoutVolume', 'ArchiveCorrupted', 'Unrestorable'));
