package proxy

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/workspace"

	"github.com/google/go-cmp/cmp"
)

// curl are the headers of a command line client that opens the address of a page.
var curl = []string{"Accept", "*/*", "Cookie", "", api.TokenHeader, "chub_ann"}

// refusal reads the error of a response.
func (a answer) refusal(t *testing.T) api.Error {
	t.Helper()
	var e api.Error
	if err := json.Unmarshal([]byte(a.body), &e); err != nil || a.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("status %d, %q is no error of the API: %v\n%s", a.StatusCode, a.Header.Get("Content-Type"), err, a.body)
	}
	return e
}

// A client that is not a browser gets the facts of each page, and the call that its
// button makes.
func TestFactsPerState(t *testing.T) {
	t.Parallel()
	const path = "/api/v1/workspaces/" + string(wsA)
	start := map[string]any{"desired_state": "RUNNING"}
	deleted := time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)
	tests := []struct {
		name   string
		change func(*workspace.Workspace)
		status int
		code   string
		facts  map[string]any
		method string
		path   string
		body   map[string]any
	}{
		{"stopped", func(w *workspace.Workspace) { w.Phase, w.DesiredState = "STANDBY", "STANDBY" }, 503, "unavailable",
			map[string]any{"state": "stopped", "phase": "STANDBY", "operation": "NONE", "desired_state": "STANDBY", "progress": nil, "error_reason": nil},
			"PATCH", path, start},
		{"about to start", func(w *workspace.Workspace) { w.Phase = "STANDBY" }, 503, "unavailable",
			map[string]any{"desired_state": "RUNNING"}, "GET", path, nil},
		{"restoring", func(w *workspace.Workspace) {
			w.Phase, w.Operation = "ARCHIVED", workspace.OpRestoring
			w.Progress = &workspace.Progress{Step: "unpacking", Done: 5, Total: 10}
		}, 503, "unavailable", map[string]any{"operation": "RESTORING", "progress": map[string]any{
			"step": "unpacking", "detail": "", "done": 5.0, "total": 10.0, "entries": 0.0, "entries_total": 0.0, "rate": 0.0, "seconds_left": 0.0, "steps": []any{},
		}}, "GET", path, nil},
		{"stopping", func(w *workspace.Workspace) { w.Operation, w.DesiredState = workspace.OpStopping, "STANDBY" }, 503, "unavailable",
			map[string]any{"state": "stopping", "operation": "STOPPING"}, "PATCH", path, map[string]any{"desired_state": "RUNNING", "queue": true}},
		{"stopping, start queued", func(w *workspace.Workspace) {
			w.Operation, w.DesiredState, w.NextDesired = workspace.OpStopping, "STANDBY", "RUNNING"
		}, 503, "unavailable", map[string]any{"next_desired_state": "RUNNING"}, "GET", path, nil},
		{"archived", func(w *workspace.Workspace) { w.Phase, w.DesiredState = "ARCHIVED", "ARCHIVED" }, 502, "unavailable",
			map[string]any{"phase": "ARCHIVED"}, "PATCH", path, start},
		{"never started", func(w *workspace.Workspace) { w.Phase, w.DesiredState = "PENDING", "ARCHIVED" }, 502, "unavailable",
			map[string]any{"phase": "PENDING"}, "PATCH", path, start},
		{"failed", func(w *workspace.Workspace) {
			w.Phase, w.ErrorReason, w.ErrorMessage = "ERROR", workspace.ErrImagePullFailed, "pull access denied"
		}, 502, "recovery_required", map[string]any{"error_reason": "ImagePullFailed", "error_message": "pull access denied"},
			"POST", path + "/recover", map[string]any{"action": "afresh"}},
		{"deleted", func(w *workspace.Workspace) { w.Phase, w.DeletedAt, w.ArchiveKey = "ARCHIVED", &deleted, "k" }, 410, "gone",
			map[string]any{"deleted_at": "2026-03-01T10:00:00Z"}, "POST", path + "/undelete", nil},
		{"removed", func(w *workspace.Workspace) { w.Phase, w.DeletedAt = "DELETED", &deleted }, 410, "gone",
			map[string]any{"phase": "DELETED"}, "GET", "/api/v1/workspaces", nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			ws := running(wsA, ann)
			test.change(&ws)
			w.store.put(ws)
			a := w.get(under(wsA)+"/x", curl...)
			e := a.refusal(t)
			if a.StatusCode != test.status || e.Code != test.code || !strings.HasSuffix(e.Message, ".") {
				t.Errorf("status %d, %q %q; want %d, %q", a.StatusCode, e.Code, e.Message, test.status, test.code)
			}
			test.facts["workspace_id"], test.facts["name"] = string(wsA), "name of "+string(wsA)
			test.facts["url"] = w.server.URL + under(wsA) + "/"
			for name, want := range test.facts {
				if got, ok := e.Details[name]; !ok || !cmp.Equal(want, got) {
					t.Errorf("%s is %v, want %v", name, got, want)
				}
			}
			w.expectNext(e, api.NextCall{Method: test.method, URL: test.path, Body: test.body})
			if _, wakes := w.store.counts(); wakes != 0 {
				t.Error("the workspace was woken")
			}
		})
	}
}

