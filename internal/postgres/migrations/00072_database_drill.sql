-- +goose Up

-- The last comparison of a backup of the database. Servers of the version before go on: they make none.
CREATE TABLE database_drill (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    ended_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    result   jsonb NOT NULL
);
COMMENT ON TABLE database_drill IS 'The last [drill](backup.md#drill-of-the-database) of a backup of the database, in one row, or none. The leader and `codehub database drill` write it';
COMMENT ON COLUMN database_drill.result IS 'as in the [status](api.md#administration) that administrators read';
