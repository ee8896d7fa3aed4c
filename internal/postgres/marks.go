package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// Marks is the database's part of the marks (package mark), written through the leader's
// session.
type Marks struct {
	session Session
}

// NewMarks returns the Marks of a session.
func NewMarks(s Session) *Marks { return &Marks{s} }

// MarkState is the database's state of the marks.
type MarkState struct {
	Run     string // id of the last mark; empty: none
	Serial  int64
	NextRun string // id of the announced mark; empty: none
	// Wanted requests a new mark: a deletion was undone or an archive was stored since the last
	// one.
	Wanted   bool
	Hold     string // why this database is on hold; empty: it is not
	TakeOver bool   // this database is to lead regardless of the marks
	// TakenOver is when an administrator last requested a take-over; nil: never.
	TakenOver *time.Time
}

func (m *Marks) do(ctx context.Context, verb string, f func(ctx context.Context, conn *pgx.Conn) error) error {
	return failed(verb, (&Collector{m.session}).do(ctx, f))
}

const selectMarks = `
	SELECT run, serial, next_run, hold, take_over, taken_over_at,
		mark_wanted OR EXISTS (SELECT FROM archives WHERE verified_at >= COALESCE(ran_at, '-infinity'))
	FROM gc_state`

func (s *MarkState) targets() []any {
	return []any{orEmpty(&s.Run), &s.Serial, orEmpty(&s.NextRun), orEmpty(&s.Hold), &s.TakeOver, &s.TakenOver, &s.Wanted}
}

// State reads the state of the marks.
func (m *Marks) State(ctx context.Context) (s MarkState, err error) {
	err = m.do(ctx, "read the state of the marks", func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, selectMarks).Scan(s.targets()...)
	})
	return s, err
}

// Identity returns an id by which this database differs from its copies, as far as PostgreSQL
// can tell. It changes when a standby is promoted.
func (m *Marks) Identity(ctx context.Context) (id string, err error) {
	err = m.do(ctx, "read the database's identity", func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `
			SELECT s.system_identifier || '/' || c.timeline_id || '/' || d.oid
			FROM pg_control_system() s, pg_control_checkpoint() c, pg_database d
			WHERE d.datname = current_database()`).Scan(&id)
	})
	return id, err
}

// Announce records the mark that is about to be stored, with a serial above floor. It returns
// an announced mark that was not settled again, unless its serial is not above floor.
func (m *Marks) Announce(ctx context.Context, floor int64) (mark workspace.Mark, err error) {
	err = m.do(ctx, "announce a mark", func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `
			WITH announced AS (UPDATE gc_state SET
				next_run = CASE WHEN next_serial > $2 THEN next_run ELSE $1 END,
				next_serial = CASE WHEN next_serial > $2 THEN next_serial ELSE GREATEST(serial, next_serial, $2) + 1 END,
				-- What is wanted from here on wants another one.
				mark_wanted = mark_wanted AND COALESCE(next_serial > $2, false),
				ran_at = CASE WHEN next_serial > $2 THEN ran_at ELSE clock_timestamp() END
			RETURNING next_run, next_serial),
			-- The snapshot is that of before: run is the mark that is about to be replaced.
			recorded AS (INSERT INTO past_marks (run)
				SELECT next_run FROM announced UNION SELECT run FROM gc_state WHERE run IS NOT NULL
				ON CONFLICT (run) DO UPDATE SET left_at = EXCLUDED.left_at),
			pruned AS (DELETE FROM past_marks WHERE left_at < clock_timestamp() - make_interval(days => 30)
				AND run NOT IN (SELECT run FROM gc_state WHERE run IS NOT NULL UNION SELECT next_run FROM announced))
			SELECT next_run, next_serial, clock_timestamp() FROM announced`, uuid.NewString(), floor).Scan(&mark.ID, &mark.Serial, &mark.At)
	})
	return mark, err
}

// Settle makes the announced mark the last one, after it was stored in Docker.
func (m *Marks) Settle(ctx context.Context, id string) error {
	return m.do(ctx, "settle a mark", func(ctx context.Context, conn *pgx.Conn) error {
		tag, err := conn.Exec(ctx, `
			UPDATE gc_state SET run = next_run, serial = next_serial, next_run = NULL, next_serial = NULL, take_over = false
			WHERE next_run = $1`, id)
		if err == nil && tag.RowsAffected() == 0 {
			err = fmt.Errorf("mark %s is not the announced one", id)
		}
		return err
	})
}

// Left reports whether this database, or the one that it was copied from, left the mark. A mark
// is forgotten 30 days after it was replaced.
func (m *Marks) Left(ctx context.Context, id string) (left bool, err error) {
	err = m.do(ctx, "look up a past mark", func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM past_marks WHERE run::text = $1)`, id).Scan(&left)
	})
	return left, err
}

// Supersede records marks of another database, from which this one takes over, as past ones.
func (m *Marks) Supersede(ctx context.Context, ids ...string) error {
	ids = slices.DeleteFunc(ids, func(id string) bool { return uuid.Validate(id) != nil })
	return m.do(ctx, "record the marks of another database", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `INSERT INTO past_marks (run) SELECT DISTINCT unnest($1::text[])::uuid ON CONFLICT DO NOTHING`, ids)
		return err
	})
}

// RestartWaits restarts every delay that ends in a removal: the grace of deletions,
// and the delay of garbage collection and of orphans.
func (m *Marks) RestartWaits(ctx context.Context) error {
	return m.do(ctx, "restart the waits", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, restartWaits)
		return err
	})
}

// Hold records why this database is on hold. A take-over that was requested since the marks
// were compared stays.
func (m *Marks) Hold(ctx context.Context, why string) error {
	return m.do(ctx, "put codehub on hold", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `UPDATE gc_state SET hold = $1, hold_since = COALESCE(hold_since, clock_timestamp()) WHERE NOT take_over`, clean(why))
		return err
	})
}

// Release ends the hold after its cause has ended.
func (m *Marks) Release(ctx context.Context) error {
	return m.do(ctx, "end the hold", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `UPDATE gc_state SET hold = NULL, hold_since = NULL`)
		return err
	})
}

// OnHold returns why and since when this database is on hold; why is empty if it is not.
func (db *DB) OnHold(ctx context.Context) (why string, since time.Time, err error) {
	var at *time.Time
	err = db.pool.QueryRow(ctx, `SELECT hold, hold_since FROM gc_state`).Scan(orEmpty(&why), &at)
	if at != nil {
		since = *at
	}
	return why, since, failed("look whether codehub is on hold", err)
}

// requestMark requests a new mark from the leader.
func requestMark(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `UPDATE gc_state SET mark_wanted = true WHERE NOT mark_wanted`)
	return err
}

// takeOver requests that this database leads, and restarts every wait. CodeNotOnHold if it is
// not on hold.
func takeOver(ctx context.Context, tx pgx.Tx) error {
	tag, err := tx.Exec(ctx, `
		UPDATE gc_state SET hold = NULL, hold_since = NULL, take_over = true, taken_over_at = clock_timestamp(), restored_at = clock_timestamp() WHERE hold IS NOT NULL`)
	if err == nil && tag.RowsAffected() == 0 {
		err = workspace.Errorf(workspace.CodeNotOnHold, "codehub is not on hold.")
	}
	return err
}
