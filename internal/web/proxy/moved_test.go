package proxy

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

const (
	ulidA   = "01JFMZ8Q5V7N3K2T9R4W6X8Y0Z"
	oldUUID = "5f0c2a34-9f5e-4c41-8f0e-6f2a6d2e9b11"
)

// moved is a list of moved workspaces that counts its reads.
type moved struct {
	mu    sync.Mutex
	by    map[string]workspace.ID
	fail  error
	reads int
}

func (m *moved) load(context.Context) (map[string]workspace.ID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	return m.by, m.fail
}

func (m *moved) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reads
}

func TestOldIDsRedirect(t *testing.T) {
	t.Parallel()
	record := &moved{by: map[string]workspace.ID{ulidA: wsA, oldUUID: wsA}}
	w := newWorld(t, func(c *Config) { c.Moved = record.load })
	w.serve(wsA)
	began := time.Now()
	harness.EventuallyWithin(t, patience, "the first read", func() bool { return record.count() == 1 })
	harness.EventuallyWithin(t, patience, "what was read is known", func() bool { return w.proxy.moves.lookup(ulidA) != "" })

	for from, to := range map[string]string{
		"/w/" + ulidA:                              under(wsA) + "/",
		"/w/" + ulidA + "/":                        under(wsA) + "/",
		"/w/" + ulidA + "?folder=/home/coder/x":    under(wsA) + "/?folder=/home/coder/x",
		"/w/" + ulidA + "/a%2Fb/%C3%A9?q=%0d%0a":   under(wsA) + "/a%2Fb/%C3%A9?q=%0d%0a",
		"/w/" + ulidA + "//evil.example/..%2f":     under(wsA) + "//evil.example/..%2f",
		"/w/" + ulidA + "/static/x.js":             under(wsA) + "/static/x.js",
		"/w/" + oldUUID + "/":                      under(wsA) + "/",
		"/w/" + ulidA + "/w/" + ulidA + "/x":       under(wsA) + "/w/" + ulidA + "/x",
		"/w/" + ulidA + "/proxy/3000/?a=b&c=d#not": under(wsA) + "/proxy/3000/?a=b&c=d",
	} {
		// For its owner, another user, and without a session, with any method.
		for who, header := range map[string][]string{
			"ann": navigation, "bob": append([]string{"Cookie", sessionCookie + "=bob-1"}, navigation...), "nobody": {"Cookie", ""},
		} {
			for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodHead} {
				a := w.do(w.request(method, from, header...))
				if a.StatusCode != http.StatusPermanentRedirect || a.Header.Get("Location") != to || a.Header.Get("Cache-Control") != "no-store" || a.body != "" {
					t.Errorf("%s %s as %s: %d %q %q, want 308 %q", method, from, who, a.StatusCode, a.Header.Get("Location"), a.body, to)
				}
			}
		}
	}
	// The new address authorizes the request.
	for who, want := range map[string]int{"ann-1": http.StatusOK, "bob-1": http.StatusForbidden} {
		if a := w.open(under(wsA) + "/"); who == "ann-1" && a.StatusCode != want {
			t.Errorf("%s at the new address: %d", who, a.StatusCode)
		} else if a := w.get(under(wsA)+"/", "Cookie", sessionCookie+"="+who); a.StatusCode != want {
			t.Errorf("%s at the new address: %d, want %d", who, a.StatusCode, want)
		}
	}
	// No other ID is redirected.
	for _, path := range []string{
		"/w/01JFMZ8Q5V7N3K2T9R4W6X8Y0Y/", "/w/" + strings.ToLower(ulidA) + "/", "/w/%30" + ulidA[1:] + "/",
		"/w/" + string(wsB) + "/", "/w/", "/w/" + ulidA + ".x/", "/w/" + strings.Repeat("A", 65) + "/",
	} {
		if a := w.open(path); a.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %d %s, want 404", path, a.StatusCode, a.Header.Get("Location"))
		}
	}
	if n, took := record.count(), time.Since(began); n > 1+int(took/movedMaxAge) {
		t.Errorf("the record was read %d times within %s", n, took)
	}
}

// While the database is unavailable an old address does not give 404.
func TestOldIDDuringDatabaseOutage(t *testing.T) {
	t.Parallel()
	record := &moved{fail: errors.New("no database")}
	w := newWorld(t, func(c *Config) { c.Moved = record.load })
	if a := w.open("/w/" + ulidA + "/"); a.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("without a database: %d, want 503", a.StatusCode)
	}
	if a := w.open(under(wsB) + "/"); a.StatusCode != http.StatusNotFound {
		t.Errorf("an id of this version: %d, want 404", a.StatusCode)
	}
	record.mu.Lock()
	record.by, record.fail = map[string]workspace.ID{ulidA: wsA}, nil
	record.mu.Unlock()
	harness.EventuallyWithin(t, patience, "the address leads on", func() bool { return w.open("/w/"+ulidA+"/").StatusCode == http.StatusPermanentRedirect })
}

// Workspaces imported while the server runs are found, and unknown IDs cause a
// limited number of reads.
func TestMovedWorkspacesAreReadAgain(t *testing.T) {
	t.Parallel()
	record, now := &moved{}, time.Unix(1e9, 0)
	m := moves{load: record.load, now: func() time.Time { return now }}
	find := func(want workspace.ID, fails bool, reads int) {
		t.Helper()
		id, err := m.find(t.Context(), ulidA)
		if id != want || (err != nil) != fails || record.reads != reads {
			t.Errorf("found %q, %v after %d reads; want %q after %d", id, err, record.reads, want, reads)
		}
	}
	find("", false, 1)
	find("", false, 1)
	record.by = map[string]workspace.ID{ulidA: wsA}
	now = now.Add(movedMaxAge - 1)
	find("", false, 1)
	record.fail = errors.New("away")
	now = now.Add(1)
	find("", true, 2)
	find("", true, 2)
	now = now.Add(movedRetry)
	find("", true, 3)
	record.fail = nil
	now = now.Add(movedRetry)
	find(wsA, false, 4)
	record.fail = errors.New("away")
	now = now.Add(time.Hour)
	find(wsA, false, 4)
}
