package embedded

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"codehub/internal/testing/harness"
)

const serverEnv = "EMBEDDED_TEST_SERVER"

// TestMain is also the program of the tests that kill a server: a process that starts
// PostgreSQL in the folder of serverEnv, reports that, and runs until its standard input ends.
func TestMain(m *testing.M) {
	if dir := os.Getenv(serverEnv); dir != "" {
		if err := serve(dir); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		return
	}
	if dir, bin, ok := strings.Cut(os.Getenv(upgradeEnv), ":"); ok {
		if _, err := upgradeWith(context.Background(), dir, bin); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		return
	}
	// Clusters are many small files: keep them in memory if there is enough.
	var shm syscall.Statfs_t
	if err := syscall.Statfs("/dev/shm", &shm); err == nil && shm.Bavail*uint64(shm.Bsize) > 4<<30 {
		_ = os.Setenv("TMPDIR", "/dev/shm")
	}
	harness.Parallel(4) // the tests wait for starts and stops
	code := m.Run()
	if dir, err := seed(); err == nil {
		_ = os.RemoveAll(dir)
	}
	if err := goleak.Find(); err != nil {
		fmt.Println(err)
		code = 1
	}
	os.Exit(code)
}

func serve(dir string) error {
	ctx := context.Background()
	s, err := Start(ctx, Config{Dir: dir, Settings: quick})
	if err != nil {
		return err
	}
	fmt.Println("ready", s.proc.pid, s.URL())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return s.Stop(ctx)
}

// quick skips fsync: these tests kill processes, never the machine.
var quick = map[string]string{"fsync": "off"}

// child is a server in a process of its own.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	pid   int // of postgres
	url   string
}

func startChild(t *testing.T, dir string, attr *syscall.SysProcAttr) (*child, error) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), serverEnv+"="+dir)
	cmd.Dir = "/"
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = attr
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
	c := &child{cmd: cmd, stdin: stdin}
	t.Cleanup(func() {
		_ = c.stdin.Close()
		_ = c.cmd.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("no output of the server process: %v", err)
	}
	if _, err := fmt.Sscanf(line, "ready %d %s", &c.pid, &c.url); err != nil {
		return nil, fmt.Errorf("%s", strings.TrimSpace(line))
	}
	return c, nil
}

// kill sends SIGKILL to the server process.
func (c *child) kill(t *testing.T) {
	t.Helper()
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.cmd.Wait()
}

// seed is a data folder with a complete cluster, created once because initdb is slow.
var seed = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "codehub-embedded-seed-")
	if err != nil {
		return "", err
	}
	s, err := Start(context.Background(), Config{Dir: dir, Settings: quick})
	if err != nil {
		return "", err
	}
	return dir, s.Stop(context.Background())
})

// dataDir returns a data folder of the test with a cluster in it.
func dataDir(t *testing.T) string {
	t.Helper()
	from, err := seed()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	data := filepath.Join(dir, "postgres")
	copyTree(t, filepath.Join(from, "postgres"), data)
	t.Cleanup(func() {
		// A process of a server that has just ended may still create files.
		harness.Eventually(t, "the data folder is removed", func() bool { return os.RemoveAll(data) == nil })
	})
	return dir
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", "-a", "--reflink=auto", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// startServer starts a server, and stops it at the end of the test.
func startServer(t *testing.T, dir string) *Server {
	t.Helper()
	s, err := Start(t.Context(), Config{Dir: dir, Log: logTo(t), Settings: quick})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func logTo(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

func query[T any](t *testing.T, url, sql string) T {
	t.Helper()
	v, err := tryQuery[T](t.Context(), url, sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func tryQuery[T any](ctx context.Context, url, sql string) (T, error) {
	var v T
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return v, err
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, sql).Scan(&v)
	return v, err
}

func execute(t *testing.T, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// processUID returns the user of a process.
func processUID(t *testing.T, pid int) int {
	t.Helper()
	fi, err := os.Stat("/proc/" + strconv.Itoa(pid))
	if err != nil {
		t.Fatal(err)
	}
	return int(fi.Sys().(*syscall.Stat_t).Uid)
}

// alive reports whether the process runs; a zombie does not.
func alive(pid int) bool {
	return syscall.Kill(pid, 0) == nil && !dead("/proc/"+strconv.Itoa(pid))
}
