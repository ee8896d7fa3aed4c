package server

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/control/gc"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/web/httpapi"
)

// With an address of their own, metrics are nowhere else.
func TestMetricsListen(t *testing.T) {
	t.Parallel()
	own, err := proc.FreeAddress()
	try(t, err)
	s := serving(t, "", "CODEHUB_METRICS_LISTEN="+own)
	for url, want := range map[string]int{
		"http://" + own + "/metrics": http.StatusOK, "http://" + own + "/healthz": http.StatusNotFound, "http://" + address(s) + "/metrics": http.StatusNotFound,
	} {
		res, err := http.Get(url)
		try(t, err)
		body, err := io.ReadAll(res.Body)
		try(t, err)
		res.Body.Close()
		if res.StatusCode != want || (want == http.StatusOK) != strings.Contains(string(body), "codehub_tick_seconds") {
			t.Errorf("%s: %d %.200s", url, res.StatusCode, body)
		}
	}
}

func TestCollectionMetrics(t *testing.T) {
	t.Parallel()
	var s gc.Status
	m := httpapi.NewMetrics()
	m.Registry().MustRegister(collectionMetrics{func() gc.Status { return s }})
	told := func() (lines []string) {
		w := httptest.NewRecorder()
		m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		for line := range strings.Lines(w.Body.String()) {
			if strings.HasPrefix(line, "codehub_gc_") {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
		return lines
	}
	want := []string{"codehub_gc_failed_removals_total 0", "codehub_gc_removed_archives_total 0", "codehub_gc_removed_bytes_total 0"}
	if d := cmp.Diff(want, told()); d != "" {
		t.Error("before the first:", d)
	}
	s = gc.Status{
		At: time.Unix(1000, 0), Err: "the bucket is away", Removed: 3, RemovedBytes: 30, Failed: 1,
		Counts: map[gc.Verdict]int{gc.Keep: 2}, Bytes: map[gc.Verdict]int64{gc.Keep: 20},
	}
	verdict := `{verdict="` + string(gc.Keep) + `"}`
	want = []string{
		"codehub_gc_archive_bytes" + verdict + " 20", "codehub_gc_archives" + verdict + " 2",
		"codehub_gc_failed_removals_total 1", "codehub_gc_last_failed 1", "codehub_gc_last_seconds 1000",
		"codehub_gc_removed_archives_total 3", "codehub_gc_removed_bytes_total 30",
	}
	if d := cmp.Diff(want, told()); d != "" {
		t.Error(d)
	}
}
