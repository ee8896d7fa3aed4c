-- +goose Up

-- The image of a workspace can be changed. It is used from the next start on, so
-- the image of the present container is kept beside it, and the image before the
-- last change, which the owner can return to.
ALTER TABLE workspaces
    ADD COLUMN running_image_ref varchar(512),
    ADD COLUMN previous_image_ref varchar(512);

CREATE TRIGGER workspaces_sse_image AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN ((OLD.image_ref, OLD.running_image_ref, OLD.previous_image_ref)
        IS DISTINCT FROM (NEW.image_ref, NEW.running_image_ref, NEW.previous_image_ref))
    EXECUTE FUNCTION notify_workspace('ws_sse');

-- +goose Down

DROP TRIGGER workspaces_sse_image ON workspaces;
ALTER TABLE workspaces DROP COLUMN running_image_ref, DROP COLUMN previous_image_ref;
