package postgres

// leading selects the current leader: the heartbeat's row, if the session that it names holds
// the leader's lock (package lease). It has no row while no server leads, or a command holds
// the lock.
const leading = `
	SELECT b.replica_id
	FROM leader b
	JOIN pg_stat_activity s ON s.pid = b.pid AND s.backend_start = b.backend_start
	JOIN pg_locks k ON k.pid = b.pid
	WHERE k.locktype = 'advisory' AND k.granted AND k.objsubid = 1
		AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND (k.classid::bigint << 32) + k.objid::bigint = ` + leaderKey

// leaderKey is the lock of package lease, 0x636f646568756201.
const leaderKey = `7165055918876746241`
