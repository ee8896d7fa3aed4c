package lease_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"codehub/internal/control/lease"
	"codehub/internal/postgres"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/pgtest"
)

const childEnv = "LEASE_TEST_CHILD"

// TestMain also runs as a server that the tests kill and stop: it leads and reports
// what it does.
func TestMain(m *testing.M) {
	dsn := os.Getenv(childEnv)
	if dsn == "" {
		harness.Parallel(20) // all tests wait for most of their time
		pgtest.Main(m)
	}
	cfg, err := postgres.ConnConfig(dsn, "codehub-leader")
	if err == nil {
		err = lease.Run(context.Background(), lease.Config{Conn: cfg, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), Term: childTerm})
	}
	fmt.Println("error", err)
}

// clock is shared by all processes, in ns.
func clock() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
	return t.Nano()
}

// childTerm acts on a resource without sessions, such as Docker, while Alive allows it, and
// then tries to write. One write has begun before that.
func childTerm(_ context.Context, s *lease.Session) error {
	fmt.Println("lead", clock())
	begun := make(chan error, 1)
	go func() {
		begun <- s.Do(context.Background(), func(ctx context.Context, conn *pgx.Conn) error {
			for s.Alive() == nil {
				time.Sleep(time.Millisecond)
			}
			_, err := conn.Exec(context.Background(), `INSERT INTO written VALUES ('begun')`)
			return err
		})
	}()
	for asked := clock(); s.Alive() == nil; asked = clock() {
		fmt.Println("act", asked, clock())
		time.Sleep(time.Millisecond)
	}
	fmt.Println("refused", s.Alive())
	fmt.Println("begun", <-begun)
	fmt.Println("write", s.Do(context.Background(), func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `INSERT INTO written VALUES ('afterwards')`)
		return err
	}))
	return nil
}

// child is a server in its own process.
type child struct {
	*exec.Cmd
	asked  atomic.Int64 // when it checked Alive for its last action
	acted  atomic.Int64 // when it last acted
	acts   atomic.Int64
	output chan string // its other output
}

func start(t *testing.T, dsn string) *child {
	t.Helper()
	c := &child{Cmd: exec.Command("/proc/self/exe"), output: make(chan string, 100)}
	c.Env = append(os.Environ(), childEnv+"="+dsn)
	c.Stderr = t.Output()
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.read(out)
	}()
	t.Cleanup(func() {
		_ = c.Process.Kill()
		<-done
		_ = c.Wait()
	})
	return c
}

func (c *child) read(out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		if word != "act" {
			c.output <- lines.Text()
			continue
		}
		first, second, _ := strings.Cut(rest, " ")
		asked, _ := strconv.ParseInt(first, 10, 64)
		at, _ := strconv.ParseInt(second, 10, 64)
		c.asked.Store(asked)
		c.acted.Store(at)
		c.acts.Add(1)
	}
}

func (c *child) awaits(t *testing.T, word string) string {
	t.Helper()
	line := await(t, word, c.output)
	if !strings.HasPrefix(line, word+" ") {
		t.Fatalf("the child printed %q, not %s", line, word)
	}
	return line
}

// leads waits until the child leads and acts.
func (c *child) leads(t *testing.T) {
	t.Helper()
	c.awaits(t, "lead")
	before := c.acts.Load()
	harness.Eventually(t, "the child acts", func() bool { return c.acts.Load() > before })
}

// withWritten is a database with a table to write to.
func withWritten(t *testing.T) (dsn string, admin *pgx.Conn) {
	t.Helper()
	dsn = database(t)
	admin = connect(t, dsn)
	execute(t, admin, `CREATE TABLE written (what text)`)
	return dsn, admin
}

func nothingWritten(t *testing.T, admin *pgx.Conn) {
	t.Helper()
	var n int
	if err := admin.QueryRow(t.Context(), `SELECT count(*) FROM written`).Scan(&n); err != nil || n != 0 {
		t.Errorf("%v, %d rows written by who does not lead any more", err, n)
	}
}

// follower competes for the lock and reports when its term began.
func follower(t *testing.T, dsn string) (began <-chan int64) {
	t.Helper()
	at := make(chan int64, 10)
	run(t, lease.Config{Conn: config(t, dsn), Term: func(ctx context.Context, _ *lease.Session) error {
		at <- clock()
		<-ctx.Done()
		return nil
	}})
	return at
}

