package server

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// startExtension is how long a start may continue after its last progress, beyond the unit's
// TimeoutStartSec.
const startExtension = 5 * time.Minute

// extendStart returns what reports progress of the start to systemd, which otherwise ends a start
// that takes longer than TimeoutStartSec. It may be called often, by one goroutine at a time, and
// sends one message per interval.
func extendStart(interval time.Duration) func() {
	var sent time.Time
	return func() {
		if time.Since(sent) < interval {
			return
		}
		sent = time.Now()
		_, _ = daemon.SdNotify(false, fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", startExtension.Microseconds()))
	}
}

// notifySystemd tells systemd that the server serves, and then, at half the interval of its
// watchdog, that it still answers: handler is asked for /healthz. It does nothing if systemd did
// not start this process, or not with Type=notify. When stopping ends, systemd learns that the
// server shuts down.
func notifySystemd(ctx context.Context, stopping <-chan struct{}, handler http.Handler) {
	_, _ = daemon.SdNotify(false, daemon.SdNotifyReady)
	interval, err := daemon.SdWatchdogEnabled(false)
	var beat <-chan time.Time
	if err == nil && interval > 0 {
		t := time.NewTicker(interval / 2)
		defer t.Stop()
		beat = t.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-stopping:
			_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
			stopping = nil
		case <-beat:
			if answers(ctx, handler) {
				_, _ = daemon.SdNotify(false, daemon.SdNotifyWatchdog)
			}
		}
	}
}

// answers reports whether the handler answers /healthz with 200.
func answers(ctx context.Context, handler http.Handler) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/healthz", nil)
	if err != nil {
		return false
	}
	r.RequestURI, r.RemoteAddr = "/healthz", "127.0.0.1:0"
	w := &statusWriter{header: http.Header{}}
	handler.ServeHTTP(w, r)
	return w.status == http.StatusOK
}

// statusWriter keeps the status of a response alone.
type statusWriter struct {
	header http.Header
	status int
}

func (w *statusWriter) Header() http.Header { return w.header }

func (w *statusWriter) WriteHeader(status int) { w.status = status }

func (w *statusWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return len(b), nil
}
