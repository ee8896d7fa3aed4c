-- As databases of the first version had it at first: times in UTC, without
-- saying so.
ALTER TABLE users
    ALTER created_at TYPE timestamp USING created_at AT TIME ZONE 'UTC',
    ALTER locked_until TYPE timestamp USING locked_until AT TIME ZONE 'UTC',
    ALTER last_failed_at TYPE timestamp USING last_failed_at AT TIME ZONE 'UTC';
ALTER TABLE workspaces
    ALTER created_at TYPE timestamp USING created_at AT TIME ZONE 'UTC',
    ALTER updated_at TYPE timestamp USING updated_at AT TIME ZONE 'UTC',
    ALTER deleted_at TYPE timestamp USING deleted_at AT TIME ZONE 'UTC';
