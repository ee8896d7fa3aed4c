package lease

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// key is the advisory lock of the leader.
const key int64 = 0x636f646568756201

// holdsLock is a condition that the session of the row leader holds the lock with
// key $1. The session is identified by its pid and start time, because pids are
// reused.
const holdsLock = `EXISTS (
	SELECT FROM pg_locks k JOIN pg_stat_activity s ON s.pid = k.pid
	WHERE k.locktype = 'advisory' AND k.granted AND k.objsubid = 1
		AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND (k.classid::bigint << 32) + k.objid::bigint = $1
		AND s.pid = leader.pid AND s.backend_start = leader.backend_start)`

// backend identifies a session in the database.
type backend struct {
	pid   int32
	start time.Time
}

func identify(ctx context.Context, conn *pgx.Conn) (b backend, err error) {
	err = conn.QueryRow(ctx, `SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()`).Scan(&b.pid, &b.start)
	if err != nil {
		return backend{}, err
	}
	// The database then notices a client that dies during a statement before the
	// statement ends. Older versions lack the setting.
	_, err = conn.Exec(ctx, `
		SELECT set_config(name, '2s', false) FROM pg_settings WHERE name = 'client_connection_check_interval'`)
	return b, err
}

// leader is the current or last leader, as in its row.
type leader struct {
	replica string
	backend
	heartbeatAt  time.Time     // by the database's clock
	heartbeatAge time.Duration // of the last heartbeat, by the database's clock
}

// try takes the lock and, in the same statement, sends the first heartbeat. It
// returns the current leader, or the previous one if it got the lock.
func try(ctx context.Context, conn *pgx.Conn, replica string, self backend) (got bool, other leader, err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var id *string
	var pid *int32
	var start, beat *time.Time
	var age *time.Duration
	err = conn.QueryRow(ctx, `
		WITH lock AS MATERIALIZED (
			SELECT pg_try_advisory_lock($1) AS got
		), took AS (
			INSERT INTO leader (replica_id, pid, backend_start, beat_at)
			SELECT $2::uuid, $3, $4, clock_timestamp() FROM lock WHERE got
			ON CONFLICT (only_row) DO UPDATE SET replica_id = EXCLUDED.replica_id, pid = EXCLUDED.pid,
				backend_start = EXCLUDED.backend_start, beat_at = EXCLUDED.beat_at
		)
		SELECT lock.got, l.replica_id::text, l.pid, l.backend_start, l.beat_at, clock_timestamp() - l.beat_at
		FROM lock LEFT JOIN leader l ON true`, key, replica, self.pid, self.start).Scan(&got, &id, &pid, &start, &beat, &age)
	if err != nil || id == nil {
		return got, leader{}, err
	}
	return got, leader{replica: *id, backend: backend{pid: *pid, start: *start}, heartbeatAt: *beat, heartbeatAge: *age}, nil
}

// errLost is returned by a heartbeat whose session does not hold the lock.
var errLost = errors.New("the session lost the leader's lock")

// recordHeartbeat records a heartbeat for replica with the session self, on any
// connection. It checks the replica as well, because a connection pooler may give
// the same session to the next leader.
func recordHeartbeat(ctx context.Context, conn *pgx.Conn, replica string, self backend) error {
	tag, err := conn.Exec(ctx, `
		UPDATE leader SET beat_at = clock_timestamp()
		WHERE replica_id = $4::uuid AND pid = $2 AND backend_start = $3 AND `+holdsLock, key, self.pid, self.start, replica)
	if err == nil && tag.RowsAffected() == 0 {
		err = errLost
	}
	return err
}

// end terminates that leader's session if it still holds the lock and has sent no
// further heartbeat.
func end(ctx context.Context, conn *pgx.Conn, l leader) (ended bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	err = conn.QueryRow(ctx, `
		SELECT pg_terminate_backend(pid) FROM leader
		WHERE pid = $2 AND backend_start = $3 AND beat_at = $4 AND `+holdsLock, key, l.pid, l.start, l.heartbeatAt).Scan(&ended)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return ended, err
}
