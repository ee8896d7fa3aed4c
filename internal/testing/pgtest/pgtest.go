// Package pgtest gives every test a new PostgreSQL database.
//
// One server runs per test process; the first test that needs it starts it. A test's
// database is a copy of a template that is migrated once, which takes some tens of
// milliseconds. The server is configured like codehub's embedded one, with durability
// off. It is removed with its files when the process ends, even if that is killed.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/postgres/embedded"
	"codehub/internal/testing/harness"
)

// patience bounds each step; a test machine may be busy.
const patience = 2 * time.Minute

var settings = map[string]string{
	"max_connections":            "300",
	"fsync":                      "off",
	"synchronous_commit":         "off",
	"full_page_writes":           "off",
	"autovacuum":                 "off",
	"max_wal_size":               "128MB",
	"checkpoint_timeout":         "1h",
	"log_min_duration_statement": "-1",
}

// New creates an empty database, prepared by migrate, and returns its address. The
// database is dropped at the end of the test, with any open connections. New may be
// called several times and from parallel tests, and fails the test on an error.
//
// migrate runs once per process and function, on a database that is then the
// template for all tests that name the same function; nil leaves it empty. A
// function literal counts as one function for each place in the source, whatever
// it captures. The address's role owns the database, may create others, and is no
// superuser, as in production.
func New(t testing.TB, migrate func(ctx context.Context, dsn string) error) (dsn string) {
	t.Helper()
	s, err := shared()
	if err != nil {
		t.Fatalf("start PostgreSQL for tests: %v", err)
	}
	tmpl, err := s.template(migrate)
	if err != nil {
		t.Fatalf("prepare a database for tests: %v", err)
	}
	name := fmt.Sprintf("test_%d", s.count.Add(1))
	if err := s.exec(fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s%s", name, tmpl, s.strategy)); err != nil {
		t.Fatalf("create a database for the test: %v", err)
	}
	t.Cleanup(func() {
		if err := s.exec(fmt.Sprintf("DROP DATABASE %s WITH (FORCE)", name)); err != nil {
			t.Errorf("drop the test's database: %v", err)
		}
	})
	return s.dsn(name)
}

// Main runs the tests, stops the server if one was started, removes its files,
// and exits. A package whose TestMain has nothing else to do calls it; without it,
// the same happens a moment after the process has ended.
func Main(m *testing.M) {
	harness.Parallel(8) // tests on a database wait most of the time
	code := m.Run()
	if s := started.Load(); s != nil {
		if err := s.stop(); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// server is the process's PostgreSQL.
type server struct {
	pg    *embedded.Server
	dir   string
	url   *url.URL
	count atomic.Int64
	// strategy is the option of CREATE DATABASE that copies files. From PostgreSQL 15 on, the
	// default copies every block through the write-ahead log, which takes two thirds more
	// processor time.
	strategy string

	mu        sync.Mutex
	templates map[string]func() (string, error)

	// idle holds connections of exec. A connection takes as much processor time as creating
	// a database where processes are slow to start.
	idle chan *pgx.Conn
}

// The server of the process: shared starts it at its first call, started reports
// whether it was started.
var (
	shared  = sync.OnceValues(start)
	started atomic.Pointer[server]
)

func start() (*server, error) {
	dir, err := os.MkdirTemp(tempBase(), "codehub-pgtest-")
	if err != nil {
		return nil, err
	}
	if err := cleanUpAfter(dir); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	pg, err := embedded.Start(ctx, embedded.Config{Dir: dir, Settings: maps.Clone(settings)})
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(pg.URL())
	if err != nil {
		return nil, err
	}
	s := &server{pg: pg, dir: dir, url: u, templates: map[string]func() (string, error){}, idle: make(chan *pgx.Conn, 1)}
	conn, err := pgx.Connect(ctx, s.url.String())
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	s.idle <- conn
	var version int
	if err := conn.QueryRow(ctx, "SELECT current_setting('server_version_num')::int").Scan(&version); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	if version >= 15_00_00 {
		s.strategy = " STRATEGY file_copy"
	}
	started.Store(s)
	return s, nil
}

// tempBase returns the folder for the server's folder, "" for the usual one. A database
// has 300 files, and a test waits for their creation: some 300 ms on a slow disk, 30 in
// memory. So it is in memory where there is enough (a container has 64 MB there).
func tempBase() string {
	const memory, plenty = "/dev/shm", 4 << 30
	var fs syscall.Statfs_t
	if err := syscall.Statfs(memory, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) < plenty {
		return ""
	}
	return memory
}

func (s *server) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return errors.Join(s.pg.Stop(ctx), os.RemoveAll(s.dir))
}

func (s *server) dsn(database string) string {
	u := *s.url
	u.Path = "/" + database
	return u.String()
}

// template returns the name of the database that migrate has prepared.
func (s *server) template(migrate func(context.Context, string) error) (string, error) {
	if migrate == nil {
		return "template0", nil
	}
	key := runtime.FuncForPC(reflect.ValueOf(migrate).Pointer()).Name()
	s.mu.Lock()
	once, ok := s.templates[key]
	if !ok {
		name := fmt.Sprintf("template_%d", len(s.templates)+2)
		once = sync.OnceValues(func() (string, error) { return name, s.prepare(name, migrate) })
		s.templates[key] = once
	}
	s.mu.Unlock()
	return once()
}

func (s *server) prepare(name string, migrate func(context.Context, string) error) error {
	if err := s.exec("CREATE DATABASE " + name); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := migrate(ctx, s.dsn(name)); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	// A template with open connections cannot be copied.
	return s.exec(
		"ALTER DATABASE "+name+" ALLOW_CONNECTIONS false",
		"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '"+name+"'")
}

// exec runs statements outside the tests' databases. Between calls one connection stays open,
// from before the first test has its database, so that tests for leaks do not see a change.
func (s *server) exec(statements ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := s.connection(ctx)
	if err != nil {
		return err
	}
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", sql, err), conn.Close(ctx))
		}
	}
	select {
	case s.idle <- conn:
		return nil
	default:
		return conn.Close(ctx)
	}
}

// connection returns the idle connection, or a new one while others use it.
func (s *server) connection(ctx context.Context) (*pgx.Conn, error) {
	select {
	case conn := <-s.idle:
		return conn, nil
	default:
		return pgx.Connect(ctx, s.url.String())
	}
}
