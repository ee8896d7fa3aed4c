package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"codehub/internal/testing/harness"
)

// The postgres of a killed server is shut down cleanly, with a client connected, and replaced by one
// with the settings of the next server.
func TestStartAfterServerKilled(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	c, err := startChild(t, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	execute(t, c.url, "CREATE TABLE kept AS SELECT 42 AS n")
	conn, err := pgx.Connect(t.Context(), c.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	c.kill(t)
	if !alive(c.pid) {
		t.Fatal("postgres ended with the server")
	}
	// Its settings let no one connect any more; it is found by the socket all the same.
	if err := os.WriteFile(filepath.Join(dir, "postgres/data/pg_ident.conf"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(c.pid, syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, dir)
	if alive(c.pid) {
		t.Errorf("the former postgres %d still runs", c.pid)
	}
	if n := query[int](t, s.URL(), "SELECT n FROM kept"); n != 42 {
		t.Errorf("n = %d", n)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "postgres/data/postmaster.pid")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("not stopped cleanly: %v", err)
	}
}

// The next start waits for an earlier postgres that shuts down.
func TestStartWhileOldShutsDown(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	c, err := startChild(t, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.kill(t)
	if err := syscall.Kill(c.pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, dir)
	if s.proc.pid == c.pid {
		t.Error("postgres is the former one")
	}
	if n := query[int](t, s.URL(), "SELECT 1"); n != 1 {
		t.Error(n)
	}
}

// All processes are killed at once, as in a power failure. Then the old process id belongs to
// another process of the same user, which postgres mistakes for its predecessor.
func TestStartAfterKillWithReusedPID(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	c, err := startChild(t, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	execute(t, c.url, "CREATE TABLE kept AS SELECT 42 AS n")
	family := append(descendants(t, c.pid), c.pid)
	c.kill(t)
	for _, pid := range family {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatal(err)
		}
	}
	acc, err := chooseAccounts("")
	if err != nil {
		t.Fatal(err)
	}
	other := exec.Command("sleep", "1000")
	other.Dir = "/"
	other.SysProcAttr = acc.attributes()
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	})
	for _, name := range []string{"data/postmaster.pid", "run/.s.PGSQL.5432.lock"} {
		path := filepath.Join(dir, "postgres", name)
		old, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		stale := strings.Replace(string(old), strconv.Itoa(c.pid), strconv.Itoa(other.Process.Pid), 1)
		if err := os.WriteFile(path, []byte(stale), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := startServer(t, dir)
	if n := query[int](t, s.URL(), "SELECT n FROM kept"); n != 42 {
		t.Errorf("n = %d", n)
	}
	if err := other.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the process with the old id: %v", err)
	}
}

func descendants(t *testing.T, pid int) []int {
	t.Helper()
	out, err := exec.Command("pgrep", "-P", strconv.Itoa(pid)).Output()
	if err != nil {
		t.Fatalf("find the processes of postgres: %v", err)
	}
	var pids []int
	for f := range strings.FieldsSeq(string(out)) {
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, n)
	}
	if len(pids) < 3 {
		t.Fatalf("postgres %d has processes %v only", pid, pids)
	}
	return pids
}

func TestPostgresKilledBetweenServers(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	c, err := startChild(t, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	execute(t, c.url, "CREATE TABLE kept AS SELECT 42 AS n")
	c.kill(t)
	// The other processes of postgres run for a moment longer, and the start must wait for
	// them.
	if err := syscall.Kill(c.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, dir)
	if n := query[int](t, s.URL(), "SELECT n FROM kept"); n != 42 {
		t.Errorf("n = %d", n)
	}
}

// A postgres that was started by hand does not hold the cluster's lock. It prevents a start,
// whether it is reachable or not: two on one cluster would destroy it.
func TestPostgresStartedByHandPreventsStart(t *testing.T) {
	t.Parallel()
	for _, reachable := range []bool{true, false} {
		t.Run(fmt.Sprintf("reachable=%t", reachable), func(t *testing.T) {
			t.Parallel()
			dir := dataDir(t)
			s := startServer(t, dir) // for its settings
			if err := s.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			lay, err := openLayout(dir, s.lay.acc)
			if err != nil {
				t.Fatal(err)
			}
			defer lay.root.Close()
			folder, err := lay.root.Open(dataName)
			if err != nil {
				t.Fatal(err)
			}
			defer folder.Close()
			var args []string
			if !reachable {
				args = []string{"-c", "unix_socket_directories=../log"}
			}
			cmd := lay.command(s.inst.path("postgres"), dataName, folder, folder, args...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = cmd.Process.Signal(syscall.SIGQUIT)
				_ = cmd.Wait()
			})
			harness.Eventually(t, "it is up", func() bool {
				content, err := lay.read("data/postmaster.pid")
				return err == nil && strings.Contains(string(content), "ready")
			})
			got, err := Start(t.Context(), Config{Dir: dir, Settings: quick})
			if err == nil {
				t.Fatalf("started another as %d", got.proc.pid)
			}
			if !strings.Contains(err.Error(), strconv.Itoa(cmd.Process.Pid)) || !alive(cmd.Process.Pid) {
				t.Errorf("start: %v", err)
			}
			if _, err := os.Stat(lay.path("run/" + socketName)); reachable && err != nil {
				t.Errorf("its socket: %v", err)
			}
		})
	}
}

func TestRunRestartsPostgres(t *testing.T) {
	t.Parallel()
	s := startServer(t, dataDir(t))
	execute(t, s.URL(), "CREATE TABLE kept AS SELECT 42 AS n")
	done := make(chan error, 1)
	go func() { done <- s.Run(t.Context()) }()
	kills := 1
	if harness.Verifying() {
		kills = 3
	}
	for range kills {
		before := query[string](t, s.URL(), "SELECT pg_postmaster_start_time()::text")
		s.mu.Lock()
		pid := s.proc.pid
		s.mu.Unlock()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, "another postgres answers", func() bool {
			now, err := tryQuery[string](t.Context(), s.URL(), "SELECT pg_postmaster_start_time()::text")
			return err == nil && now != before
		})
	}
	if n := query[int](t, s.URL(), "SELECT n FROM kept"); n != 42 {
		t.Errorf("n = %d", n)
	}
	if err := s.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Errorf("run: %v", err)
	}
}

