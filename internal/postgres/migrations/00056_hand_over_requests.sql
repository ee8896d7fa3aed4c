-- +goose Up

-- Hand-overs that administrators have requested, until the owner accepts them. Servers of the
-- earlier version do not know them: one that still runs hands over at once.
CREATE TABLE hand_over_requests (
    workspace_id uuid PRIMARY KEY REFERENCES workspaces (id) ON DELETE CASCADE,
    user_id      uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE, -- the owner who is asked
    to_user_id   uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    name         text NOT NULL, -- of the workspace there; empty: unchanged
    by_username  text NOT NULL,
    message      text NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    declined_at  timestamptz
);
CREATE INDEX hand_over_requests_user ON hand_over_requests (user_id);

-- The owner reads them among the notices.
CREATE TRIGGER hand_over_requests_changed AFTER INSERT OR UPDATE OR DELETE ON hand_over_requests
    FOR EACH ROW EXECUTE FUNCTION notify_notices();

-- +goose Down

DROP TABLE hand_over_requests;
