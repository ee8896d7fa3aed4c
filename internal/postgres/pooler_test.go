package postgres_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/control/lease"
	"codehub/internal/postgres"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/pgtest"
	"codehub/internal/workspace"
)

// Each way in which a pooler assigns sessions, idle and busy.
func TestSessionSplittingPoolersAreDetected(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"transaction", "statement"} {
		for name, settings := range map[string][]string{
			"random":             nil,
			"one session":        {"default_pool_size = 1"},
			"round robin":        {"server_round_robin = 1", "min_pool_size = 5"},
			"two alternately":    {"server_round_robin = 1", "min_pool_size = 2", "default_pool_size = 2"},
			"with reset":         {"server_reset_query_always = 1"},
			"unknown parameters": {"ignore_startup_parameters = extra_float_digits"},
		} {
			if !harness.Verifying() && name != "random" && (name != "two alternately" || mode == "statement") {
				continue
			}
			t.Run(mode+", "+name, func(t *testing.T) {
				t.Parallel()
				dsn := pgtest.Pooler(t, emptyDSN(t), mode, settings...)
				if name == "two alternately" {
					openTwoSessions(t, dsn)
				}
				for range 3 {
					if err := postgres.CheckSession(t.Context(), dsn); !errors.Is(err, postgres.ErrPooled) {
						t.Errorf("%v", err)
					}
				}
			})
		}
	}
}

// openTwoSessions makes a pooler open two sessions with the database.
func openTwoSessions(t *testing.T, dsn string) {
	t.Helper()
	var group sync.WaitGroup
	for range 2 {
		conn, err := pgx.Connect(t.Context(), dsn+"&default_query_exec_mode=simple_protocol")
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			defer conn.Close(context.Background())
			if _, err := conn.Exec(t.Context(), `SELECT pg_sleep(0.3)`); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
}

// busy keeps n connections busy until the test ends.
func busy(t *testing.T, dsn string, n int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	for range n {
		conn, err := pgx.Connect(ctx, dsn+"&default_query_exec_mode=simple_protocol")
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			defer conn.Close(context.Background())
			for ctx.Err() == nil {
				_, _ = conn.Exec(ctx, `SELECT pg_sleep(0.001 * random())`)
			}
		})
	}
	t.Cleanup(func() { cancel(); group.Wait() })
}

func TestBusyPoolerIsDetected(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Pooler(t, emptyDSN(t), "transaction", "default_pool_size = 8")
	busy(t, dsn, 12)
	for range 10 {
		if err := postgres.CheckSession(t.Context(), dsn); !errors.Is(err, postgres.ErrPooled) {
			t.Fatalf("%v", err)
		}
	}
}

// PostgreSQL itself is never mistaken for a pooler, busy or idle.
func TestPostgreSQLIsNoPooler(t *testing.T) {
	t.Parallel()
	dsn := emptyDSN(t)
	busy(t, dsn, 12)
	for range 20 {
		if err := postgres.CheckSession(t.Context(), dsn); err != nil {
			t.Fatal(err)
		}
	}
}

// A server starts, listens and leads through a pooler that keeps sessions.
func TestPoolerInSessionMode(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Pooler(t, emptyDSN(t), "session")
	busy(t, dsn, 3)
	for range 5 {
		if err := postgres.CheckSession(t.Context(), dsn); err != nil {
			t.Fatal(err)
		}
	}
	if err := postgres.Migrate(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	db, err := postgres.Open(t.Context(), dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	cfg, err := postgres.ConnConfig(dsn, "codehub-leader")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	received, listens := make(chan postgres.Notification, 10), make(chan struct{}, 10)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	group.Go(func() {
		err := postgres.NewListener(dsn, discard(), nil).Run(ctx, func(n postgres.Notification) { received <- n }, func() { listens <- struct{}{} })
		if err != nil {
			t.Error(err)
		}
	})
	led := make(chan error, 10)
	group.Go(func() {
		err := lease.Run(ctx, lease.Config{Conn: cfg, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Term: func(ctx context.Context, s *lease.Session) error {
			_, err := postgres.NewController(s).Candidates(ctx)
			time.Sleep(4 * time.Second) // longer than a heartbeat
			led <- errors.Join(err, s.Alive())
			<-ctx.Done()
			return nil
		}})
		if err != nil {
			t.Error(err)
		}
	})
	<-listens
	u, err := db.CreateUser(ctx, postgres.User{Username: "ann", PasswordHash: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.CreateWorkspace(ctx, workspace.Caller{UserID: u.ID}, newWorkspace("one", workspace.DesiredRunning)); err != nil {
		t.Fatal(err)
	}
	news, term := received, led
	for _, wait := range []string{"notification", "term"} {
		select {
		case n := <-news:
			if !strings.HasPrefix(n.Channel, "ws_") {
				t.Errorf("received %+v", n)
			}
			news = nil
		case err := <-term:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("no %s", wait)
		}
	}
}

// The timeouts of a session hold, with and without a pooler.
func TestSessionsHaveBounds(t *testing.T) {
	t.Parallel()
	dsn := emptyDSN(t)
	for name, dsn := range map[string]string{"direct": dsn, "pooled": pgtest.Pooler(t, dsn, "session")} {
		cfg, err := postgres.ConnConfig(dsn, "codehub-test")
		if err != nil {
			t.Fatal(err)
		}
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		var lock, idle, zone, app string
		err = conn.QueryRow(t.Context(), `SELECT current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout'),
			current_setting('timezone'), current_setting('application_name')`).Scan(&lock, &idle, &zone, &app)
		if err != nil || lock != "5s" || idle != "5s" || zone != "UTC" || app != "codehub-test" {
			t.Errorf("%s: %v: %s %s %s %s", name, err, lock, idle, zone, app)
		}
		_ = conn.Close(context.Background())
	}
}
