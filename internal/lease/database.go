package lease

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// key names the leader's lock among the advisory locks of the database.
const key int64 = 0x636f646568756201

// holds is true where the session of the row leader holds the lock of key $1.
// Session and row are matched by the pid and by when its session began: a pid
// is given out again.
const holds = `EXISTS (
	SELECT FROM pg_locks k JOIN pg_stat_activity s ON s.pid = k.pid
	WHERE k.locktype = 'advisory' AND k.granted AND k.objsubid = 1
		AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND (k.classid::bigint << 32) + k.objid::bigint = $1
		AND s.pid = leader.pid AND s.backend_start = leader.backend_start)`

// backend is the database's end of a session.
type backend struct {
	pid   int32
	start time.Time
}

func identify(ctx context.Context, conn *pgx.Conn) (b backend, err error) {
	err = conn.QueryRow(ctx, `SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()`).Scan(&b.pid, &b.start)
	if err != nil {
		return backend{}, err
	}
	// Who dies in the middle of a statement is noticed before that ends. Older
	// databases do not have it.
	_, err = conn.Exec(ctx, `
		SELECT set_config(name, '2s', false) FROM pg_settings WHERE name = 'client_connection_check_interval'`)
	return b, err
}

// leader is who leads, or led last, as the row has it.
type leader struct {
	replica string
	backend
	beat time.Time     // by the database's clock
	age  time.Duration // of the beat, by the same
}

// try takes the lock and, in the same statement, beats for the first time. It
// returns who beats, or, if it got the lock, who beat last before that.
func try(ctx context.Context, conn *pgx.Conn, replica string, self backend) (got bool, other leader, err error) {
	ctx, cancel := context.WithTimeout(ctx, ask)
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
	return got, leader{replica: *id, backend: backend{pid: *pid, start: *start}, beat: *beat, age: *age}, nil
}

// errLost is the error of a beat that found the lock with somebody else, or
// nobody.
var errLost = errors.New("its session does not hold the leader's lock any more")

// beat writes a beat of replica with the session self, on whatever connection.
// A pooler may give the same session to the next leader.
func beat(ctx context.Context, conn *pgx.Conn, replica string, self backend) error {
	tag, err := conn.Exec(ctx, `
		UPDATE leader SET beat_at = clock_timestamp()
		WHERE replica_id = $4::uuid AND pid = $2 AND backend_start = $3 AND `+holds, key, self.pid, self.start, replica)
	if err == nil && tag.RowsAffected() == 0 {
		err = errLost
	}
	return err
}

// end ends exactly the session of that leader, if it still holds the lock and
// has not beaten since.
func end(ctx context.Context, conn *pgx.Conn, l leader) (ended bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, ask)
	defer cancel()
	err = conn.QueryRow(ctx, `
		SELECT pg_terminate_backend(pid) FROM leader
		WHERE pid = $2 AND backend_start = $3 AND beat_at = $4 AND `+holds, key, l.pid, l.start, l.beat).Scan(&ended)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return ended, err
}
