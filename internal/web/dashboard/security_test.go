package dashboard

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/internal/gateway/inbound"
	"codehub/internal/users/signin"
)

func TestCrossOriginRequestsAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", standby)
	for _, p := range []string{"/workspaces", "/workspaces/" + string(id) + "/delete", "/workspaces/" + string(id) + "/start", "/logout", "/login", "/setup", "/settings/tokens", "/settings/theme"} {
		for _, header := range [][]string{
			{"Sec-Fetch-Site", "cross-site"},
			{"Sec-Fetch-Site", "same-site"},
			{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"},
			{"Origin", "https://evil.example"},
			{"Origin", "null"},
			{"Origin", "http://" + string(id) + ".localhost"},
		} {
			a := b.post(p, url.Values{"name": {"x"}, "username": {"admin"}, "password": {adminPassword}}, header...)
			if a.status != http.StatusForbidden || len(a.header.Values("Set-Cookie")) > 0 {
				t.Errorf("POST %s with %v: %d, cookies %v", p, header, a.status, a.header.Values("Set-Cookie"))
			}
		}
	}
	if a := b.get("/"); a.status != http.StatusOK {
		t.Fatalf("still logged in: %d", a.status)
	}
	if a := b.post("/workspaces/"+string(id)+"/start", nil, "Sec-Fetch-Site", "same-origin", "Origin", w.HTTP.URL); a.status != http.StatusSeeOther {
		t.Errorf("from its own origin: %d", a.status)
	}
}

func TestGETsChangeNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", running)
	w.want(id, "desired_state", "RUNNING")
	before, err := w.DB.Workspace(t.Context(), w.caller("admin"), id)
	if err != nil {
		t.Fatal(err)
	}
	path := "/workspaces/" + string(id)
	for _, p := range []string{"start", "stop", "force-stop", "cancel", "recover", "start-empty", "delete", "undelete", "edit", "memo"} {
		b.get(path + "/" + p + "?from=list&confirm=project")
		b.do(http.MethodHead, path+"/"+p, nil)
	}
	b.get("/workspaces?name=x")
	b.get("/logout")
	b.get("/settings/theme?theme=dark")
	after, err := w.DB.Workspace(t.Context(), w.caller("admin"), id)
	if err != nil || after.UpdatedAt != before.UpdatedAt || after.DeletedAt != nil {
		t.Errorf("a GET changed the workspace: %+v, %v", after, err)
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", standby)
	for _, p := range []string{"/", "/login", "/setup", "/workspaces/" + string(id), "/settings/tokens", "/workspaces/new", "/workspaces/nonsense", "/w/" + string(id) + "/", "/w/x/"} {
		a := b.get(p, "Accept", "text/html")
		csp := a.header.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'"} {
			if !strings.Contains(csp, want) {
				t.Errorf("%s (%d): the policy %q lacks %q", p, a.status, csp, want)
			}
		}
		if strings.Contains(csp, "unsafe") {
			t.Errorf("%s: %s", p, csp)
		}
		for k, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "Cache-Control": "no-store"} {
			if got := a.header.Get(k); got != want {
				t.Errorf("%s: %s is %q", p, k, got)
			}
		}
	}
	page := b.get("/").body
	found := regexp.MustCompile(`/assets/[^"]+`).FindAllString(page, -1)
	if len(found) < 5 {
		t.Fatalf("the page has the assets %v", found)
	}
	for _, p := range found {
		a := b.get(p)
		if a.status != http.StatusOK || !strings.Contains(a.header.Get("Cache-Control"), "immutable") || a.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d %v", p, a.status, a.header)
		}
	}
	for _, p := range []string{"/assets/", "/assets/../dashboard.go", "/assets/vendor", "/assets/%2e%2e/dashboard.go", "/assets/nothing.css"} {
		if a := b.get(p); a.status == http.StatusOK {
			t.Errorf("%s: %d", p, a.status)
		}
	}
}

func TestPreferences(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.browser()
	contains(t, "Accept-Language", b.get("/login", "Accept-Language", "ko-KR,ko;q=0.9").body, `<html lang="ko">`, "비밀번호")
	a := b.post("/settings/language", url.Values{"language": {"ko"}, "next": {"/login?next=%2Fsettings%2Ftokens"}})
	if a.header.Get("Location") != "/login?next=%2Fsettings%2Ftokens" {
		t.Errorf("redirected to %q", a.header.Get("Location"))
	}
	contains(t, "chosen", b.get("/login", "Accept-Language", "en").body, `<html lang="ko">`)
	if a = b.post("/settings/theme", url.Values{"theme": {"dark"}, "next": {"//evil"}}); a.header.Get("Location") != "/" {
		t.Errorf("redirected to %q", a.header.Get("Location"))
	}
	contains(t, "dark", b.get("/login").body, `data-theme="dark"`)
	b.post("/settings/theme", url.Values{"theme": {`"><script>`}})
	lacks(t, "the system's", b.get("/login").body, "data-theme=\"", "<script>\"")
	b.post("/settings/language", url.Values{"language": {"xx"}})
	contains(t, "the browser's", b.get("/login", "Accept-Language", "en").body, `<html lang="en">`)
}

func TestAdminsAreWarnedOfPathMode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.PathMode = true })
	contains(t, "an admin's list", w.loggedIn().get("/").body, "Let only people you trust create workspaces")
	b := w.person("other")
	lacks(t, "a user's list", b.get("/").body, "Let only people you trust create workspaces")
}

func TestDatabaseDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.add("project", running)
	// The database ends every connection that reads a workspace.
	w.Exec(`ALTER TABLE workspaces RENAME TO hidden`)
	w.Exec(`CREATE VIEW workspaces AS SELECT * FROM hidden WHERE pg_terminate_backend(pg_backend_pid())`)
	a := w.loggedIn().get("/workspaces/" + string(id))
	if a.status != http.StatusServiceUnavailable {
		t.Errorf("status %d", a.status)
	}
	contains(t, "the page", a.body, "The database is not responding", "Try again")
	lacks(t, "the page", a.body, "terminating connection")
}

func TestUnknownPath(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, p := range []string{"/nowhere", "/workspaces", "/settings", "//evil"} {
		a := w.browser().get(p)
		if a.status == http.StatusOK || strings.Contains(a.header.Get("Location"), "evil") && !strings.HasPrefix(a.header.Get("Location"), "/evil") {
			t.Errorf("GET %s: %d %q", p, a.status, a.header.Get("Location"))
		}
	}
	for _, id := range []string{"nonsense", "0198C0DE-0000-7000-8000-000000000001", "0198c0de-0000-7000-8000-000000000001"} {
		if a := w.loggedIn().get("/workspaces/" + id); a.status != http.StatusNotFound {
			t.Errorf("workspace %s: %d", id, a.status)
		}
	}
	contains(t, "unknown path", w.browser().get("/nowhere").body, "Page not found")
}

// A client without a login cannot hold a connection with a form that never ends, and its
// handler does not run. A form that arrives in time is read, and its request continues.
func TestSlowForm(t *testing.T) {
	t.Parallel()
	var name string
	gone, refused := make(chan bool, 2), make(chan string, 2)
	var bodies inbound.OpenBodies
	read := func(w http.ResponseWriter, r *http.Request) ([]byte, error) {
		return bodies.Read(w, r, 200*time.Millisecond)
	}
	srv := httptest.NewServer(limitBody(read, func(_ http.ResponseWriter, r *http.Request) {
		name = r.PostFormValue("name")
		select {
		case <-r.Context().Done():
			gone <- true
		case <-time.After(400 * time.Millisecond):
			gone <- false
		}
	}, func(w http.ResponseWriter, _ *http.Request, status int, key string) {
		refused <- key
		w.WriteHeader(status)
	}))
	t.Cleanup(srv.Close)
	send := func(body string, length int) net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_, err = fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n%s", length, body)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	send("name=whole", len("name=whole"))
	if <-gone || name != "whole" {
		t.Errorf("in time: the request was cancelled, or its form was not read: %q", name)
	}
	half := send("name=half", 1000)
	if key := <-refused; key != "broken_form" || name != "whole" {
		t.Errorf("half a form was read: %q %q", key, name)
	}
	if err := half.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, half); err != nil {
		t.Errorf("the connection stays open: %v", err)
	}
}

// Without a session, a page that needs none refuses a form by its declared length, and any
// other leads to the login page. Neither waits for the form.
func TestFormsWithoutSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.SignIn = &signin.Service{} })
	open := map[string]bool{}
	for _, path := range []string{
		"/login", "/login/{provider}/logout", "/passkey", "/passkey/options", "/passkey/recover", "/logout", "/setup", "/invitation", "/settings/theme", "/settings/language",
	} {
		open[path] = true
	}
	host := w.HTTP.Listener.Addr().String()
	var all []string
	w.dash.Routes(func(pattern string, _ func(http.ResponseWriter, *http.Request)) { all = append(all, pattern) })
	var wg sync.WaitGroup
	post := func(path string, length int, want int) {
		wg.Go(func() {
			c, err := net.Dial("tcp", host)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(formWithin / 2)) // before a form that does not arrive is given up
			_, _ = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\na", path, host, length)
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Errorf("POST %s with %d bytes: %v", path, length, err)
				return
			}
			if res.StatusCode != want || want == http.StatusSeeOther && res.Header.Get("Location") != "/login" {
				t.Errorf("POST %s with %d bytes: %s to %q, want %d", path, length, res.Status, res.Header.Get("Location"), want)
			}
		})
	}
	for _, pattern := range all {
		path, ok := strings.CutPrefix(pattern, "POST ")
		if !ok {
			continue
		}
		filled := regexp.MustCompile(`\{[^}]+\}`).ReplaceAllString(path, "0198c0de-0000-7000-8000-000000000001")
		if open[path] {
			delete(open, path)
			post(filled, inbound.MaxOpenBody+1, http.StatusRequestEntityTooLarge)
			continue
		}
		post(filled, 100, http.StatusSeeOther)
		post(filled, maxBody+1, http.StatusSeeOther)
	}
	wg.Wait()
	for path := range open {
		t.Errorf("there is no page POST %s", path)
	}
	// Those who are logged in may send more.
	name := url.Values{"name": {"big"}, "description": {strings.Repeat("x", 2*inbound.MaxOpenBody)}}
	if a := w.loggedIn().htmx("/workspaces", name); a.status != http.StatusUnprocessableEntity {
		t.Errorf("a form of a user: %d", a.status)
	}
	if a := w.browser().post("/login", name); a.status != http.StatusRequestEntityTooLarge {
		t.Errorf("a login with a large form: %d", a.status)
	}
}
