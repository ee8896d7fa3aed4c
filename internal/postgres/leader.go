package postgres

// leading is the leader as the database knows it: the beat's row, if the very
// session that it names holds the leader's lock (package lease). No row while
// nobody leads, or a command keeps servers from it.
const leading = `
	SELECT b.replica_id
	FROM leader b
	JOIN pg_stat_activity s ON s.pid = b.pid AND s.backend_start = b.backend_start
	JOIN pg_locks k ON k.pid = b.pid
	WHERE k.locktype = 'advisory' AND k.granted AND k.objsubid = 1
		AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND (k.classid::bigint << 32) + k.objid::bigint = ` + leaderKey

// leaderKey is package lease's lock, 0x636f646568756201.
const leaderKey = `7165055918876746241`
