package httpapi

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/users/auth"
)

// A program inside a workspace, which has no credential, learns who it is and shows, stops and
// keeps awake its workspace. All other routes and workspaces are refused, whatever
// credential comes along. The owner's notes and variables are not shown.
func TestRequestsFromInsideWorkspace(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	own := e.AddWorkspace(e.ann.Caller, "alpha", func(n *postgres.NewWorkspace) {
		n.ImageRef, n.Memo, n.Env = "test", "s3cret memo", map[string]string{"TOKEN": "s3cret"}
	})
	e.Change(`UPDATE workspaces SET phase = 'RUNNING', desired_state = 'RUNNING' WHERE id = $1`, own.ID)
	other := e.workspace(e.ann, "beta")
	h := Outer(e.log.Logger(), e.m, nil, New(e.cfg))
	ask := func(method, path string) answer {
		t.Helper()
		r := httptest.NewRequestWithContext(auth.FromInside(t.Context(), own.ID), method, Prefix+path, nil)
		r.AddCookie(e.ann.cookie)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return answer{w.Code, w.Header(), w.Body.String()}
	}
	s := read[api.Session](t, ask("GET", "/session"))
	if s.User.Username != "ann" || s.Kind != api.SessionWorkspace || s.URL != e.URL.String() || s.Workspace == nil || s.Workspace.Name != "alpha" || s.Workspace.ID != string(own.ID) {
		t.Errorf("session %+v", s)
	}
	at := "/workspaces/" + string(own.ID)
	for _, path := range []string{"GET " + at, "GET " + at + "/ports", "POST " + at + "/stay", "POST " + at + "/stop"} {
		method, path, _ := strings.Cut(path, " ")
		if a := ask(method, path); a.status/100 != 2 || strings.Contains(a.body, "s3cret") {
			t.Errorf("%s %s: %d %s", method, path, a.status, a.body)
		}
	}
	for _, key := range []string{"x", publicKey} { // ann has no key
		r := httptest.NewRequestWithContext(auth.FromInside(t.Context(), own.ID), "POST", Prefix+at+"/git-signature", strings.NewReader(`{"public_key":"`+key+`","data":"eA=="}`))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusNotFound {
			t.Errorf("a signature: %d %s", w.Code, w.Body)
		}
	}
	if a := ask("GET", "/git-credential?host=https://git.example.com"); a.status != http.StatusNotFound || !strings.Contains(a.body, e.URL.String()+"/settings/git/new?host=git.example.com") {
		t.Errorf("%d %s", a.status, a.body)
	}
	e.want(201, "", "POST", "/git-connections", `{"host":"git.example.com","login":"ann","token":"hunter2"}`, as(e.ann))
	if c := read[api.GitCredential](t, ask("GET", "/git-credential?host=https://git.example.com")); c.Username != "ann" || c.Password != "hunter2" {
		t.Errorf("%+v", c)
	}
	if a := e.want(200, "", "GET", "/git-connections", "", as(e.ann)); strings.Contains(a.body, "hunter2") || strings.Contains(e.log.String(), "hunter2") {
		t.Errorf("%s", a.body)
	}
	routes := (&server{}).routes()
	for _, rt := range append(routes, route{method: "GET", path: "/nonsense"}, route{method: "BREW", path: "/session"}) {
		for _, id := range []string{string(own.ID), string(other.ID)} {
			if insideRoutes[rt.method+" "+rt.path] && (id == string(own.ID) || !strings.Contains(rt.path, "{id}")) {
				continue
			}
			path := strings.NewReplacer("{id}", id, "{port}", "3000", "{share}", "x", "{name}", "x", "{user}", "x").Replace(rt.path)
			if a := ask(rt.method, path); a.status != http.StatusForbidden || !strings.Contains(a.body, "Without a login") {
				t.Errorf("%s %s: %d %s", rt.method, path, a.status, a.body)
			}
		}
	}
	if got := fixture.Query[string](e, `SELECT string_agg(username || ' ' || (details ->> 'asked_by'), ',') FROM audit_log WHERE action = 'workspace.desired_state'`); got != "ann workspace" {
		t.Errorf("the audit log has %q", got)
	}
	e.Exec(`UPDATE users SET disabled = true WHERE username = 'ann'`)
	if a := ask("GET", "/session"); a.status != http.StatusForbidden {
		t.Errorf("of a disabled owner: %d %s", a.status, a.body)
	}
}
