package proxy

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// kinds are requests other than navigations, with the headers they need to pass the
// origin checks.
var kinds = map[string]struct {
	method string
	header []string
}{
	"fetch":           {"GET", []string{"Sec-Fetch-Mode", "cors", "Sec-Fetch-Dest", "empty", "Sec-Fetch-Site", "same-origin", "Accept", "*/*"}},
	"fetch of html":   {"GET", []string{"Sec-Fetch-Mode", "same-origin", "Sec-Fetch-Dest", "empty", "Sec-Fetch-Site", "same-origin", "Accept", "text/html"}},
	"script":          {"GET", []string{"Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "script", "Sec-Fetch-Site", "same-origin"}},
	"service worker":  {"GET", []string{"Sec-Fetch-Mode", "same-origin", "Sec-Fetch-Dest", "serviceworker", "Service-Worker", "script"}},
	"iframe":          {"GET", []string{"Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe", "Sec-Fetch-Site", "same-origin", "Accept", "text/html"}},
	"prefetch":        {"GET", append([]string{"Sec-Purpose", "prefetch"}, navigation...)},
	"prerender":       {"GET", append([]string{"Sec-Purpose", "prefetch;prerender"}, navigation...)},
	"older prefetch":  {"GET", append([]string{"Purpose", "prefetch"}, navigation...)},
	"oldest prefetch": {"GET", []string{"X-Moz", "prefetch", "Accept", "text/html"}},
	"head":            {"HEAD", navigation},
	"form":            {"POST", []string{"Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document", "Sec-Fetch-Site", "same-origin", "Accept", "text/html"}},
	"command line":    {"GET", []string{"Accept", "*/*"}},
	"no headers":      {"GET", nil},
	"delete":          {"DELETE", nil},
	"websocket":       {"GET", []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==", "Accept", "text/html"}},
}

// The responses in every state of a workspace; see docs/states.md.
func TestResponsePerState(t *testing.T) {
	deleted := time.Now()
	const (
		none = workspace.OpNone
		run  = workspace.DesiredRunning
		by   = workspace.DesiredStandby
		arch = workspace.DesiredArchived
	)
	tests := []struct {
		name    string
		phase   workspace.Phase
		op      workspace.Operation
		desired workspace.DesiredState
		deleted bool

		page  string // the page; "" is the workspace
		shown int
		wakes int
		other int // the status of other requests; 0 is the workspace
	}{
		{name: "running", phase: "RUNNING", op: none, desired: run},
		{name: "running, stop desired", phase: "RUNNING", op: none, desired: by},
		{name: "standby", phase: "STANDBY", op: none, desired: by, page: "loading", shown: 503, wakes: 1, other: 503},
		{name: "standby, wanted", phase: "STANDBY", op: none, desired: run, page: "loading", shown: 503, wakes: 1, other: 503},
		{name: "standby, archive desired", phase: "STANDBY", op: none, desired: arch, page: "loading", shown: 503, wakes: 1, other: 503},
		{name: "provisioning", phase: "PENDING", op: workspace.OpProvisioning, desired: run, page: "loading", shown: 503, other: 503},
		{name: "restoring", phase: "ARCHIVED", op: workspace.OpRestoring, desired: run, page: "loading", shown: 503, other: 503},
		{name: "provisioning to standby", phase: "PENDING", op: workspace.OpProvisioning, desired: by, page: "queued", shown: 503, wakes: 1, other: 503},
		{name: "restoring to standby", phase: "ARCHIVED", op: workspace.OpRestoring, desired: by, page: "queued", shown: 503, wakes: 1, other: 503},
		{name: "restoring, cancelled", phase: "ARCHIVED", op: workspace.OpRestoring, desired: arch, page: "loading", shown: 503, other: 503},
		{name: "starting", phase: "STANDBY", op: workspace.OpStarting, desired: run, page: "loading", shown: 503, other: 503},
		{name: "stopping", phase: "RUNNING", op: workspace.OpStopping, desired: by, page: "queued", shown: 503, wakes: 1, other: 503},
		{name: "archiving", phase: "STANDBY", op: workspace.OpArchiving, desired: arch, page: "queued", shown: 503, wakes: 1, other: 503},
		{name: "first archive", phase: "PENDING", op: workspace.OpCreateEmptyArchive, desired: arch, page: "loading", shown: 503, other: 503},
		{name: "archived", phase: "ARCHIVED", op: none, desired: arch, page: "restore", shown: 502, other: 502},
		{name: "archived, wanted", phase: "ARCHIVED", op: none, desired: run, page: "loading", shown: 503, other: 503},
		{name: "pending", phase: "PENDING", op: none, desired: arch, page: "start", shown: 502, other: 502},
		{name: "pending, wanted", phase: "PENDING", op: none, desired: run, page: "loading", shown: 503, other: 503},
		{name: "error", phase: "ERROR", op: none, desired: run, page: "failed", shown: 502, other: 502},
		{name: "deleted", phase: "STANDBY", op: none, desired: by, deleted: true, page: "deleted", shown: 410, other: 410},
		{name: "deleted while running", phase: "RUNNING", op: none, desired: run, deleted: true, page: "deleted", shown: 410, other: 410},
		{name: "deleting", phase: "DELETING", op: workspace.OpDeleting, desired: run, deleted: true, page: "deleted", shown: 410, other: 410},
		{name: "gone", phase: "DELETED", op: none, desired: run, deleted: true, page: "deleted", shown: 410, other: 410},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			i := w.serve(wsA)
			ws := running(wsA, ann)
			ws.Phase, ws.Operation, ws.DesiredState = test.phase, test.op, test.desired
			if test.deleted {
				ws.DeletedAt = &deleted
			}
			w.store.put(ws)

			for name, kind := range kinds {
				r := w.request(kind.method, under(wsA)+"/x", kind.header...)
				if name == "websocket" {
					r.Header.Set("Origin", w.server.URL)
				}
				a := w.do(r)
				switch {
				case name == "service worker":
					if a.StatusCode != http.StatusForbidden {
						t.Errorf("%s: status %d: %s", name, a.StatusCode, a.body)
					}
				case test.other == 0 && name == "websocket":
					if a.StatusCode != http.StatusSwitchingProtocols {
						t.Errorf("%s: status %d", name, a.StatusCode)
					}
				case test.other == 0:
					if a.StatusCode != http.StatusOK {
						t.Errorf("%s: status %d: %s", name, a.StatusCode, a.body)
					}
				case a.StatusCode != test.other || a.Header.Get("Content-Type") != "application/json":
					t.Errorf("%s: status %d, want %d: %s", name, a.StatusCode, test.other, a.body)
				case test.other == 503 && a.Header.Get("Retry-After") == "":
					t.Errorf("%s: no Retry-After", name)
				}
			}
			if _, wakes := w.store.counts(); wakes != 0 {
				t.Fatalf("a request that is not a navigation woke it")
			}

			a := w.open(under(wsA) + "/x?y=1")
			if test.page == "" {
				if a.StatusCode != http.StatusOK || i.received().URI != "/x?y=1" {
					t.Errorf("navigation: status %d, the IDE got %q", a.StatusCode, i.received().URI)
				}
				return
			}
			if a.StatusCode != test.shown || a.Header.Get("X-Page") != test.page {
				t.Errorf("navigation: status %d, page %q; want %d, %q", a.StatusCode, a.Header.Get("X-Page"), test.shown, test.page)
			}
			if !strings.Contains(a.body, "name of "+string(wsA)) || !strings.Contains(a.body, "Path:"+under(wsA)+"/x?y=1") {
				t.Errorf("the page got %s", a.body)
			}
			if a.Header.Get("Cache-Control") != "no-store" {
				t.Error("the page may be cached")
			}
			if _, wakes := w.store.counts(); wakes != test.wakes {
				t.Errorf("woken %d times, want %d", wakes, test.wakes)
			}
			if i.served.Load() != 0 {
				t.Error("the IDE was reached")
			}
		})
	}
}

// A navigation does not show an outdated state: the user may arrive before the
// event of another replica.
func TestNavigationRefreshesRoute(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(wsA)
	ws := running(wsA, ann)
	ws.Phase, ws.Operation = workspace.PhaseStandby, workspace.OpStarting
	w.store.put(ws)
	w.get(under(wsA) + "/")
	w.store.put(running(wsA, ann)) // without an event
	harness.EventuallyWithin(t, patience, "the page of the workspace", func() bool { return w.open(under(wsA)+"/").StatusCode == http.StatusOK })
	if _, wakes := w.store.counts(); wakes != 0 {
		t.Error("woken although it was running")
	}
}

// Navigations that wake a workspace at the same time share one call, and their wakes do not
// keep each other's routes from being read.
func TestConcurrentWakes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ws := running(wsA, ann)
	ws.Phase, ws.DesiredState = workspace.PhaseStandby, workspace.DesiredStandby
	w.store.put(ws)
	slow := func() { time.Sleep(50 * time.Millisecond) }
	w.store.read, w.store.wake = slow, slow
	const tabs = 200
	var group sync.WaitGroup
	for i := range tabs {
		group.Go(func() {
			time.Sleep(time.Duration(i) * time.Millisecond / 2)
			if a := w.open(under(wsA) + "/"); a.Header.Get("X-Page") != "loading" {
				t.Errorf("status %d, page %q", a.StatusCode, a.Header.Get("X-Page"))
			}
		})
	}
	group.Wait()
	if _, wakes := w.store.counts(); wakes > tabs/2 {
		t.Errorf("%d wakes for %d navigations", wakes, tabs)
	}
}

func TestWakeAtLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ws := running(wsA, ann)
	ws.Phase = workspace.PhaseStandby
	w.store.put(ws)
	w.store.put(running(wsB, ann))
	w.store.limit = &workspace.Error{Code: workspace.CodeLimitExceeded, Message: "Too many.",
		Details: map[string]any{"limit_type": "per_user", "current": 2, "max": 2}}
	a := w.open(under(wsA) + "/")
	if a.StatusCode != http.StatusBadGateway || a.Header.Get("X-Limit") != "per_user 2/2 running 1" {
		t.Errorf("status %d, limit %q", a.StatusCode, a.Header.Get("X-Limit"))
	}
	if a := w.get(under(wsA) + "/"); a.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("an asset: status %d", a.StatusCode)
	}
}

func TestAuthorization(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.serve(wsA)
	tests := []struct {
		name   string
		path   string
		header []string
		page   bool
		status int
		want   string // page, or location
	}{
		{"missing slash", under(wsA), nil, true, 308, under(wsA) + "/"},
		{"missing slash, with a query", under(wsA) + "?folder=%2Fa&b", nil, true, 308, under(wsA) + "/?folder=%2Fa&b"},
		{"missing slash, no session", under(wsA), []string{"Cookie", ""}, false, 308, under(wsA) + "/"},
		{"no session opens", under(wsA) + "/a%2Fb?x=1&y=%26", []string{"Cookie", ""}, true, 303, "/login?next=" + url.QueryEscape(under(wsA)+"/a%2Fb?x=1&y=%26")},
		{"no session opens a long path", under(wsA) + "/?" + strings.Repeat("x", maxNext), []string{"Cookie", ""}, true, 303, "/login?next=" + url.QueryEscape(under(wsA)+"/")},
		{"no session fetches", under(wsA) + "/", []string{"Cookie", ""}, false, 401, "unauthenticated"},
		{"a bearer token", under(wsA) + "/", []string{"Cookie", "", "Authorization", "Bearer chub_ann"}, false, 401, "unauthenticated"},
		{"another user opens", under(wsA) + "/", []string{"Cookie", sessionCookie + "=bob-1"}, true, 403, "forbidden"},
		{"another user fetches", under(wsA) + "/", []string{"Cookie", sessionCookie + "=bob-1"}, false, 403, "forbidden"},
		{"another user's token", under(wsA) + "/", []string{"Cookie", "", api.TokenHeader, "chub_bob"}, false, 403, "forbidden"},
		{"unknown workspace", under(wsB) + "/", nil, true, 404, "not found"},
		{"unknown workspace, fetched", under(wsB) + "/", nil, false, 404, "not_found"},
		{"no id", "/w/", nil, true, 404, "not found"},
		{"the folder", "/w", nil, true, 404, "not found"},
		{"not an id", "/w/me/", nil, false, 404, "not_found"},
		{"an id in capitals", "/w/" + strings.ToUpper(string(wsA)) + "/", nil, false, 404, "not_found"},
		{"an id with an escaped slash", under(wsA) + "%2Fx", nil, false, 404, "not_found"},
		{"an escaped prefix", "/%77/" + string(wsA) + "/", nil, false, 404, "not_found"},
		{"a longer id", under(wsA) + "0/", nil, false, 404, "not_found"},
		{"the rest of the server", "/wx/" + string(wsA) + "/", nil, false, 418, ""},
		{"the rest of the server, doubled slash", "//w/" + string(wsA) + "/", nil, false, 418, ""},
		{"the database is down", under(wsA) + "/", []string{"Cookie", sessionCookie + "=broken"}, true, 503, "unavailable"},
		{"the database is down, fetched", under(wsA) + "/", []string{"Cookie", sessionCookie + "=broken"}, false, 503, "unavailable"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			header := test.header
			if test.page {
				header = append(append([]string{}, navigation...), header...)
			}
			a := w.get(test.path, header...)
			got := a.Header.Get("Location")
			if got == "" {
				got = a.Header.Get("X-Page")
			}
			if a.StatusCode != test.status || got != test.want && !strings.Contains(a.body, `"error":"`+test.want+`"`) {
				t.Errorf("status %d, %q %s; want %d, %q", a.StatusCode, got, a.body, test.status, test.want)
			}
			if strings.Contains(a.body, "name of") {
				t.Errorf("the answer names the workspace: %s", a.body)
			}
		})
	}
	if i.served.Load()+i.refused.Load() != 0 {
		t.Error("the IDE was reached")
	}
}

