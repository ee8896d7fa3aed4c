-- +goose Up

-- Sockets, FIFOs and devices of the home, which are not archived; 0 for archives
-- that were recorded before this column existed.
ALTER TABLE archives ADD COLUMN skipped bigint NOT NULL DEFAULT 0 CHECK (skipped >= 0);

-- +goose Down

ALTER TABLE archives DROP COLUMN skipped;
