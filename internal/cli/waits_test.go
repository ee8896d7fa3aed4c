package cli

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/api"
	"codehub/client"
	"codehub/internal/testing/harness"
)

// locked is a writer that several goroutines use.
type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A wait says why nothing begins, once, also where no terminal shows progress, and a signal ends it
// with the same words.
func TestWaitSaysWhy(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `{"status":"degraded","checks":{"docker":"ok","disk":"failed"}}`)
		select {
		case asked <- struct{}{}:
		default:
		}
	}))
	defer server.Close()
	c, err := client.New(server.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	var out locked
	w := &waiter{c: c, phase: "RUNNING", m: newMeter(&out)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); w.explain(ctx, time.Millisecond) }()
	w.see(api.Workspace{ID: "1", Name: "web", Operation: "NONE", Phase: "STANDBY", State: "starting"})
	const reason = "web waits: The server’s disk is nearly full."
	harness.Eventually(t, "the reason", func() bool { return strings.Contains(out.String(), reason) })
	for range 3 {
		<-asked
	}
	cancel()
	<-ended
	if got := out.String(); strings.Count(got, "waits:") != 1 {
		t.Errorf("it prints %q", got)
	}
	if got := messageOf(w.interrupted()); !strings.Contains(got, "interrupted") || !strings.Contains(got, "web is starting and waits: The server’s disk is nearly full.") {
		t.Errorf("interrupted: %q", got)
	}
	if got := messageOf(fmt.Errorf("get: %w", context.Canceled)); got != "interrupted" {
		t.Errorf("another command: %q", got)
	}
}

func TestWaitReason(t *testing.T) {
	t.Parallel()
	full := api.Workspace{Operation: "ARCHIVING", Progress: &api.Progress{Step: "waiting-storage", Detail: "3 MiB of 5 MiB"}}
	for _, c := range []struct {
		w           api.Workspace
		phase, fail string
		want        string
	}{
		{full, "ARCHIVED", "disk", "The archive storage is full: 3 MiB of 5 MiB"},
		{api.Workspace{Operation: "STARTING", Progress: &api.Progress{Step: "creating"}}, "RUNNING", "disk", ""},
		{api.Workspace{Operation: "NONE", Phase: "STANDBY"}, "RUNNING", "disk", "The server’s disk is nearly full."},
		{api.Workspace{Operation: "NONE", Phase: "RUNNING"}, "ARCHIVED", "disk", ""},
		{api.Workspace{Operation: "NONE", Phase: "STANDBY"}, "RUNNING", "bucket", ""},
		{api.Workspace{Operation: "NONE", Phase: "ARCHIVED"}, "RUNNING", "bucket", "The archive storage is not responding."},
		{api.Workspace{Operation: "NONE", Phase: "STANDBY"}, "ARCHIVED", "bucket", "The archive storage is not responding."},
	} {
		got := waitReason(c.w, c.phase, map[string]string{c.fail: "failed"})
		if !strings.HasPrefix(got, c.want) || got != "" && c.want == "" {
			t.Errorf("%s to %s with %s: %q, want %q", c.w.Phase, c.phase, c.fail, got, c.want)
		}
	}
}
