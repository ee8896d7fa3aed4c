package pgtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

const childEnv = "PGTEST_TEST_CHILD"

// TestMain also runs as a process that the tests kill: it starts a server, prints its
// address, and waits for the end of its standard input.
func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "" {
		Main(m)
	}
	s, err := shared()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(s.dir, s.dsn("codehub"))
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

var migrations atomic.Int32

func migrate(ctx context.Context, dsn string) error {
	migrations.Add(1)
	conn, err := pgx.Connect(ctx, dsn) // stays open
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "CREATE TABLE things (n int); INSERT INTO things VALUES (1)")
	return err
}

func TestDatabasesAreSeparate(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	for i := range 8 {
		dsn := New(t, migrate)
		wg.Go(func() {
			ctx := t.Context()
			conn, err := pgx.Connect(ctx, dsn)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close(ctx)
			var sum int
			if _, err := conn.Exec(ctx, "INSERT INTO things VALUES ($1)", i+10); err != nil {
				t.Error(err)
			}
			if err := conn.QueryRow(ctx, "SELECT sum(n) FROM things").Scan(&sum); err != nil || sum != i+11 {
				t.Errorf("sum = %d, %v; want %d", sum, err, i+11)
			}
		})
	}
	wg.Wait()
	if n := migrations.Load(); n != 1 {
		t.Errorf("migrated %d times", n)
	}
}

func TestTemplatePerFunction(t *testing.T) {
	t.Parallel()
	other := func(ctx context.Context, dsn string) error {
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, "CREATE TABLE others ()")
		return err
	}
	const tables = "SELECT coalesce(string_agg(tablename, ','), '') FROM pg_tables WHERE schemaname = 'public'"
	for name, c := range map[string]struct {
		migrate func(context.Context, string) error
		want    string
	}{"one": {migrate, "things"}, "other": {other, "others"}, "none": {nil, ""}} {
		var got string
		if err := connect(t, New(t, c.migrate)).QueryRow(t.Context(), tables).Scan(&got); err != nil || got != c.want {
			t.Errorf("%s: tables %q, %v; want %q", name, got, err, c.want)
		}
	}
}

// The database is dropped when the test ends, even with an open connection.
func TestDatabaseIsDroppedAfterTest(t *testing.T) {
	t.Parallel()
	var dsn string
	t.Run("inner", func(t *testing.T) {
		dsn = New(t, nil)
		if _, err := pgx.Connect(t.Context(), dsn); err != nil {
			t.Fatal(err)
		}
	})
	if _, err := pgx.Connect(t.Context(), dsn); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("connect after the test: %v", err)
	}
}

var failures atomic.Int32

func TestFailedMigration(t *testing.T) {
	t.Parallel()
	s, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	fail := func(context.Context, string) error { failures.Add(1); return errors.New("broken") }
	for range 2 {
		if _, err := s.template(fail); err == nil || !strings.Contains(err.Error(), "broken") {
			t.Errorf("template: %v", err)
		}
	}
	if n := failures.Load(); n != 1 {
		t.Errorf("tried %d times", n)
	}
}

func TestServerEndsWithProcess(t *testing.T) {
	t.Parallel()
	ways := map[string]func(cmd *exec.Cmd, stdin io.Closer) error{
		"killed": func(cmd *exec.Cmd, _ io.Closer) error { return cmd.Process.Kill() },
		"ended":  func(_ *exec.Cmd, stdin io.Closer) error { return stdin.Close() },
		"ctrl-c": func(cmd *exec.Cmd, _ io.Closer) error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) },
	}
	for name, end := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), childEnv+"=1")
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			stdin, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(stdout).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			dir, dsn, ok := strings.Cut(strings.TrimSpace(line), " ")
			if !ok {
				t.Fatal(line)
			}
			conn, err := pgx.Connect(t.Context(), dsn)
			if err != nil {
				t.Fatal(err)
			}
			if err := end(cmd, stdin); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			// The end of the server ends the connection, and the folder is removed.
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if _, err := conn.Exec(ctx, "SELECT pg_sleep(1000)"); err == nil || ctx.Err() != nil {
				t.Errorf("the server lives on: %v", err)
			}
			for {
				if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
					break
				}
				select {
				case <-ctx.Done():
					t.Fatalf("%s is still there", dir)
				case <-time.After(10 * time.Millisecond):
				}
			}
		})
	}
}
