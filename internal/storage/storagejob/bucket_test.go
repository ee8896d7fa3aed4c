package storagejob

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func listenIn(tb testing.TB, dir string) net.Listener {
	tb.Helper()
	f, err := os.Open(dir)
	check(tb, err)
	defer f.Close()
	path := fmt.Sprintf("/proc/self/fd/%d/%s", f.Fd(), SocketName)
	l, err := net.Listen("unix", path)
	check(tb, err)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	tb.Cleanup(func() { l.Close() })
	return l
}

// The server may stop and return, and the path of its folder may be long.
func TestDialWaits(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 40))
	check(t, os.MkdirAll(dir, 0o700))
	d := &dialer{dir: dir, patience: time.Minute, every: time.Millisecond}
	dialed := make(chan error)
	dial := func() {
		conn, err := d.dial(t.Context())
		if err == nil {
			conn.Close()
		}
		dialed <- err
	}
	for range 2 {
		go dial()
		for d.since().IsZero() { // until it waits: there is no socket, or no listener
			time.Sleep(time.Millisecond)
		}
		_ = os.Remove(filepath.Join(dir, SocketName))
		l := listenIn(t, dir)
		check(t, <-dialed)
		if !d.since().IsZero() {
			t.Error("the server counts as absent")
		}
		check(t, l.Close())
	}
}

func (d *dialer) since() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.away
}

func TestDialTimesOut(t *testing.T) {
	t.Parallel()
	d := &dialer{dir: t.TempDir(), patience: 0, every: time.Hour}
	if _, err := d.dial(t.Context()); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("without a socket: %v", err)
	}
	d = &dialer{dir: filepath.Join(t.TempDir(), "gone", "gone"), patience: 0, every: time.Hour}
	if _, err := d.dial(t.Context()); err == nil {
		t.Error("connected without a server")
	}
	d = &dialer{dir: t.TempDir(), patience: time.Hour, every: time.Hour}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errStopped)
	if _, err := d.dial(ctx); !errors.Is(err, errStopped) {
		t.Errorf("cancelled: %v", err)
	}
}