// expectNext checks the call that the details name. want.URL is without the origin.
func (w *world) expectNext(e api.Error, want api.NextCall) {
	w.t.Helper()
	want.URL = w.server.URL + want.URL
	raw, err := json.Marshal(e.Details["next"])
	if err != nil {
		w.t.Fatal(err)
	}
	var got api.NextCall
	if err := json.Unmarshal(raw, &got); err != nil {
		w.t.Fatalf("next is %s: %v", raw, err)
	}
	if d := cmp.Diff(want, got); d != "" {
		w.t.Errorf("next call (-want +got):\n%s", d)
	}
}

// Over the limit of bytes, such a client learns that, and no workspace to stop.
func TestFactsOverBytes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ws := running(wsA, ann)
	ws.Phase, ws.DesiredState = workspace.PhaseStandby, workspace.DesiredStandby
	w.store.put(ws)
	w.store.put(running(wsB, ann))
	w.store.limit = &workspace.Error{Code: workspace.CodeQuotaExceeded, Message: "Too many bytes.", Details: map[string]any{"current": 3, "max": 2}}
	a := w.get(under(wsA)+"/", curl...)
	e := a.refusal(t)
	if a.StatusCode != http.StatusServiceUnavailable || e.Code != "quota_exceeded" || e.Message != "Too many bytes." || e.Details["max"] != 2.0 || e.Details["phase"] != "STANDBY" {
		t.Errorf("%d %+v", a.StatusCode, e)
	}
	w.expectNext(e, api.NextCall{Method: "GET", URL: "/api/v1/workspaces/" + string(wsA)})
}

// At the running limit, a client that is not a browser learns what a start would be
// refused for. Open tabs reconnect forever, so nothing is looked up for them.
func TestFactsAtLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ws := running(wsA, ann)
	ws.Phase, ws.DesiredState = workspace.PhaseStandby, workspace.DesiredStandby
	w.store.put(ws)
	w.store.put(running(wsB, ann))
	w.store.limit = &workspace.Error{Code: workspace.CodeLimitExceeded, Message: "Too many.", Details: map[string]any{
		"limit_type": "per_user", "current": 2, "max": 2, "running_workspaces": []map[string]any{{"id": string(wsB), "name": "b"}}}}

	a := w.get(under(wsA)+"/", curl...)
	e := a.refusal(t)
	if a.StatusCode != http.StatusServiceUnavailable || e.Code != "workspace_limit_exceeded" || a.Header.Get("Retry-After") != "" {
		t.Errorf("status %d, %q", a.StatusCode, e.Code)
	}
	for name, want := range map[string]any{"limit_type": "per_user", "current": 2.0, "max": 2.0, "phase": "STANDBY",
		"running_workspaces": []any{map[string]any{"id": string(wsB), "name": "b"}}} {
		if got := e.Details[name]; !cmp.Equal(want, got) {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	w.expectNext(e, api.NextCall{Method: "PATCH", URL: "/api/v1/workspaces/" + string(wsB), Body: map[string]any{"desired_state": "STANDBY", "queue": true}})
	if w.store.limitChecks != 1 {
		t.Fatalf("%d checks of the limit, want 1", w.store.limitChecks)
	}
	for name, kind := range kinds {
		if name == "command line" || name == "no headers" || kind.method != http.MethodGet {
			continue
		}
		if strings.HasPrefix(name, "oldest") {
			continue // without Sec-Fetch headers it looks like a client that is not a browser
		}
		r := w.request(kind.method, under(wsA)+"/", kind.header...)
		if name == "websocket" {
			r.Header.Set("Origin", w.server.URL)
		}
		want := "unavailable"
		if name == "service worker" { // none can be registered on the main origin
			want = "forbidden"
		}
		if e := w.do(r).refusal(t); e.Code != want {
			t.Errorf("%s: %q", name, e.Code)
		}
	}
	if w.store.limitChecks != 1 {
		t.Errorf("the requests of open tabs checked the limit %d times", w.store.limitChecks-1)
	}
}

// The refusals without a workspace name the next call, too.
func TestNextCallOfOtherRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(wsA)
	list := api.NextCall{Method: "GET", URL: "/api/v1/workspaces"}
	for _, test := range []struct {
		name   string
		path   string
		header []string
		status int
		want   api.NextCall
	}{
		{"no session", under(wsA) + "/", []string{"Cookie", ""}, 401, api.NextCall{Method: "POST", URL: "/api/v1/login"}},
		{"another user's", under(wsA) + "/", []string{"Cookie", "", api.TokenHeader, "chub_bob"}, 403, list},
		{"unknown", under(wsB) + "/", nil, 404, list},
		{"database outage", under(wsA) + "/x?y=1", []string{"Cookie", sessionCookie + "=broken"}, 503, api.NextCall{Method: "GET", URL: under(wsA) + "/x?y=1"}},
	} {
		a := w.get(test.path, append([]string{"Accept", "*/*"}, test.header...)...)
		if a.StatusCode != test.status {
			t.Errorf("%s: status %d", test.name, a.StatusCode)
		}
		w.expectNext(a.refusal(t), test.want)
	}
}

