package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/internal/bus/activity"
	"codehub/internal/gateway/origin"
	"codehub/internal/workspace"
)

// ideAnswers is an IDE that records what it is asked for.
type ideAnswers struct {
	mu    sync.Mutex
	asked []string
	fail  error
}

func (a *ideAnswers) State(_ *http.Request, v IDEVisit) any {
	return map[string]any{"open": v.Access == IDEAllowed, "access": v.Access, "name": v.Workspace.Name}
}

func (a *ideAnswers) Ask(_ context.Context, c workspace.Caller, id workspace.ID, what IDERequest, lasting time.Duration) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, fmt.Sprintf("%s %s %s %s", c.UserID, id, what, lasting))
	return a.fail
}

func (a *ideAnswers) FileVersions(_ *http.Request, c workspace.Caller, id workspace.ID, f IDEFile) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, fmt.Sprintf("%s %s versions %s %s", c.UserID, id, f.Path, f.Cursor))
	return map[string]string{"of": f.Path}, a.fail
}

func (a *ideAnswers) FileText(_ *http.Request, c workspace.Caller, id workspace.ID, f IDEFile) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, fmt.Sprintf("%s %s version %s %s", c.UserID, id, f.Path, f.Backup))
	return map[string]string{"text": f.Backup}, a.fail
}

// ideCookies are the cookies of the preferences.
var ideCookies = map[IDEPreference]string{PreferLanguage: "lang", PreferTheme: "theme"}

func (a *ideAnswers) Preference(r *http.Request, p IDEPreference) string {
	if c, err := r.Cookie(ideCookies[p]); err == nil && a.PreferenceCookie(p, c.Value) != nil {
		return c.Value
	}
	return ""
}

func (a *ideAnswers) PreferenceCookie(p IDEPreference, value string) *http.Cookie {
	if value != "" && value != map[IDEPreference]string{PreferLanguage: "ko", PreferTheme: "dark"}[p] && value != "en" {
		return nil
	}
	c := &http.Cookie{Name: ideCookies[p], Value: value, Path: "/"}
	if value == "" {
		c.MaxAge = -1
	}
	return c
}

func (a *ideAnswers) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := a.asked
	a.asked = nil
	return out
}

// onHost is a request for the host of a workspace with ann's session there.
func onHost(h *hostWorld, to workspace.Host, method, path string, header ...string) *http.Request {
	r := h.request(method, path)
	r.Host = origin.Host(h.proxy.layout.URL(to))
	r.Header.Set("Cookie", hostCookie+"=ann-1"+at(to))
	set(r.Header, header...)
	return r
}

// post sends JSON as the IDE's page does.
func post(r *http.Request, body string) *http.Request {
	r.Method, r.Body, r.ContentLength = http.MethodPost, io.NopCloser(bytes.NewBufferString(body)), int64(len(body))
	r.Header.Set("Content-Type", "application/json")
	return r
}

var fromPage = []string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Mode", "cors", "Sec-Fetch-Dest", "empty"}

