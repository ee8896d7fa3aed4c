package pgtest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/testing/e2e/proc"
)

// pooler runs pgbouncer with the settings $1 until its standard input ends, at the
// latest with the test process.
const pooler = `
pgbouncer -q "$1" &
read -r _
kill -KILL $!
`

// Pooler starts a pgbouncer before the database at dsn, in the pool mode
// session, transaction or statement, and returns the address to use; settings
// are further lines for pgbouncer.ini. It ends with the test.
func Pooler(t testing.TB, dsn, mode string, settings ...string) (pooled string) {
	t.Helper()
	if _, err := exec.LookPath("pgbouncer"); err != nil {
		t.Fatalf("start a pooler for tests: %v (make test installs it)", err)
	}
	// The database accepts its own system user and ours. pgbouncer does not run as ours if
	// that is root.
	wire, err := proc.NewWire(dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(wire.Close)
	cfg, err := pgx.ParseConfig(wire.URL)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "codehub-pgbouncer-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	address, err := proc.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	listen, err := netip.ParseAddrPort(address)
	if err != nil {
		t.Fatal(err)
	}
	ini := filepath.Join(dir, "pgbouncer.ini")
	content := fmt.Sprintf(`[databases]
* = host=%s port=%d user=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = %s
%s
`, cfg.Host, cfg.Port, cfg.User, listen.Port(), mode, strings.Join(settings, "\n"))
	if err := os.WriteFile(ini, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", pooler, "sh", ini)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: nobody()}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	u := url.URL{Scheme: "postgres", User: url.User(cfg.User), Host: address, Path: "/" + cfg.Database, RawQuery: "sslmode=disable"}
	awaitPooler(t, u.Host)
	return u.String()
}

func nobody() *syscall.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	const id = 65534
	return &syscall.Credential{Uid: id, Gid: id}
}

func awaitPooler(t testing.TB, address string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			_ = conn.Close()
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("pgbouncer does not listen: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
