-- Marks: the leader leaves the same random id here, in Docker and in the
-- bucket, and another one at least every minute. What differs outside was
-- left by another database, or by this one at a later time than it is of.

-- +goose Up
ALTER TABLE gc_state
    -- Of the mark `run`. A mark with a higher serial is a later one.
    ADD COLUMN serial bigint NOT NULL DEFAULT 0,
    -- The next mark, announced here before it is stored anywhere else, so that
    -- a crash in between does not look like a restored database.
    ADD COLUMN next_run uuid,
    ADD COLUMN next_serial bigint,
    ADD CONSTRAINT gc_state_next CHECK ((next_run IS NULL) = (next_serial IS NULL)),
    -- An undelete asks for a new mark, so that a backup from before it shows.
    ADD COLUMN mark_wanted boolean NOT NULL DEFAULT false,
    -- Why nothing is done: the marks show that another database led last.
    ADD COLUMN hold text,
    ADD COLUMN hold_since timestamptz,
    -- An administrator has decided that this database leads; the leader stores
    -- its marks without comparing them, and clears this.
    ADD COLUMN take_over boolean NOT NULL DEFAULT false,
    ADD COLUMN taken_over_at timestamptz;

-- The marks that this database left in the last days. An older mark outside that
-- is not among them was left by a copy of this database.
CREATE TABLE past_marks (
    run uuid PRIMARY KEY,
    left_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX past_marks_left_at ON past_marks (left_at);