// On the host of a workspace, and in path mode below its path, codehub answers the IDE's own
// requests. They reach no container and wake nothing, and only the use that a page reports counts.
// Other origins, ports and users get nothing.
func TestIDERequests(t *testing.T) {
	t.Parallel()
	answers, used := &ideAnswers{}, activity.New()
	unsaved := NewUnsaved(time.Now)
	with := func(c *Config) { c.IDE, c.Unsaved, c.Activity = answers, unsaved, used }

	hosts, paths := newHostWorld(t, with), newWorld(t, with)
	for name, m := range map[string]struct {
		w       *world
		request func(method, path string, header ...string) *http.Request
	}{
		"host": {hosts.world, func(method, path string, header ...string) *http.Request {
			return onHost(hosts, workspace.Host{ID: wsA}, method, "/_codehub/"+path, header...)
		}},
		"path mode": {paths, func(method, path string, header ...string) *http.Request {
			return paths.request(method, under(wsA)+"/_codehub/"+path, header...)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := m.w
			i := w.serve(wsA)
			check := func(what string, r *http.Request, status int, body string) {
				t.Helper()
				if a := w.do(r); a.StatusCode != status || !strings.Contains(a.body, body) {
					t.Errorf("%s: %d %s, want %d %s", what, a.StatusCode, a.body, status, body)
				}
			}
			check("the script", m.request("GET", "ide.js"), 200, "codehub-notice")
			if kept := w.do(m.request("GET", "ide.js")).Header.Get("Cache-Control"); kept != "private, max-age=3600" {
				t.Errorf("the script may be kept: %q", kept)
			}
			check("the script as a service worker", m.request("GET", "ide.js", "Service-Worker", "script"), 404, "")
			check("the state", m.request("GET", "state", fromPage...), 200, `"open":true`)
			check("the state without a session", m.request("GET", "state", "Cookie", ""), 401, `"access":1`)
			check("another path", m.request("GET", "other"), 404, "")
			check("a change by GET", m.request("GET", "stop", fromPage...), 404, "")

			check("a report", post(m.request("POST", "state", fromPage...), `{"page":"p","unsaved":3}`), 200, `"open":true`)
			if n := unsaved.Files(wsA); n != 3 {
				t.Errorf("%d unsaved files are known, want 3", n)
			}
			unsaved.Report(wsA, "p", 0)
			check("a report of an unknown use", post(m.request("POST", "state", fromPage...), `{"used":"busy"}`), 200, `"open":true`)
			check("a report without a session", post(m.request("POST", "state", "Cookie", ""), `{"page":"p","unsaved":3,"used":"typing"}`), 401, "")
			if n := unsaved.Files(wsA); n != 0 {
				t.Errorf("without a session %d unsaved files were reported", n)
			}

			check("stay", post(m.request("POST", "stay", fromPage...), `{}`), 200, "")
			check("keep awake", post(m.request("POST", "keep-awake", fromPage...), `{"seconds":60}`), 200, "")
			check("stop", post(m.request("POST", "stop", fromPage...), `{}`), 200, "")
			check("versions", post(m.request("POST", "versions", fromPage...), `{"path":"/home/coder/a","cursor":"c"}`), 200, `{"of":"/home/coder/a"}`)
			check("a version", post(m.request("POST", "version", fromPage...), `{"path":"/home/coder/a","backup":"b"}`), 200, `{"text":"b"}`)
			want := "[ann " + string(wsA) + " stay 0s ann " + string(wsA) + " keep-awake 1m0s ann " + string(wsA) + " stop 0s ann " +
				string(wsA) + " versions /home/coder/a c ann " + string(wsA) + " version /home/coder/a b]"
			if got := fmt.Sprint(answers.take()); got != want {
				t.Errorf("asked for %s, want %s", got, want)
			}

			for _, body := range []string{`{}`, strings.Repeat("x", maxIDEBody+1)} { // it is not read
				check("a version without a session", post(m.request("POST", "version", "Cookie", ""), body), 401, "")
				check("stop without a session", post(m.request("POST", "stop", "Cookie", ""), body), 401, "")
				check("a report without a session", post(m.request("POST", "state", "Cookie", ""), body), 401, "")
			}
			check("stop by another site", post(m.request("POST", "stop", "Sec-Fetch-Site", "cross-site"), `{}`), 403, "")
			check("stop by a page of the same site", post(m.request("POST", "stop", "Sec-Fetch-Site", "same-site"), `{}`), 403, "")
			check("a version for another site", post(m.request("POST", "version", "Sec-Fetch-Site", "cross-site"), `{}`), 403, "")
			check("versions for a page of the same site", post(m.request("POST", "versions", "Sec-Fetch-Site", "same-site"), `{}`), 403, "")
			check("a version by GET", m.request("GET", "version", fromPage...), 404, "")
			check("stop by another origin", post(m.request("POST", "stop", "Origin", "http://evil.example.com"), `{}`), 403, "")
			check("the state for another origin", m.request("GET", "state", "Origin", "http://evil.example.com"), 403, "")
			form := post(m.request("POST", "stop", fromPage...), `{}`)
			form.Header.Set("Content-Type", "text/plain")
			check("stop by a form", form, 400, "")
			check("a large body", post(m.request("POST", "stop", fromPage...), `{"page":"`+strings.Repeat("x", maxIDEBody)+`"}`), 400, "")
			if got := answers.take(); len(got) > 0 {
				t.Errorf("refused requests asked for %v", got)
			}

			for path, to := range map[string]string{"logout": "/logout", "dashboard": "/workspaces/" + string(wsA)} {
				a := w.do(m.request("GET", path, navigation...))
				if at := a.Header.Get("Location"); a.StatusCode != http.StatusSeeOther || at != w.proxy.layout.Main()+to {
					t.Errorf("%s leads to %d %q, want %s", path, a.StatusCode, at, to)
				}
				check(path+" by a script", m.request("GET", path, fromPage...), 404, "")
			}

			stopped := w.store.row(wsA)
			stopped.Phase, stopped.DesiredState = workspace.PhaseStandby, workspace.DesiredStandby
			w.store.put(stopped)
			w.proxy.Invalidate(wsA)
			check("the state of a stopped workspace", m.request("GET", "state", fromPage...), 200, `"open":true`)
			check("a report about a stopped workspace", post(m.request("POST", "state", fromPage...), `{"used":"typing"}`), 200, "")
			theirs := running(wsA, bob)
			w.store.put(theirs)
			w.proxy.Invalidate(wsA)
			a := w.do(m.request("GET", "state", fromPage...))
			if a.StatusCode != 403 || !strings.Contains(a.body, `"access":2`) || strings.Contains(a.body, "name of") {
				t.Errorf("the state of another user's workspace: %d %s", a.StatusCode, a.body)
			}
			if _, wakes := w.store.counts(); wakes != 0 {
				t.Errorf("the workspace was woken %d times", wakes)
			}
			if n := i.served.Load() + i.refused.Load(); n != 0 {
				t.Errorf("the container got %d requests", n)
			}
			if last, ok := used.Last(wsA); ok {
				t.Errorf("counted as use: %v", last)
			}
			w.store.put(running(wsA, ann))
			w.proxy.Invalidate(wsA)
			for _, kind := range []activity.Kind{activity.Presence, activity.Typing, activity.Output} {
				check("a report of "+string(kind), post(m.request("POST", "state", fromPage...), `{"used":"`+string(kind)+`"}`), 200, `"open":true`)
				if last, _ := used.Last(wsA); last.Kind != kind {
					t.Errorf("%q was recorded, want %q", last.Kind, kind)
				}
			}
			used.Forget(time.Now().Add(time.Hour))
		})
	}

	port := workspace.Host{ID: wsA, Port: 3000}
	for _, path := range []string{"state", "ide.js"} {
		if a := hosts.do(onHost(hosts, port, "GET", "/_codehub/"+path, fromPage...)); a.StatusCode != 404 {
			t.Errorf("%s on the host of a port: %d, want 404", path, a.StatusCode)
		}
	}
	if a := hosts.do(post(onHost(hosts, port, "POST", "/_codehub/stop", fromPage...), `{}`)); a.StatusCode != 404 || len(answers.take()) > 0 {
		t.Errorf("stop on the host of a port: %d, want 404", a.StatusCode)
	}
}

