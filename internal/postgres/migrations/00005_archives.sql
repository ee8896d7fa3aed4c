-- Archives: what is known of each, what may still be chosen, and what goes.
--
-- Who writes what of `archives`:
--   The controller inserts the row of an archive before its job starts
--   (nothing but key, workspace_id, archive_op_id), and in the transaction
--   that sets archive_key sets digest, size, entries and verified_at, clears
--   unprotected_since, and sets superseded_at of the archive that was current.
--   It does so only where deleting_at is NULL.
--   Garbage collection writes complete_at, missing_since, unprotected_since and
--   deleting_at, adds what a listing found, and removes rows.
-- Whoever makes a workspace name an archive (archive_key, recover_archive), or
-- takes a deletion back, holds the workspace's row; so does garbage collection
-- while it sets deleting_at, from which there is no way back.

-- +goose Up
ALTER TABLE archives
    -- found: in the bucket and not made by an operation that this database
    -- remembers, such as one made after the backup it was restored from.
    ADD COLUMN origin text NOT NULL DEFAULT 'made' CHECK (origin IN ('made', 'found')),
    -- Since when it is known to be complete by its .meta alone: digest, size
    -- and entries are what that says.
    ADD COLUMN complete_at timestamptz,
    -- Since when listings of the bucket do not have it.
    ADD COLUMN missing_since timestamptz,
    -- Garbage collection is removing it, or has: nothing may name it any more.
    -- The row stays for a while, so that a late upload is known for what it is.
    ADD COLUMN deleting_at timestamptz;

ALTER TABLE workspaces
    DROP CONSTRAINT workspaces_recover_action_check,
    ADD CONSTRAINT workspaces_recover_action_check CHECK (recover_action IN ('afresh', 'empty', 'archive')),
    -- The archive to go on with, as workspace.Archive.
    ADD COLUMN recover_archive jsonb CHECK (recover_archive IS NULL OR COALESCE(recover_archive ->> 'key', '') <> ''),
    ADD CONSTRAINT workspaces_recover_archive
        CHECK ((recover_archive IS NOT NULL) = COALESCE(recover_action = 'archive', false));

-- Whatever the code does: no workspace comes to name an archive that is going.
-- +goose StatementBegin
CREATE FUNCTION check_archive_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM archives
        WHERE key IN (NEW.archive_key, NEW.recover_archive ->> 'key') AND deleting_at IS NOT NULL)
    THEN
        RAISE EXCEPTION 'workspace % would name an archive that is being removed', NEW.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'workspaces_archive_is_kept';
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER workspaces_archive_insert AFTER INSERT ON workspaces
    FOR EACH ROW WHEN (NEW.archive_key IS NOT NULL AND NEW.deleted_at IS NULL)
    EXECUTE FUNCTION check_archive_is_kept();
CREATE TRIGGER workspaces_archive_update AFTER UPDATE ON workspaces
    FOR EACH ROW WHEN (
        NEW.archive_key IS NOT NULL AND OLD.archive_key IS DISTINCT FROM NEW.archive_key
        OR NEW.recover_archive IS NOT NULL AND OLD.recover_archive IS DISTINCT FROM NEW.recover_archive
        OR OLD.deleted_at IS NOT NULL AND NEW.deleted_at IS NULL
    ) EXECUTE FUNCTION check_archive_is_kept();

CREATE INDEX archives_verified ON archives (verified_at);

-- Every garbage collection leaves its id here and in the bucket, and so does
-- the server a moment after an archive was made. Where the two differ, the
-- database was restored from a backup, or another one uses the same bucket as
-- if it were this one: every wait begins anew then.
CREATE TABLE gc_state (
    only_row     boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    run          uuid,
    ran_at       timestamptz,
    restored_at  timestamptz, -- when the two last differed
    -- The settings of the server that collected last: `codehub gc` without them
    -- must not take more than it would.
    delete_grace interval NOT NULL DEFAULT '0',
    delay        interval NOT NULL DEFAULT '0',
    keep         integer NOT NULL DEFAULT 0 CHECK (keep >= 0)
);
INSERT INTO gc_state DEFAULT VALUES;
