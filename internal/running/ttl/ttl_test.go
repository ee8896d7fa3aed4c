package ttl

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"codehub/internal/bus/activity"
	"codehub/internal/bus/redisbus"
	"codehub/internal/postgres"
	"codehub/internal/testing/activitytest"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/pgtest"
	"codehub/internal/testing/redistest"
	"codehub/internal/workspace"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// world is a server with its recorder, flusher and idle timeouts, on a database
// whose time the test moves.
type world struct {
	testing.TB
	*fixture.Database
	session session
	memory  *activity.Recorder
	flush   *activity.Flusher
	owner   workspace.Caller
	cfg     Config
}

// session is the leader's.
type session struct{ conn *pgx.Conn }

func (s session) Do(ctx context.Context, f func(ctx context.Context, conn *pgx.Conn) error) error {
	return f(ctx, s.conn)
}

// newWorld returns a world whose workspaces stop after 10 min and are archived
// after 30.
func newWorld(t testing.TB, bus activity.Bus) *world {
	t.Helper()
	w := &world{TB: t, Database: fixture.NewDatabase(t, postgres.Options{}), memory: activity.New()}
	w.session = session{w.Conn()}
	w.owner = w.AddUser("ann")
	self, log := uuid.NewString(), slog.New(slog.DiscardHandler)
	w.Exec(`INSERT INTO replicas (id) VALUES ($1)`, self)
	w.flush = activity.NewFlusher(activity.FlusherConfig{Memory: w.memory, Store: w.DB, Bus: bus, Replica: self, Log: log})
	w.cfg = Config{TTL: workspace.TTL{Standby: 10 * time.Minute, Archive: 30 * time.Minute}, Bus: bus, Log: log}
	return w
}

// workspace creates a workspace that has just entered a phase.
func (w *world) workspace(phase workspace.Phase) workspace.ID {
	w.Helper()
	ws := w.AddWorkspace(w.owner, uuid.NewString())
	w.Exec(`UPDATE workspaces SET phase = $2, desired_state = $2, phase_changed_at = clock_timestamp() WHERE id = $1`, ws.ID, phase)
	return ws.ID
}

// pass makes all times earlier by d. The server's heartbeat stays current.
func (w *world) pass(d time.Duration) {
	w.Helper()
	for _, move := range []string{
		`UPDATE workspaces SET phase_changed_at = phase_changed_at - $1::interval, last_access_at = last_access_at - $1::interval,
			keep_awake_until = keep_awake_until - $1::interval`,
		`UPDATE workspace_busy SET confirmed_at = confirmed_at - $1::interval, held_since = held_since - $1::interval`,
		`UPDATE activity_clock SET watched_until = watched_until - $1::interval`,
		`UPDATE replicas SET flushed_at = flushed_at - $1::interval, started_at = started_at - $1::interval`,
	} {
		w.Exec(move, d)
	}
	w.Exec(`WITH old AS (DELETE FROM unwatched RETURNING *) INSERT INTO unwatched SELECT began - $1::interval, ended - $1::interval FROM old`, d)
}

// begin starts a term.
func (w *world) begin() *term {
	t := &term{Runner: New(w.cfg), store: postgres.NewActivityClock(w.session), idle: postgres.NewIdleness(w.session)}
	t.clock = activity.NewClock(t.store, t.cfg.Bus, t.cfg.Log, t.behind)
	return t
}

func (w *world) flushes() {
	w.Helper()
	if err := w.flush.Flush(w.Context()); err != nil {
		w.Fatal(err)
	}
}

func (w *world) ticks(t *term) {
	w.Helper()
	if err := t.tick(w.Context()); err != nil {
		w.Fatal(err)
	}
}

// minutes lets minutes pass, with a flush and a tick after each.
func (w *world) minutes(t *term, n int) {
	w.Helper()
	for range n {
		w.pass(time.Minute)
		w.flushes()
		w.ticks(t)
	}
}

// touches records a use in the server's memory.
func (w *world) touches(id workspace.ID, kind activity.Kind) {
	m := w.memory.Mark(id)
	m.Touch(kind)
	m.Release()
}

// uses records a use and flushes until it has left memory, whose clock does not
// move.
func (w *world) uses(t *term, id workspace.ID, kind activity.Kind) {
	w.Helper()
	w.touches(id, kind)
	for range 1000 {
		w.flushes()
		w.ticks(t)
		if _, there := w.memory.Last(id); !there {
			return
		}
	}
	w.Fatal("it is not forgotten")
}

// wants checks the desired state and its cause.
func (w *world) wants(when string, id workspace.ID, want workspace.DesiredState, cause string) {
	w.Helper()
	ws, err := w.DB.Workspace(w.Context(), workspace.System, id)
	if err != nil {
		w.Fatal(err)
	}
	if ws.DesiredState != want || ws.DesiredCause != cause {
		w.Fatalf("%s: desired %s for %q, want %s for %q", when, ws.DesiredState, ws.DesiredCause, want, cause)
	}
}

