-- +goose Up

-- home_ctx has next_uids while the owner of the home is changed, and from_image while its
-- files have the owners that an image gave them. Homes from before that: those of which
-- nothing shows that they were ever used.
UPDATE workspaces SET home_ctx = home_ctx || '{"from_image": true}'
WHERE NOT home_ctx ? 'marker' AND (
    home_ctx ->> 'state' = 'filling' AND archive_key IS NULL
    OR home_ctx ->> 'state' = 'live' AND NOT home_ctx ? 'uid'
    OR home_ctx ->> 'state' = 'live' AND phase = 'STANDBY' AND operation = 'NONE' AND error_reason IS NULL
        AND stop_reason IS NULL AND last_access_at IS NULL AND image_pin IS NULL
        AND conditions #>> '{infra.container_ready,reason}' = 'NoContainer');

-- +goose Down

UPDATE workspaces SET home_ctx = home_ctx - 'next_uids' - 'from_image' WHERE home_ctx ?| '{next_uids,from_image}';
