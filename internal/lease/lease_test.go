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

	"github.com/jackc/pgx/v5"

	"codehub/internal/lease"
	"codehub/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func config(t *testing.T, dsn string) *pgx.ConnConfig {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// run stands for election until the test, or the returned function, ends it.
func run(t *testing.T, dsn string, log *slog.Logger, term lease.Term) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- lease.Run(ctx, config(t, dsn), log, term) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func TestOneLeadsAndTheOtherTakesOver(t *testing.T) {
	t.Parallel()
	dsn := pgtest.New(t, nil)
	var leading atomic.Int32
	terms := make(chan int, 2)
	term := func(n int) lease.Term {
		return func(ctx context.Context, _ *pgx.Conn) error {
			if leading.Add(1) != 1 {
				t.Error("two lead at once")
			}
			defer leading.Add(-1)
			terms <- n
			<-ctx.Done()
			return nil
		}
	}
	log := slog.New(slog.DiscardHandler)
	stops := []func(){run(t, dsn, log, term(0)), run(t, dsn, log, term(1))}
	first := <-terms
	stops[first]()
	if second := <-terms; second == first {
		t.Errorf("%d leads again", first)
	}
}

// A session that is ended from outside ends the term; the next one begins on a
// session that holds the lock again.
func TestLeadsAgainAfterItsSessionWasEnded(t *testing.T) {
	t.Parallel()
	dsn := pgtest.New(t, nil)
	pids := make(chan uint32, 2)
	run(t, dsn, slog.New(slog.DiscardHandler), func(ctx context.Context, conn *pgx.Conn) error {
		pids <- conn.PgConn().PID()
		for {
			if err := conn.Ping(ctx); err != nil {
				return err
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	first := <-pids
	other, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.Background())
	if _, err := other.Exec(t.Context(), `SELECT pg_terminate_backend($1)`, first); err != nil {
		t.Fatal(err)
	}
	if second := <-pids; second == first {
		t.Error("the session that was ended leads")
	}
}

// A database that is out of reach is reported once, however long that lasts.
func TestOutageIsReportedOnce(t *testing.T) {
	t.Parallel()
	cfg := config(t, pgtest.New(t, nil))
	var tries atomic.Int32
	again := make(chan struct{}, 1)
	cfg.DialFunc = func(context.Context, string, string) (net.Conn, error) {
		if tries.Add(1) == 3 {
			again <- struct{}{}
		}
		return nil, errors.New("no way there")
	}
	var out lines
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- lease.Run(ctx, cfg, slog.New(slog.NewTextHandler(&out, nil)), func(context.Context, *pgx.Conn) error { return nil })
	}()
	<-again
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := out.count("level=ERROR"); n != 1 {
		t.Errorf("reported %d times in %d tries", n, tries.Load())
	}
}

type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), s)
}