const (
	runs  = workspace.DesiredRunning
	rests = workspace.DesiredStandby
)

// A workspace stops after its idle timeout and is archived after the next one;
// every use restarts the timeouts.
func TestStopAndArchiveAfterTimeout(t *testing.T) {
	t.Parallel()
	for name, bus := range map[string]func(t *testing.T) activity.Bus{
		"database": func(*testing.T) activity.Bus { return nil },
		"bus":      func(*testing.T) activity.Bus { return activitytest.NewBus() },
		"Redis":    func(t *testing.T) activity.Bus { bus, _ := redisBus(t); return bus },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, bus(t))
			w.flushes()
			term := w.begin()
			w.ticks(term)
			idle, used, rest := w.workspace("RUNNING"), w.workspace("RUNNING"), w.workspace("STANDBY")
			w.minutes(term, 9)
			w.wants("before its TTL", idle, runs, "")
			w.uses(term, used, activity.Typing)
			w.minutes(term, 2)
			w.wants("after its TTL", idle, rests, workspace.CauseIdle)
			w.minutes(term, 7)
			w.wants("before the TTL since its use", used, runs, "")
			w.minutes(term, 3)
			w.wants("after the TTL since its use", used, rests, workspace.CauseIdle)
			w.minutes(term, 8)
			w.wants("before its archive TTL", rest, rests, "")
			w.minutes(term, 3)
			w.wants("after its archive TTL", rest, workspace.DesiredArchived, workspace.CauseUnused)
			if s := term.Status(); s.Stopped != 2 || s.Archived != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// The first start, and one after an hour without a server, stop no workspace at the
// first tick: each has the rest of its idle timeout left.
func TestUnobservedTimeDoesNotCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	old := w.workspace("RUNNING")
	w.pass(100 * time.Hour)
	w.Exec(`UPDATE replicas SET started_at = now()`)
	term := w.begin()
	w.ticks(term) // no flush yet: the clock advances to the start of the server
	w.flushes()
	w.ticks(term)
	w.wants("at a first start", old, runs, "")
	w.minutes(term, 9)
	w.wants("before its TTL", old, runs, "")

	w.pass(time.Hour) // the database was unavailable: no flush, no tick
	again := w.begin()
	w.flushes()
	w.ticks(again)
	w.wants("after an outage", old, runs, "")
	w.minutes(again, 2)
	w.wants("after the rest of its TTL", old, rests, workspace.CauseIdle)
}

// After the database's clock was set back by an hour, a workspace that starts
// before the clock has caught up does not count as idle for that hour.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.flushes()
	term := w.begin()
	w.ticks(term)
	w.Exec(`UPDATE activity_clock SET watched_until = watched_until + interval '1 hour'`)
	w.Exec(`UPDATE replicas SET flushed_at = flushed_at + interval '1 hour'`)
	w.ticks(term)
	id := w.workspace("RUNNING")
	w.minutes(term, 30)
	w.wants("before the clock has caught up", id, runs, "")
	w.minutes(term, 60)
	w.wants("after its TTL", id, rests, workspace.CauseIdle)
}

// Before every server has flushed, no workspace stops; one that was used meanwhile
// does not stop afterwards.
func TestMissingFlushStopsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.flushes()
	term := w.begin()
	w.ticks(term)
	idle, used := w.workspace("RUNNING"), w.workspace("RUNNING")
	slow := uuid.NewString()
	w.Exec(`INSERT INTO replicas (id) VALUES ($1)`, slow)
	w.minutes(term, 2)
	w.Exec(`UPDATE replicas SET flushed_at = now(), flush_epoch = 'database' WHERE id = $1`, slow)
	for range 30 {
		w.minutes(term, 1) // the slow one is seen and does not flush
	}
	w.wants("unknown", idle, runs, "")
	at := time.Now().Add(-time.Minute)
	if err := w.DB.SaveAccesses(t.Context(), []activity.Access{{ID: used, At: at, Kind: activity.Output}}); err != nil {
		t.Fatal(err)
	}
	w.Exec(`UPDATE replicas SET flushed_at = now(), flush_epoch = 'database' WHERE id = $1`, slow)
	w.ticks(term)
	w.wants("known, after a jump", idle, runs, "") // half an hour is a gap
	w.Exec(`DELETE FROM replicas WHERE id = $1`, slow)
	w.minutes(term, 9)
	w.wants("known", idle, rests, workspace.CauseIdle)
	w.wants("used at the slow one", used, runs, "")
}

