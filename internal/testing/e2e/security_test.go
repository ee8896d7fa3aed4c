package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/pgtest"
)

const session = "codehub_session"

// loginCookie logs a user in and returns the session cookie.
func (s *server) loginCookie(name string) string {
	s.Helper()
	body := fmt.Sprintf(`{"username": %q, "password": %q}`, name, proc.AdminPassword)
	resp, _ := s.ask("POST", "/api/v1/login", body, "Content-Type", "application/json")
	for _, c := range resp.Cookies() {
		if c.Name == s.sessionCookie() && c.Secure == s.mode.https() && c.HttpOnly && c.SameSite == http.SameSiteLaxMode && c.Path == "/" && c.Domain == "" {
			return c.Name + "=" + c.Value
		}
	}
	s.Fatalf("log in as %s: %d %v", name, resp.StatusCode, resp.Cookies())
	return ""
}

// ask sends a request with these headers (pairs) and follows no redirect.
func (s *server) ask(method, path, body string, headers ...string) (*http.Response, string) {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), method, s.URL+path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := s.web.RoundTrip(req)
	if err != nil {
		s.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.Fatal(err)
	}
	return resp, string(b)
}

// upgrade requests a WebSocket by codehub's own address of the workspace and returns the
// status and the connection.
func (s *server) upgrade(id string, headers ...string) (int, net.Conn) {
	s.Helper()
	return s.upgradeAt(s.URL+"/w/"+id, headers...)
}

// upgradeAt requests a WebSocket below this address.
func (s *server) upgradeAt(address string, headers ...string) (int, net.Conn) {
	s.Helper()
	u, err := url.Parse(address)
	if err != nil {
		s.Fatal(err)
	}
	c := s.dial()
	var more strings.Builder
	for i := 0; i < len(headers); i += 2 {
		fmt.Fprintf(&more, "%s: %s\r\n", headers[i], headers[i+1])
	}
	fmt.Fprintf(c, "GET %s/ws HTTP/1.1\r\nHost: %s\r\n%sConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", u.Path, u.Host, more.String())
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		s.Fatal(err)
	}
	return resp.StatusCode, c
}

// Callers without a session, other users and pages of other sites are refused
// on every route. It takes over 20 s beside other tests: each route is asked by each of
// them, in two modes.
func TestOutsidersAreRefused(t *testing.T) {
	t.Parallel()
	inEach(t, orAll(allModes, siblings, pathMode), testOutsidersAreRefused)
}

func testOutsidersAreRefused(t *testing.T, m mode) {
	dsn := pgtest.New(t, nil)
	s := startMode(t, m, "CODEHUB_DATABASE_URL="+dsn, "CODEHUB_DELETE_GRACE=0s")
	addUser(t, dsn, "eve")
	addUser(t, dsn, "former")
	id := s.create(api.CreateWorkspace{Name: "mine"})
	s.awaitPhase(id, "RUNNING")

	owner, eve, loggedOut, disabled := s.loginCookie("admin"), s.loginCookie("eve"), s.loginCookie("eve"), s.loginCookie("former")
	s.ask("POST", "/api/v1/logout", "", "Cookie", loggedOut)
	if resp, _ := s.ask("GET", "/api/v1/session", "", "Cookie", disabled); resp.StatusCode != 200 {
		t.Fatalf("the session of a user before being disabled: %d", resp.StatusCode)
	}
	execute(t, dsn, `UPDATE users SET disabled = true WHERE username = 'former'`)
	for deadline := time.Now().Add(2 * accessLimit); ; time.Sleep(20 * time.Millisecond) {
		if resp, _ := s.ask("GET", "/api/v1/session", "", "Cookie", disabled); resp.StatusCode == 401 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the session of a disabled user is valid after %v", 2*accessLimit)
		}
	}
	value := strings.TrimPrefix(owner, s.sessionCookie()+"=")
	callers := map[string][]string{
		"no credentials":                    nil,
		"another user":                      {"Cookie", eve},
		"an ended session":                  {"Cookie", loggedOut},
		"a disabled user":                   {"Cookie", disabled},
		"a token as a cookie":               {"Cookie", s.sessionCookie() + "=" + s.token},
		"a session as a token":              {api.TokenHeader, value},
		"a wrong token with a valid cookie": {api.TokenHeader, "chub_wrong", "Cookie", owner},
	}
	routes := []string{
		"GET /api/v1/workspaces/ID", "PATCH /api/v1/workspaces/ID", "DELETE /api/v1/workspaces/ID", "POST /api/v1/workspaces/ID/undelete",
		"POST /api/v1/workspaces/ID/recover", "POST /api/v1/workspaces/ID/cancel", "POST /api/v1/workspaces/ID/stop?force=true",
		"GET /api/v1/workspaces/ID/logs", "GET /w/ID/", "POST /w/ID/x", "GET /workspaces/ID", "GET /workspaces/ID/logs", "GET /workspaces/ID/edit",
		"GET /workspaces/ID/delete", "GET /workspaces/ID/force-stop", "GET /workspaces/ID/start-empty", "GET /workspaces/ID/limit",
		"POST /workspaces/ID/edit", "POST /workspaces/ID/memo", "POST /workspaces/ID/start", "POST /workspaces/ID/stop",
		"POST /workspaces/ID/force-stop", "POST /workspaces/ID/cancel", "POST /workspaces/ID/recover", "POST /workspaces/ID/start-empty",
		"POST /workspaces/ID/delete", "POST /workspaces/ID/undelete",
	}
	origin := []string{"Origin", s.URL}
	for caller, headers := range callers {
		for _, route := range routes {
			method, path, _ := strings.Cut(strings.ReplaceAll(route, "ID", id), " ")
			body, kind := "", "application/json"
			switch {
			case strings.HasPrefix(path, "/workspaces"):
				body, kind = "name=taken&confirm=mine&memo=taken", "application/x-www-form-urlencoded"
			case method == "PATCH":
				body = `{"name": "taken"}`
			}
			resp, text := s.ask(method, path, body, append([]string{"Content-Type", kind}, headers...)...)
			refused := resp.StatusCode == 401 || resp.StatusCode == 403 ||
				resp.StatusCode == 303 && strings.HasPrefix(resp.Header.Get("Location"), "/login")
			if !refused || strings.Contains(text, "mine") {
				t.Errorf("%s: %s: %d %.200s", caller, route, resp.StatusCode, text)
			}
		}
		if status, _ := s.upgrade(id, append(slices.Clone(origin), headers...)...); status != 401 && status != 403 {
			t.Errorf("%s: WebSocket: %d", caller, status)
		}
	}
	for _, from := range []string{"", "null", "http://evil.example", s.URL + "0", strings.Replace(s.URL, "//", "//x.", 1)} {
		headers := []string{"Cookie", owner}
		if from != "" {
			headers = append(headers, "Origin", from)
			for _, path := range []string{"/api/v1/tokens", "/settings/tokens", "/w/" + id + "/x", "/login", "/logout"} {
				if resp, _ := s.ask("POST", path, "name=x", append([]string{"Content-Type", "text/plain"}, headers...)...); resp.StatusCode != 403 {
					t.Errorf("POST %s from the origin %s: %d", path, from, resp.StatusCode)
				}
			}
		}
		if status, _ := s.upgrade(id, headers...); status != 403 {
			t.Errorf("WebSocket from the origin %q: %d", from, status)
		}
	}
	if w := s.awaitPhase(id, "RUNNING"); w.Name != "mine" {
		t.Errorf("the workspace was changed: %+v", w)
	}
	s.remove(id)
}