// The language and the theme of the dashboard come with the visitor to the host of a workspace,
// also when they changed after the first visit.
func TestIDELanguage(t *testing.T) {
	t.Parallel()
	h := newHostWorld(t, func(c *Config) { c.IDE = &ideAnswers{} })
	i := h.serve(wsA)
	b := h.tab("ann-1")
	open := h.main + under(wsA) + "/?folder=/x"
	visit := func(address, language string, steps int) {
		t.Helper()
		if res := b.visit(address); res.StatusCode != http.StatusOK || len(b.trail) != steps {
			t.Fatalf("opened with %d by %s, want %d steps", res.StatusCode, strings.Join(b.trail, "\n"), steps)
		}
		if got := b.cookies[origin.Host(h.at(wsA))]["lang"]; got != language {
			t.Errorf("the language on the host is %q, want %q", got, language)
		}
		if got := i.received().URI; address == open && got != "/?folder=/x" {
			t.Errorf("the IDE was opened at %s", got)
		}
	}
	b.cookies[origin.Host(h.main)]["lang"] = "ko"
	visit(h.at(wsA)+"/", "ko", 4)
	visit(open, "ko", 3) // by the step that sets the language
	visit(open, "ko", 2)
	b.cookies[origin.Host(h.main)]["lang"] = "en"
	visit(open, "en", 3)
	visit(open, "en", 2)
	b.cookies[origin.Host(h.main)]["theme"] = "dark"
	visit(open, "en", 3)
	visit(open, "en", 2)
	if got := b.cookies[origin.Host(h.at(wsA))]["theme"]; got != "dark" {
		t.Errorf("the theme on the host is %q, want dark", got)
	}
	delete(b.cookies[origin.Host(h.main)], "theme")
	visit(open, "en", 3)
	visit(open, "en", 2)
	if got := b.cookies[origin.Host(h.at(wsA))]["theme"]; got != "" {
		t.Errorf("the theme on the host is %q after it was turned off", got)
	}
	b.cookies[origin.Host(h.main)]["lang"] = "xx"
	visit(open, "", 3)
	visit(open, "", 2)

	fresh := h.tab("ann-1")
	fresh.cookies[origin.Host(h.main)]["lang"] = "ko"
	if res := fresh.visit(open); res.StatusCode != http.StatusOK || len(fresh.trail) != 5 {
		t.Errorf("a first visit: %d by %s, want 5 steps", res.StatusCode, strings.Join(fresh.trail, "\n"))
	}
	forged := h.tab("ann-1")
	forged.step(h.at(wsA) + ticketPath + "?ticket=x&language=xx&theme=xx")
	if got, set := forged.cookies[origin.Host(h.at(wsA))]["lang"]; set {
		t.Errorf("an unknown language set the cookie %q", got)
	}
}

