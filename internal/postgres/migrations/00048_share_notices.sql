-- +goose Up

-- Users get a notice of a workspace that its owner shares with them.
ALTER TABLE user_notices DROP CONSTRAINT user_notices_kind_check;
ALTER TABLE user_notices ADD CONSTRAINT user_notices_kind_check
    CHECK (kind IN ('message', 'stop', 'archive', 'cancel', 'recover', 'delete', 'undelete', 'timeouts', 'handed_over', 'received', 'shared'));
CREATE INDEX user_notices_shared ON user_notices (workspace_id) WHERE kind = 'shared';

-- A notice of a share ends with it, unless another share gives the user access.
-- +goose StatementBegin
CREATE FUNCTION end_share_notices() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM user_notices n
    WHERE n.kind = 'shared' AND n.workspace_id = OLD.workspace_id
        AND NOT EXISTS (SELECT FROM workspace_guests g WHERE g.workspace_id = n.workspace_id AND g.user_id = n.user_id);
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER workspace_shares_notices AFTER DELETE ON workspace_shares
    FOR EACH ROW EXECUTE FUNCTION end_share_notices();

-- +goose Down

DROP TRIGGER workspace_shares_notices ON workspace_shares;
DROP FUNCTION end_share_notices();
DELETE FROM user_notices WHERE kind = 'shared';
DROP INDEX user_notices_shared;
ALTER TABLE user_notices DROP CONSTRAINT user_notices_kind_check;
ALTER TABLE user_notices ADD CONSTRAINT user_notices_kind_check
    CHECK (kind IN ('message', 'stop', 'archive', 'cancel', 'recover', 'delete', 'undelete', 'timeouts', 'handed_over', 'received'));
