package inside

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// The Pod of helm test waits for a server that becomes ready.
func TestGetWaits(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1) == 1 {
			http.Error(w, "database", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ready"))
	}))
	defer s.Close()
	var out strings.Builder
	if err := run(t.Context(), []string{Get, s.URL}, &out); err != nil || out.String() != "ready" || requests.Load() != 2 {
		t.Errorf("%q after %d requests, %v", out.String(), requests.Load(), err)
	}
	requests.Store(0)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ended, []string{Get, s.URL}, &out); err == nil {
		t.Error("no error without a response")
	}
}