// Run ends with its context and leaves postgres running.
func TestRunEndsWithContext(t *testing.T) {
	t.Parallel()
	s := startServer(t, dataDir(t))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := query[int](t, s.URL(), "SELECT 1"); n != 1 {
		t.Error(n)
	}
}

// A database that was removed under a running server is not replaced by an empty one.
func TestRunCreatesNoCluster(t *testing.T) {
	t.Parallel()
	s := startServer(t, dataDir(t))
	moved := s.lay.path("moved")
	if err := os.Rename(s.lay.path(dataName), moved); err != nil {
		t.Fatal(err)
	}
	if err := s.proc.signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := s.proc.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.up(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("restart without the database: %v", err)
	}
	if err := os.Rename(moved, s.lay.path(dataName)); err != nil {
		t.Fatal(err)
	}
	if err := s.up(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// After a kill at any point of the first start, the next start succeeds.
func TestKilledDuringFirstStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	points := []string{"data.new/global/pg_control", "data/postmaster.pid"}
	if harness.Verifying() {
		points = []string{"data.new/PG_VERSION", "data.new/global/pg_control", "data.new/base/4", "data/postmaster.pid"}
	}
	for _, at := range points {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), serverEnv+"="+dir)
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, at+" is there, or the cluster is complete", func() bool {
			_, err := os.Stat(filepath.Join(dir, "postgres", at))
			_, complete := os.Stat(filepath.Join(dir, "postgres", "data", "PG_VERSION"))
			return err == nil || complete == nil && strings.HasPrefix(at, "data.new")
		})
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = stdin.Close()
		_ = cmd.Wait()
	}
	s := startServer(t, dir)
	if n := query[int](t, s.URL(), "SELECT 1"); n != 1 {
		t.Error(n)
	}
	if _, err := os.Stat(filepath.Join(dir, "postgres", newDataName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the incomplete cluster still exists: %v", err)
	}
}