// A leader that was stopped is replaced. When it resumes it does nothing: it
// neither acts nor completes a write that had begun.
func TestHungLeaderIsReplaced(t *testing.T) {
	t.Parallel()
	dsn, admin := withWritten(t)
	c := start(t, dsn)
	c.leads(t)
	began := follower(t, dsn)
	if err := c.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	await(t, "new leader", began)
	woken := clock()
	if err := c.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	c.awaits(t, "refused")
	for _, word := range []string{"begun", "write"} {
		if line := c.awaits(t, word); strings.Contains(line, "<nil>") {
			t.Errorf("%s", line)
		}
	}
	// The signal may stop it between the check and the action. That action ends
	// after the stop, but no later check has succeeded.
	if late := c.asked.Load() - woken; late > 0 {
		t.Errorf("the fence let it act %s after it was woken", time.Duration(late))
	}
	nothingWritten(t, admin)
}

// A leader that is disconnected from the database stops acting before its successor
// begins.
func TestDisconnectedLeaderStopsFirst(t *testing.T) {
	t.Parallel()
	dsn, admin := withWritten(t)
	wire, err := proc.NewWire(dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer wire.Close()
	c := start(t, wire.URL)
	c.leads(t)
	began := follower(t, dsn)
	wire.Cut()
	c.awaits(t, "refused")
	at := await(t, "new leader", began)
	if last := c.acted.Load(); last >= at {
		t.Errorf("it acted %s after another had begun", time.Duration(last-at))
	}
	wire.Mend()
	for _, word := range []string{"begun", "write"} {
		if line := c.awaits(t, word); strings.Contains(line, "<nil>") {
			t.Errorf("%s", line)
		}
	}
	nothingWritten(t, admin)
}

// A restart of the database ends the term at once, and the next one begins when the
// database is available.
func TestDatabaseRestartEndsTerm(t *testing.T) {
	t.Parallel()
	pg := pgtest.StartOwn(t)
	if err := postgres.Migrate(t.Context(), pg.DSN()); err != nil {
		t.Fatal(err)
	}
	a, b := candidate(t, pg.DSN()), candidate(t, pg.DSN())
	first, other := a, b
	select {
	case <-a.began:
	case <-b.began:
		first, other = b, a
	case <-time.After(patience):
		t.Fatal("no leader")
	}
	pg.Stop()
	if err := await(t, "end of the term", first.ended); !errors.Is(err, lease.ErrOver) {
		t.Errorf("%v", err)
	}
	if len(other.began) != 0 {
		t.Error("a leader without a database")
	}
	pg.Start()
	select {
	case <-a.began:
	case <-b.began:
	case <-time.After(patience):
		t.Fatal("no leader after the restart")
	}
}

// No two leaders act at the same time, however their sessions end.
func TestAtMostOneLeaderActs(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	var acting, terms, acts, leader atomic.Int32
	term := func(n int32) lease.Term {
		return func(ctx context.Context, s *lease.Session) error {
			leader.Store(n)
			terms.Add(1)
			for s.Alive() == nil && ctx.Err() == nil {
				if acting.Add(1) != 1 {
					t.Error("two act at once")
				}
				acts.Add(1)
				acting.Add(-1)
				time.Sleep(50 * time.Microsecond)
			}
			return nil
		}
	}
	var wires []*proc.Wire
	for n := range int32(3) {
		wire, err := proc.NewWire(dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(wire.Close)
		wires = append(wires, wire)
		run(t, lease.Config{Conn: config(t, wire.URL), Term: term(n)})
	}
	admin := connect(t, dsn)
	next := func(cause func()) {
		before := terms.Load()
		cause()
		harness.Eventually(t, "another term", func() bool { return terms.Load() > before })
	}
	ended := func(which string) func() {
		return func() { execute(t, admin, `SELECT pg_terminate_backend(pid) FROM `+which) }
	}
	harness.Eventually(t, "a first term", func() bool { return terms.Load() > 0 })
	rounds := 1
	if harness.Verifying() {
		rounds = 3
	}
	for range 2 * rounds {
		next(ended(`leader`))
	}
	for range rounds {
		next(ended(`pg_stat_activity WHERE application_name = 'codehub-leader' AND datname = current_database()`))
	}
	cut := wires[leader.Load()]
	next(cut.Cut)
	cut.Mend()
	next(ended(`leader`))
	t.Logf("%d terms, %d acts", terms.Load(), acts.Load())
}
