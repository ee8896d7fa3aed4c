-- +goose Up

-- The image with which a workspace was last started is pinned until its owner updates it
-- or chooses another one, which begins a new generation. image_newer is the newest image
-- of the reference, if that is another one.
ALTER TABLE workspaces
    ADD COLUMN image_generation integer NOT NULL DEFAULT 0,
    ADD COLUMN image_pull boolean NOT NULL DEFAULT false,
    ADD COLUMN image_pin jsonb,
    ADD COLUMN image_newer text;

CREATE TRIGGER workspaces_sse_pin AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN ((OLD.image_generation, OLD.image_pin, OLD.image_newer)
        IS DISTINCT FROM (NEW.image_generation, NEW.image_pin, NEW.image_newer))
    EXECUTE FUNCTION notify_workspace('ws_sse');

-- An image that the settings do not allow is refused with a reason of its own.
ALTER TABLE workspaces DROP CONSTRAINT workspaces_error_reason_check;
ALTER TABLE workspaces ADD CONSTRAINT workspaces_error_reason_check
    CHECK (error_reason IN ('Timeout', 'RetryExceeded', 'ActionFailed', 'DataLost', 'Unreachable', 'ImagePullFailed', 'ImagePullTooSlow', 'ImageNotAllowed', 'ContainerWithoutVolume', 'ArchiveCorrupted', 'Unrestorable'));

-- +goose Down

UPDATE workspaces SET error_reason = 'ImagePullFailed' WHERE error_reason = 'ImageNotAllowed';
ALTER TABLE workspaces DROP CONSTRAINT workspaces_error_reason_check;
ALTER TABLE workspaces ADD CONSTRAINT workspaces_error_reason_check
    CHECK (error_reason IN ('Timeout', 'RetryExceeded', 'ActionFailed', 'DataLost', 'Unreachable', 'ImagePullFailed', 'ImagePullTooSlow', 'ContainerWithoutVolume', 'ArchiveCorrupted', 'Unrestorable'));

DROP TRIGGER workspaces_sse_pin ON workspaces;
ALTER TABLE workspaces DROP COLUMN image_generation, DROP COLUMN image_pull, DROP COLUMN image_pin, DROP COLUMN image_newer;