// The IDE's page is asked for in the language of the dashboard, unless the browser names
// another one to VS Code. No other request changes.
func TestIDEPageLanguage(t *testing.T) {
	t.Parallel()
	ide := func(c *Config) { c.IDE = &ideAnswers{} }
	hosts := newHostWorld(t, ide)
	paths := newWorld(t, ide)
	const theirs = "; vscode.nls.locale=fr"
	for name, m := range map[string]struct {
		w       *world
		request func(path, cookies string, header ...string) *http.Request
	}{
		"with origins of their own": {hosts.world, func(path, cookies string, header ...string) *http.Request {
			return onHost(hosts, workspace.Host{ID: wsA}, "GET", path, append(header, "Cookie", hostCookie+"=ann-1"+at(workspace.Host{ID: wsA})+cookies)...)
		}},
		"below a path": {paths, func(path, cookies string, header ...string) *http.Request {
			return paths.request("GET", under(wsA)+path, append(header, "Cookie", sessionCookie+"=ann-1"+cookies)...)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			i := m.w.serve(wsA)
			for _, c := range []struct {
				name, path, cookies, want string
				header                    []string
			}{
				{name: "chosen", path: "/", cookies: "; lang=ko; a=b", want: "lang=ko; a=b; vscode.nls.locale=ko"},
				{name: "chosen, by ReverseProxy", path: "/?folder=/x", cookies: "; lang=ko; a=b", want: "lang=ko; a=b; vscode.nls.locale=ko", header: []string{"Te", "trailers"}},
				{name: "not chosen", path: "/", cookies: "; a=b", want: "a=b"},
				{name: "chosen in VS Code", path: "/", cookies: "; lang=ko" + theirs, want: "lang=ko" + theirs},
				{name: "another request", path: "/static/x.js", cookies: "; lang=ko", want: "lang=ko"},
			} {
				if a := m.w.do(m.request(c.path, c.cookies, c.header...)); a.StatusCode != http.StatusOK {
					t.Errorf("%s: %d %s", c.name, a.StatusCode, a.body)
				}
				_, got, _ := strings.Cut(strings.Join(i.received().Header["Cookie"], "\n"), "; ") // after the secret
				if got != c.want {
					t.Errorf("%s: the IDE got %q, want %q", c.name, got, c.want)
				}
			}
		})
	}
}