// The proxy removes secrets from requests and foreign cookies from responses.
// Connections end with the session that opened them. It takes over 20 s beside other
// tests, for a server and a workspace.
func TestWorkspaceIsConfined(t *testing.T) {
	t.Parallel()
	s := startMode(t, pathMode, "CODEHUB_DELETE_GRACE=0s")
	id := s.create(api.CreateWorkspace{Name: "mine"})
	s.awaitPhase(id, "RUNNING")
	cookie := s.loginCookie("admin")
	value := strings.TrimPrefix(cookie, session+"=")

	_, text := s.ask("GET", "/w/"+id+"/echo", "", "Cookie", "a=1; "+cookie+"; b=2; __Host-"+cookie+"; codehub_theme=dark; codehub_lang=ko",
		"Cookie", "c=3;"+cookie, "Authorization", "Bearer "+s.token, "Codehub-Session-Token", s.token, "X-Forwarded-For", "192.0.2.1", "X-Forwarded-Host", "evil.example")
	for _, secret := range []string{value, s.token, "codehub_", "192.0.2.1", "evil.example"} {
		if strings.Contains(text, secret) {
			t.Errorf("%q reaches the workspace: %s", secret, text)
		}
	}
	for _, own := range []string{"a=1", "b=2", "c=3"} {
		if !strings.Contains(text, own) {
			t.Errorf("%q does not reach the workspace: %s", own, text)
		}
	}

	q := url.Values{"c": {session + "=fixed; Path=/", "__Host-" + session + "=fixed; Path=/; Secure", "codehub_lang=ko; Path=/", "own=1; Path=/; Domain=localhost"}}
	resp, _ := s.ask("GET", "/w/"+id+"/setcookie?"+q.Encode(), "", "Cookie", cookie)
	if got, want := resp.Header.Values("Set-Cookie"), []string{"own=1; Path=/w/" + id + "/"}; !slices.Equal(got, want) {
		t.Errorf("the workspace sets the cookies %q, want %q", got, want)
	}

	status, conn := s.upgrade(id, "Cookie", cookie, "Origin", s.URL)
	if status != 101 {
		t.Fatalf("the owner's WebSocket: %d", status)
	}
	ended := make(chan string, 2)
	go func() {
		_, _ = io.Copy(io.Discard, conn)
		ended <- "the WebSocket"
	}()
	req, err := http.NewRequestWithContext(t.Context(), "GET", s.URL+"/api/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Cookie", cookie)
	events, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Body.Close()
	go func() {
		_, _ = io.Copy(io.Discard, events.Body)
		ended <- "the event stream"
	}()
	s.ask("POST", "/api/v1/logout", "", "Cookie", cookie)
	late := time.After(2 * accessLimit)
	for range 2 {
		select {
		case <-ended:
		case <-late:
			t.Fatalf("%v after the logout a connection is still open", 2*accessLimit)
		}
	}
	for _, secret := range []string{value, s.token, proc.AdminPassword} {
		if strings.Contains(s.Log(), secret) {
			t.Error("a secret is in the log")
		}
	}
	s.remove(id)
}