// Clients without Sec-Fetch headers choose between the page and the JSON by Accept.
func TestContentNegotiation(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		accept []string
		page   bool
	}{
		{[]string{"text/html"}, true},
		{[]string{"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}, true},
		{[]string{"application/xhtml+xml, Text/HTML ; charset=utf-8"}, true},
		{[]string{"text/html;q=0.5, */*"}, true},
		{[]string{"application/json, text/html"}, true},
		{[]string{"application/json;q=0.5, text/html"}, true},
		{[]string{"*/*", "text/html"}, true},
		{[]string{"text/html;q=often"}, true},
		{nil, false},
		{[]string{""}, false},
		{[]string{"*/*"}, false},
		{[]string{"text/*"}, false},
		{[]string{"text/html2"}, false},
		{[]string{"application/json"}, false},
		{[]string{"application/json, */*"}, false},
		{[]string{"application/json, text/html;q=0.9"}, false},
		{[]string{"text/html;q=0"}, false},
		{[]string{"text/html;q=0.0, */*"}, false},
	} {
		w := newWorld(t)
		ws := running(wsA, ann)
		ws.Phase, ws.DesiredState = workspace.PhaseArchived, workspace.DesiredArchived
		w.store.put(ws)
		r := w.request(http.MethodGet, under(wsA)+"/")
		r.Header["Accept"] = test.accept
		a := w.do(r)
		if page := a.Header.Get("X-Page") == "restore"; page != test.page || a.StatusCode != http.StatusBadGateway {
			t.Errorf("Accept %q: status %d, page %v, want %v", test.accept, a.StatusCode, page, test.page)
		} else if !page {
			a.refusal(t)
		}
	}
}

// A page of a workspace can read what its own origin answers: neither texts of the owner or
// of Docker, nor other workspaces are in it.
func TestFactsOnOwnOrigin(t *testing.T) {
	t.Parallel()
	h := newHostWorld(t)
	ws := running(wsA, ann)
	ws.Phase, ws.DesiredState, ws.ErrorMessage = workspace.PhaseStandby, workspace.DesiredStandby, "secret of Docker"
	ws.Progress = &workspace.Progress{Step: "creating", Detail: "secret of Docker"}
	h.store.put(ws)
	h.store.put(running(wsB, ann))
	h.store.limit = &workspace.Error{Code: workspace.CodeLimitExceeded, Message: "Too many.", Details: map[string]any{"limit_type": "per_user"}}
	ask := func(address string, header ...string) (answer, api.Error) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
		if err != nil {
			t.Fatal(err)
		}
		set(r.Header, header...)
		res, err := h.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		a := answer{res, string(body)}
		return a, a.refusal(t)
	}
	a, e := ask(h.at(wsA)+"/x", "Cookie", hostCookie+"=ann-1"+at(workspace.Host{ID: wsA}), "Accept", "*/*")
	if a.StatusCode != http.StatusServiceUnavailable || e.Code != "unavailable" || e.Details["phase"] != "STANDBY" || e.Details["next"] == nil {
		t.Errorf("status %d: %s", a.StatusCode, a.body)
	}
	for _, private := range []string{"name of", "secret", string(wsB), "limit"} {
		if strings.Contains(a.body, private) {
			t.Errorf("the response has %q: %s", private, a.body)
		}
	}
	// The main origin answers programs with a token only, and names the other address.
	a, e = ask(h.main+under(wsA)+"/x?y=1", "Cookie", sessionCookie+"=ann-1", "Accept", "*/*")
	next, _ := e.Details["next"].(map[string]any)
	if a.StatusCode != http.StatusForbidden || next["url"] != h.at(wsA)+"/x?y=1" {
		t.Errorf("main origin: status %d: %s", a.StatusCode, a.body)
	}
	if a, e = ask(h.main+under(wsA)+"/x", curl...); e.Code != "workspace_limit_exceeded" || e.Details["name"] != "name of "+string(wsA) {
		t.Errorf("main origin with a token: status %d: %s", a.StatusCode, a.body)
	}
}
