package server

import (
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// systemdSocket returns a function that waits for the next message to systemd.
func systemdSocket(t *testing.T) (next func() string) {
	t.Helper()
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: filepath.Join(t.TempDir(), "notify")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	t.Setenv("NOTIFY_SOCKET", socket.LocalAddr().String())
	return func() string {
		t.Helper()
		b := make([]byte, 64)
		n, err := socket.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
}

// A start that reports progress is extended, by one message per interval.
func TestExtendStart(t *testing.T) {
	next := systemdSocket(t)
	for _, progress := range []func(){extendStart(time.Hour), extendStart(0)} {
		progress()
		progress()
	}
	_, _ = daemon.SdNotify(false, daemon.SdNotifyReady)
	for range 3 { // one, and two without an interval
		if got := next(); got != "EXTEND_TIMEOUT_USEC=300000000" {
			t.Errorf("%q", got)
		}
	}
	if got := next(); got != "READY=1" {
		t.Errorf("at the end %q", got)
	}
}

// systemd hears that the server is ready, that it lives for as long as it answers, and that it
// shuts down.
func TestNotifySystemd(t *testing.T) {
	next := systemdSocket(t)
	t.Setenv("WATCHDOG_USEC", "20000")
	t.Setenv("WATCHDOG_PID", "")
	var asked atomic.Int32
	stopping, failed := make(chan struct{}), make(chan struct{})
	go notifySystemd(t.Context(), stopping, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		switch asked.Add(1) {
		case 1:
			w.WriteHeader(http.StatusOK)
		case 4:
			close(failed)
			fallthrough
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	if got := next(); got != "READY=1" {
		t.Errorf("first %q", got)
	}
	if got := next(); got != "WATCHDOG=1" {
		t.Errorf("then %q", got)
	}
	<-failed // nothing was sent meanwhile, as the next message shows
	close(stopping)
	if got := next(); got != "STOPPING=1" {
		t.Errorf("at the end %q", got)
	}
}
