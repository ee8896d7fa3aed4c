-- One home state, removing, stood for three: the volume of an archived home,
-- the half-filled volume of a cancelled restore, and the volume of a home
-- deleted past its grace. Each has its own rules from here on.
--
-- What a row in removing becomes:
--   deleting   if the removal for a deletion was claimed. That is known: the
--              operation is DELETING, or the row is deleted and its home was
--              live, which has no archive or was restored from the very
--              archive that archive_key names (marker).
--   discarding otherwise, archived homes included. The removal of a volume in
--              removing may have begun, and the code before this version left
--              the marks of a complete volume in place while it removed the
--              content. A volume in discarding never counts as complete and is
--              removed only while its archive is there, as before.

-- +goose Up
ALTER TABLE workspaces DROP CONSTRAINT workspaces_home_ctx_check;
UPDATE workspaces SET home_ctx = jsonb_set(home_ctx, '{state}', CASE
        WHEN operation = 'DELETING'
            OR deleted_at IS NOT NULL AND (archive_key IS NULL OR home_ctx ->> 'marker' IS NOT DISTINCT FROM archive_key)
        THEN '"deleting"' ELSE '"discarding"' END::jsonb)
    WHERE home_ctx ->> 'state' = 'removing';
ALTER TABLE workspaces ADD CONSTRAINT workspaces_home_ctx_check
    CHECK (COALESCE(home_ctx ->> 'state', '') IN ('absent', 'filling', 'live', 'archived', 'discarding', 'deleting'));