// While the database is unavailable, the response reveals nothing about the
// workspace.
func TestDatabaseOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.store.fail = errors.New("connection refused")
	if a := w.open(under(wsA) + "/"); a.StatusCode != 503 || a.Header.Get("X-Page") != "unavailable" || a.Header.Get("Retry-After") == "" {
		t.Errorf("status %d, page %q", a.StatusCode, a.Header.Get("X-Page"))
	}
	if a := w.get(under(wsA) + "/"); a.StatusCode != 503 {
		t.Errorf("status %d", a.StatusCode)
	}
}

// Other sites can only open pages.
func TestCrossSiteRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(wsA)
	own := w.server.URL
	tests := []struct {
		name   string
		method string
		header []string
		want   int
	}{
		{"same-origin fetch", "POST", []string{"Sec-Fetch-Site", "same-origin", "Origin", own}, 200},
		{"same-origin post without Sec-Fetch", "POST", []string{"Origin", own}, 200},
		{"command line", "POST", nil, 200},
		{"form without a referrer", "POST", []string{"Sec-Fetch-Site", "same-origin", "Origin", "null"}, 200},
		{"link from another site", "GET", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 200},
		{"form from another site", "POST", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 403},
		{"form from another site, no-cors", "POST", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Origin", own}, 403},
		{"fetch from another site", "GET", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors"}, 403},
		{"image on another site", "GET", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"}, 403},
		{"frame on another site", "GET", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}, 403},
		{"fetch from a sibling site", "GET", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "cors"}, 403},
		{"post from another site without Sec-Fetch", "POST", []string{"Origin", "http://evil.example"}, 403},
		{"fetch from another site without Sec-Fetch", "GET", []string{"Origin", "http://evil.example"}, 403},
		{"post with Origin null, without Sec-Fetch", "POST", []string{"Origin", "null"}, 403},
		{"another scheme", "POST", []string{"Origin", strings.Replace(own, "http", "https", 1)}, 403},
		{"another port", "POST", []string{"Origin", own + "0"}, 403},
		{"a token from another site", "POST", []string{"Sec-Fetch-Site", "cross-site", "Cookie", "", api.TokenHeader, "chub_ann"}, 200},
	}
	for _, test := range tests {
		if a := w.do(w.request(test.method, under(wsA)+"/", test.header...)); a.StatusCode != test.want {
			t.Errorf("%s: status %d, want %d", test.name, a.StatusCode, test.want)
		}
	}
}
