package lease_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"codehub/internal/control/lease"
	"codehub/internal/postgres"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/pgtest"
)

// patience limits waits for what must happen, on a busy machine.
const patience = 2 * time.Minute

func config(t testing.TB, dsn string) *pgx.ConnConfig {
	t.Helper()
	cfg, err := postgres.ConnConfig(dsn, "codehub-leader")
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func connect(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func execute(t testing.TB, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func await[T any](t testing.TB, what string, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		t.Fatalf("no %s within %s", what, patience)
	}
	return v
}

// run competes for the lock until the test ends or the returned function is called.
func run(t *testing.T, cfg lease.Config) (stop func()) {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- lease.Run(ctx, cfg) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// terms is a candidate whose terms the test controls.
type terms struct {
	id    string
	began chan *lease.Session
	ended chan error // why the session ended, after its term
	stop  func()
}

func candidate(t *testing.T, dsn string) *terms {
	t.Helper()
	c := &terms{id: uuid.NewString(), began: make(chan *lease.Session, 100), ended: make(chan error, 100)}
	c.stop = run(t, lease.Config{Conn: config(t, dsn), Replica: c.id, Term: func(ctx context.Context, s *lease.Session) error {
		c.began <- s
		<-ctx.Done()
		c.ended <- s.Alive()
		return nil
	}})
	return c
}

func database(t *testing.T) string { return pgtest.New(t, postgres.Migrate) }

func pid(t testing.TB, s *lease.Session) (pid uint32) {
	t.Helper()
	err := s.Do(t.Context(), func(_ context.Context, conn *pgx.Conn) error {
		pid = conn.PgConn().PID()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestFollowerTakesOver(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	var leading atomic.Int32
	began := make(chan int, 2)
	term := func(n int) lease.Term {
		return func(ctx context.Context, _ *lease.Session) error {
			if leading.Add(1) != 1 {
				t.Error("two lead at once")
			}
			defer leading.Add(-1)
			began <- n
			<-ctx.Done()
			return nil
		}
	}
	var stops []func()
	for n := range 2 {
		stops = append(stops, run(t, lease.Config{Conn: config(t, dsn), Term: term(n)}))
	}
	first := await(t, "leader", began)
	stops[first]()
	if second := await(t, "other leader", began); second == first {
		t.Errorf("%d leads again", first)
	}
}

// Terminating the session ends the term before anything is written through it; the
// next term begins with a new session that holds the lock.
func TestTerminatedSessionEndsTerm(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	c := candidate(t, dsn)
	s := await(t, "leader", c.began)
	first := pid(t, s)
	execute(t, connect(t, dsn), `SELECT pg_terminate_backend($1)`, first)
	if err := await(t, "end of the term", c.ended); !errors.Is(err, lease.ErrOver) {
		t.Errorf("alive: %v", err)
	}
	err := s.Do(t.Context(), func(context.Context, *pgx.Conn) error {
		t.Error("a session that is over is used")
		return nil
	})
	if !errors.Is(err, lease.ErrOver) {
		t.Errorf("do: %v", err)
	}
	if second := pid(t, await(t, "leader", c.began)); second == first {
		t.Error("the session that was ended leads")
	}
}

// If the lock is lost without the session, the next heartbeat ends the term.
func TestLostLockEndsTerm(t *testing.T) {
	t.Parallel()
	c := candidate(t, database(t))
	err := await(t, "leader", c.began).Do(t.Context(), func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `SELECT pg_advisory_unlock_all()`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := await(t, "end of the term", c.ended); !errors.Is(err, lease.ErrOver) || !strings.Contains(err.Error(), "lock") {
		t.Errorf("%v", err)
	}
	await(t, "next term", c.began)
}

// The leader is known while its session holds the lock.
func TestLeaderIsListed(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	db, err := postgres.Open(t.Context(), dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	c := candidate(t, dsn)
	for _, id := range []string{c.id, uuid.NewString()} {
		if err := db.JoinReplica(t.Context(), postgres.Replica{ID: id}, func([]postgres.Replica) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	leads := func() (ids []string) {
		list, err := db.Replicas(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list {
			if r.Leads {
				ids = append(ids, r.ID)
			}
		}
		return ids
	}
	await(t, "leader", c.began)
	if ids := leads(); len(ids) != 1 || ids[0] != c.id {
		t.Errorf("%v lead, it is %s", ids, c.id)
	}
	c.stop()
	harness.Eventually(t, "no leader", func() bool { return len(leads()) == 0 })
}

// A term knows how long there was no heartbeat before it, by the database's clock,
// in whatever direction that was set.
func TestTermReportsGapSinceLastLeader(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	conn := connect(t, dsn)
	type gap struct {
		since time.Duration
		led   bool
	}
	began := make(chan gap, 1)
	term := func() gap {
		t.Helper()
		stop := run(t, lease.Config{Conn: config(t, dsn), Term: func(ctx context.Context, s *lease.Session) error {
			since, led := s.Gap()
			began <- gap{since, led}
			<-ctx.Done()
			return nil
		}})
		defer stop()
		return await(t, "term", began)
	}
	if g := term(); g.led || g.since != 0 {
		t.Errorf("the first term: %+v", g)
	}
	if g := term(); !g.led || g.since < 0 || g.since > time.Minute {
		t.Errorf("the second term: %+v", g)
	}
	for _, ago := range []time.Duration{24 * time.Hour, -24 * time.Hour} {
		execute(t, conn, `UPDATE leader SET beat_at = clock_timestamp() - $1::interval`, ago)
		if g := term(); !g.led || (g.since-ago).Abs() > time.Minute {
			t.Errorf("after %s: %+v", ago, g)
		}
	}
}

// A statement may take longer than a term lasts without a heartbeat.
func TestLongStatementKeepsTerm(t *testing.T) {
	t.Parallel()
	c := candidate(t, database(t))
	s := await(t, "leader", c.began)
	err := s.Do(t.Context(), func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `SELECT pg_sleep(7)`)
		return err
	})
	if err != nil || s.Alive() != nil || len(c.ended) != 0 {
		t.Errorf("%v, %v, %d terms ended", err, s.Alive(), len(c.ended))
	}
}

// Cancelling Do does not end the term.
func TestCancelledDoKeepsTerm(t *testing.T) {
	t.Parallel()
	s := await(t, "leader", candidate(t, database(t)).began)
	ctx, cancel := context.WithCancel(t.Context())
	err := s.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		cancel()
		_, err := conn.Exec(ctx, `SELECT pg_sleep(0.3)`)
		return err
	})
	if err != nil || s.Alive() != nil {
		t.Errorf("%v, %v", err, s.Alive())
	}
	if err := s.Do(ctx, func(context.Context, *pgx.Conn) error { return errors.New("begun") }); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// Without a free connection the leader sends heartbeats on its session.
func TestHeartbeatWithoutFreeConnections(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	cfg := config(t, dsn)
	var dials atomic.Int32
	dial := cfg.DialFunc
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if dials.Add(1) > 1 {
			return nil, errors.New("no more connections")
		}
		return dial(ctx, network, addr)
	}
	began, ended := make(chan *lease.Session, 1), make(chan error, 1)
	run(t, lease.Config{Conn: cfg, Term: func(ctx context.Context, s *lease.Session) error {
		began <- s
		<-ctx.Done()
		ended <- s.Alive()
		return nil
	}})
	await(t, "leader", began)
	conn := connect(t, dsn)
	var first time.Time
	if err := conn.QueryRow(t.Context(), `SELECT beat_at FROM leader`).Scan(&first); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "beats for longer than a term lasts without", func() bool {
		var beat time.Time
		if err := conn.QueryRow(t.Context(), `SELECT beat_at FROM leader`).Scan(&beat); err != nil {
			t.Fatal(err)
		}
		return beat.Sub(first) > 7*time.Second
	})
	select {
	case err := <-ended:
		t.Errorf("the term ended: %v", err)
	default:
	}
}

// A command that holds the lock sends no heartbeats and is not terminated.
func TestHoldIsNotTerminated(t *testing.T) {
	t.Parallel()
	wait := time.Second
	if harness.Verifying() {
		wait = 9 * time.Second // longer than a follower observes before it acts
	}
	dsn := database(t)
	before := candidate(t, dsn)
	await(t, "leader", before.began)
	before.stop()
	command, admin := connect(t, dsn), connect(t, dsn)
	harness.Eventually(t, "the command has the lock", func() bool {
		held, err := lease.Hold(t.Context(), command)
		return held && err == nil
	})
	execute(t, admin, `UPDATE leader SET beat_at = now() - interval '1 hour'`)
	c := candidate(t, dsn)
	select {
	case <-c.began:
		t.Fatal("a server leads while the command holds the lock")
	case <-time.After(wait):
	}
	if err := command.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = command.Close(t.Context())
	await(t, "leader", c.began)
}

// Jumps of the database's clock do not end the term of a leader that sends
// heartbeats.
func TestClockJumpKeepsTerm(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	c := candidate(t, dsn)
	await(t, "leader", c.began)
	follower, admin := candidate(t, dsn), connect(t, dsn)
	for _, jump := range []string{"1 hour", "-1 hour"} {
		// All heartbeats from before the jump look like this.
		execute(t, admin, `UPDATE leader SET beat_at = beat_at - $1::interval`, jump)
		harness.Eventually(t, "the next beat", func() (beaten bool) {
			if err := admin.QueryRow(t.Context(), `SELECT abs(extract(epoch FROM clock_timestamp() - beat_at)) < 3 FROM leader`).Scan(&beaten); err != nil {
				t.Fatal(err)
			}
			return beaten
		})
	}
	if len(c.ended) != 0 || len(follower.began) != 0 {
		t.Errorf("%d terms ended, %d began", len(c.ended), len(follower.began))
	}
}

// A Term that hangs after its end does not prevent the next one and cannot write.
func TestHungTermIsAbandoned(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	began, letGo := make(chan *lease.Session, 10), make(chan struct{})
	defer close(letGo)
	run(t, lease.Config{Conn: config(t, dsn), Linger: time.Second, Term: func(context.Context, *lease.Session) error {
		began <- nil
		<-letGo
		return nil
	}})
	await(t, "leader", began)
	execute(t, connect(t, dsn), `SELECT pg_terminate_backend(pid) FROM leader`)
	await(t, "next term", began)
}

// The same for one that hangs while it uses the session.
func TestHungSessionUserIsAbandoned(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	began, letGo := make(chan *lease.Session, 10), make(chan struct{})
	defer close(letGo)
	run(t, lease.Config{Conn: config(t, dsn), Linger: time.Second, Term: func(ctx context.Context, s *lease.Session) error {
		began <- s
		return s.Do(ctx, func(context.Context, *pgx.Conn) error {
			<-letGo
			return nil
		})
	}})
	await(t, "leader", began)
	admin := connect(t, dsn)
	execute(t, admin, `UPDATE leader SET pid = 0`) // heartbeats then report the lock as lost
	await(t, "next term", began)
}

// An outage of the database is logged once.
func TestOutageIsLoggedOnce(t *testing.T) {
	t.Parallel()
	cfg := config(t, database(t))
	var tries atomic.Int32
	again := make(chan struct{}, 1)
	cfg.DialFunc = func(context.Context, string, string) (net.Conn, error) {
		if tries.Add(1) == 3 {
			again <- struct{}{}
		}
		return nil, errors.New("no way there")
	}
	var out harness.Log
	stop := run(t, lease.Config{Conn: cfg, Log: slog.New(slog.NewTextHandler(&out, nil)),
		Term: func(context.Context, *lease.Session) error { return nil }})
	<-again
	stop()
	if n := strings.Count(out.String(), "level=ERROR"); n != 1 {
		t.Errorf("reported %d times in %d tries", n, tries.Load())
	}
}