// A bus that loses its content stops no workspace: the activity is flushed again
// before the clock advances past it.
func TestBusLossStopsNothing(t *testing.T) {
	t.Parallel()
	bus := activitytest.NewBus()
	w := newWorld(t, bus)
	w.flushes()
	term := w.begin()
	w.ticks(term)
	used := w.workspace("RUNNING")
	w.minutes(term, 9)
	until := term.clock.Until()
	w.touches(used, activity.Presence)
	w.flushes()
	bus.Lose()
	w.pass(2 * time.Minute)
	w.ticks(term)
	if !term.clock.Until().Equal(until) {
		t.Fatal("the clock moved past what was lost")
	}
	w.wants("while activity is unknown", used, runs, "")
	w.minutes(term, 1)
	w.wants("known again", used, runs, "")
	w.uses(term, used, activity.Presence)

	// Unreachable for an hour, with the database in its place.
	bus.Fail(errors.New("away"))
	for range 5 {
		w.uses(term, used, activity.Typing)
		w.minutes(term, 9)
	}
	w.wants("used without a bus", used, runs, "")
	w.minutes(term, 2)
	w.wants("idle without a bus", used, rests, workspace.CauseIdle)
}

// The same with Redis, restarted empty and flushed.
func TestRedisLossStopsNothing(t *testing.T) {
	t.Parallel()
	bus, server := redisBus(t)
	w := newWorld(t, bus)
	w.flushes()
	term := w.begin()
	w.ticks(term)
	used := w.workspace("RUNNING")
	for _, lose := range []func(){server.Restart, server.Flush} {
		w.minutes(term, 9)
		w.wants("before its TTL", used, runs, "")
		w.touches(used, activity.Output)
		w.flushes()
		lose()
		w.pass(2 * time.Minute)
		w.ticks(term)
		w.wants("while activity is unknown", used, runs, "")
		w.minutes(term, 1)
		w.wants("known again", used, runs, "")
		w.uses(term, used, activity.Output)
	}
	server.Stop()
	w.minutes(term, 9)
	w.wants("used before Redis went", used, runs, "")
	w.minutes(term, 2)
	w.wants("idle without Redis", used, rests, workspace.CauseIdle)
}

func redisBus(t *testing.T) (activity.Bus, *redistest.Server) {
	t.Helper()
	server := redistest.New(t)
	bus, err := redisbus.Open(redisbus.Config{URL: server.URL(), Settings: redisbus.Settings{SSEPrefix: "sse", WakePrefix: "wake", ActivityKey: "activity"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bus.Close() })
	return bus, server
}

// A workspace that is kept awake neither stops nor is archived before that time; a
// timeout of 0 means never.
func TestKeepAwake(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.flushes()
	term := w.begin()
	w.ticks(term)
	awake, never := w.workspace("RUNNING"), w.workspace("RUNNING")
	w.Exec(`UPDATE workspaces SET keep_awake_until = clock_timestamp() + interval '30 min' WHERE id = $1`, awake)
	w.Exec(`UPDATE workspaces SET standby_ttl_seconds = 0 WHERE id = $1`, never)
	w.minutes(term, 29)
	w.wants("kept awake", awake, runs, "")
	w.minutes(term, 2)
	w.wants("no longer kept awake", awake, rests, workspace.CauseIdle)
	w.minutes(term, 60)
	w.wants("never", never, runs, "")
}

// If more workspaces are due than one statement handles, one tick still handles
// all.
func TestBatches(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.cfg.BatchSize = 3
	w.flushes()
	term := w.begin()
	w.ticks(term)
	var ids []workspace.ID
	for range 10 {
		ids = append(ids, w.workspace("RUNNING"))
	}
	w.Exec(`UPDATE workspaces SET phase_changed_at = phase_changed_at - interval '1 hour'`)
	w.Exec(`DELETE FROM unwatched`)
	w.minutes(term, 1)
	for _, id := range ids {
		w.wants("all", id, rests, workspace.CauseIdle)
	}
}

// With one server, a workspace used right before the tick does not stop, even if
// the use was not flushed yet.
func TestRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.flushes()
	first := w.begin()
	w.ticks(first)
	idle, used := w.workspace("RUNNING"), w.workspace("RUNNING")
	w.minutes(first, 8)
	w.pass(150 * time.Second)
	w.touches(used, activity.Typing)
	w.cfg.Flush, w.cfg.Interval = w.flush.Flush, 10*time.Millisecond
	r := New(w.cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, w.session) }()
	harness.Await(t, time.Minute, "a workspace is stopped", r.Status, func(s Status) bool { return s.Stopped > 0 })
	if r.Status().WatchedUntil.IsZero() {
		t.Error("it does not tell how far it is")
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	w.wants("idle", idle, rests, workspace.CauseIdle)
	w.wants("used", used, runs, "")
	if s := r.Status(); !s.WatchedUntil.IsZero() || s.Err != "" {
		t.Errorf("%+v", s)
	}
}

// A lost session stops no workspace, and is logged.
func TestRunWithoutSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.flushes()
	id := w.workspace("RUNNING")
	_ = w.session.conn.Close(t.Context())
	w.cfg.Interval = time.Millisecond
	r := New(w.cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, w.session) }()
	harness.Await(t, time.Minute, "the error is reported", r.Status, func(s Status) bool { return s.Err != "" })
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	w.wants("without a leader", id, runs, "")
}
