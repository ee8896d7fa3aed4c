package server

import (
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"
)

// systemd hears that the server is ready, that it lives for as long as it answers, and that it
// shuts down.
func TestNotifySystemd(t *testing.T) {
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: filepath.Join(t.TempDir(), "notify")})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", socket.LocalAddr().String())
	t.Setenv("WATCHDOG_USEC", "20000")
	t.Setenv("WATCHDOG_PID", "")
	next := func() string {
		b := make([]byte, 64)
		n, err := socket.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
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
