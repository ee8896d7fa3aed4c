package docker

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"codehub/internal/harness"
)

// A helper whose start fails leaves no goroutine that waits for its end. Not parallel: it looks at
// the goroutines of the process.
func TestFailedStartLeavesNoWait(t *testing.T) {
	removed := make(chan struct{})
	once := sync.OnceFunc(func() { close(removed) })
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/wait"): // as Docker: the header at once, the status at the end
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
			select {
			case <-removed:
				fmt.Fprint(w, `{"StatusCode": 0}`)
			case <-r.Context().Done():
			}
		case strings.HasSuffix(r.URL.Path, "/start"):
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprint(w, `{"message": "no such runtime"}`)
		case strings.HasSuffix(r.URL.Path, "/create"):
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, `{"Id": "abc"}`)
		case r.Method == http.MethodDelete:
			once()
			w.WriteHeader(http.StatusNoContent)
		default:
			fmt.Fprint(w, `{}`)
		}
	}))
	t.Cleanup(func() { engine.CloseClientConnections(); engine.Close() })
	r, err := New(t.Context(), Config{
		Installation: uuid.NewString(), Host: "tcp://" + engine.Listener.Addr().String(), HelperBinary: "/proc/self/exe", Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	for range 5 {
		if err := r.runHelper(t.Context(), helperRun{args: []string{cmdWall}}); err == nil || !strings.Contains(err.Error(), "no such runtime") {
			t.Fatal(err)
		}
		if err := r.awaitTask(t.Context(), "abc", func() {}); err == nil || !strings.Contains(err.Error(), "no such runtime") {
			t.Fatal(err)
		}
	}
	harness.Await(t, harness.Patience, "no wait is left", func() string {
		var b strings.Builder
		if err := pprof.Lookup("goroutine").WriteTo(&b, 2); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}, func(stacks string) bool { return !strings.Contains(stacks, "client.(*Client).ContainerWait.") })
}
