package embedded

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"codehub/internal/testing/harness"
)

func TestFreshStart(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "not", "there", "yet")
	s, err := Start(t.Context(), Config{Dir: dir, Log: logTo(t)}) // with fsync
	if err != nil {
		t.Fatal(err)
	}
	for sql, want := range map[string]string{
		"SELECT current_user":       "codehub",
		"SELECT current_database()": "codehub",
		"SHOW server_encoding":      "UTF8",
		"SHOW data_checksums":       "on",
		"SHOW fsync":                "on",
		"SHOW autovacuum":           "on",
		"SHOW listen_addresses":     "",
		"SHOW timezone":             "UTC",
		"SELECT lower('ÄÉ한')":       "äé한",
		"SELECT rolsuper::text FROM pg_roles WHERE rolname = current_user":                       "false",
		"SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = 'codehub'":              "codehub",
		"SELECT string_agg(setting || ' ' || name, ', ') FROM pg_settings WHERE pending_restart": "",
	} {
		if got := query[*string](t, s.URL(), sql); deref(got) != want {
			t.Errorf("%s = %q, want %q", sql, deref(got), want)
		}
	}
	// Owners and modes of all files in postgres's folder.
	acc, err := chooseAccounts("")
	if err != nil {
		t.Fatal(err)
	}
	if got := processUID(t, s.proc.pid); got == 0 || got != acc.postgres.uid {
		t.Errorf("postgres runs as uid %d, want %d", got, acc.postgres.uid)
	}
	for _, name := range []string{"", "data", "run", "log"} {
		fi, err := os.Stat(filepath.Join(dir, "postgres", name))
		if err != nil {
			t.Fatal(err)
		}
		if uid := int(fi.Sys().(*syscall.Stat_t).Uid); uid != acc.postgres.uid || fi.Mode().Perm() != 0o700 {
			t.Errorf("postgres/%s: uid %d mode %v, want %d and 0700", name, uid, fi.Mode(), acc.postgres.uid)
		}
	}
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("data folder: %v, %v; want 0700", fi.Mode(), err)
	}
	// postgres has a session of its own, so that Ctrl-C in the terminal does not reach it.
	if sid, _ := sessionOf(s.proc.pid); sid != s.proc.pid {
		t.Errorf("postgres %d is in session %d", s.proc.pid, sid)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.proc != nil {
		t.Error("stopped server still has a process")
	}
	if _, err := os.Stat(filepath.Join(dir, "postgres/data/postmaster.pid")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("postmaster.pid after a stop: %v", err)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Errorf("second stop: %v", err)
	}
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func sessionOf(pid int) (int, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return strconv.Atoi(strings.Fields(rest)[3])
}

func TestFolderOnAnotherDisk(t *testing.T) {
	t.Parallel()
	dir, other := dataDir(t), t.TempDir()
	if err := os.Rename(filepath.Join(dir, "postgres"), filepath.Join(other, "pg")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(other, "pg"), filepath.Join(dir, "postgres")); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, dir)
	if n := query[int](t, s.URL(), "SELECT 1"); n != 1 {
		t.Error(n)
	}
}

// A folder may have moved, and its path may have 4096 bytes, that of a socket 107.
func TestDeepFolder(t *testing.T) {
	t.Parallel()
	deep := filepath.Join(t.TempDir(), strings.Repeat("deep/", 30), strings.Repeat("x", 100))
	if err := os.MkdirAll(filepath.Dir(deep), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dataDir(t), deep); err != nil {
		t.Fatal(err)
	}
	c, err := startChild(t, deep, nil)
	if err != nil {
		t.Fatal(err)
	}
	execute(t, c.url, "CREATE TABLE kept AS SELECT 42 AS n")
	if url, err := Find(t.Context(), deep); url != c.url {
		t.Errorf("found %s, %v; the server has %s", url, err, c.url)
	}
	c.kill(t)

	s := startServer(t, deep)
	if alive(c.pid) {
		t.Errorf("the former postgres %d was not found after the crash", c.pid)
	}
	if s.socket == s.lay.path(runName) {
		t.Fatal("the path is too short for this test")
	}
	if n := query[int](t, s.URL(), "SELECT n FROM kept"); n != 42 {
		t.Errorf("n = %d", n)
	}
	// A link that a cleaner of temporary files removes is created again.
	if err := os.Remove(s.socket); err != nil {
		t.Fatal(err)
	}
	if _, err := tryQuery[int](t.Context(), s.URL(), "SELECT 1"); err == nil {
		t.Error("connected without the link")
	}
	if err := s.upkeep(); err != nil {
		t.Fatal(err)
	}
	if n := query[int](t, s.URL(), "SELECT n FROM kept"); n != 42 {
		t.Errorf("n = %d", n)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(s.socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %s: %v", s.socket, err)
	}
}

func TestStopOfHangingPostgres(t *testing.T) {
	t.Parallel()
	s := startServer(t, dataDir(t))
	execute(t, s.URL(), "CREATE TABLE kept AS SELECT 42 AS n")
	// A postmaster that hangs ignores SIGINT and SIGQUIT.
	pid := s.proc.pid
	if err := s.proc.signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Stop(ctx); err == nil || !strings.Contains(err.Error(), "stopped at once") {
		t.Errorf("stop of a hanging postgres: %v", err)
	}
	if alive(pid) {
		t.Errorf("postgres %d is still running", pid)
	}
	again := startServer(t, s.lay.base[:len(s.lay.base)-len("/postgres")])
	if n := query[int](t, again.URL(), "SELECT n FROM kept"); n != 42 {
		t.Errorf("n = %d", n)
	}
}

// A client with an open transaction does not delay a stop.
func TestStopWithOpenTransaction(t *testing.T) {
	t.Parallel()
	s := startServer(t, dataDir(t))
	psql := exec.Command(s.inst.path("psql"), s.URL())
	stdin, err := psql.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	if err := psql.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdin.Write([]byte("BEGIN; SELECT pg_sleep(0) ;CREATE TABLE t (n int);\n")); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "a transaction is open", func() bool {
		n, err := tryQuery[int](t.Context(), s.URL(), "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'")
		return err == nil && n == 1
	})
	if err := s.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	_ = stdin.Close()
	_ = psql.Wait()
}

func TestStartCancelled(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Start(ctx, Config{Dir: dir, Settings: quick}); !errors.Is(err, context.Canceled) {
		t.Errorf("start under a cancelled context: %v", err)
	}
	startServer(t, dir) // the failed start left nothing that prevents another one
}
