package dashboard

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"codehub/internal/web/dashboard/catalogue"
)

const (
	firefoxOnLinux = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
	safariOnIPhone = "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.0 Mobile/15E148 Safari/604.1"
)

func TestAccountListsAndEndsSessions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	login := func(agent string) *browser {
		t.Helper()
		b := w.browser()
		if a := b.post("/login", url.Values{"username": {"admin"}, "password": {adminPassword}}, "User-Agent", agent); a.status != http.StatusSeeOther {
			t.Fatalf("login: %d", a.status)
		}
		return b
	}
	here, phone, third := login(firefoxOnLinux), login(safariOnIPhone), login(firefoxOnLinux)
	page := here.get("/settings/account").body
	contains(t, "the sessions", page, "Firefox on Linux", "Safari on iPhone", "this device", "/settings/sessions/end-others")
	if strings.Count(page, "this device") != 1 || strings.Count(page, `data-session=`) != 3 {
		t.Errorf("the sessions: %s", page)
	}
	contains(t, "the account menu", here.get("/").body, `href="/settings/account"`)
	// The phone is logged out, and its open connections are closed.
	stream := phone.listen("")
	id := ""
	for _, row := range regexp.MustCompile(`(?s)data-session="([^"]+)".*?</li>`).FindAllStringSubmatch(page, -1) {
		if strings.Contains(row[0], "iPhone") {
			id = row[1]
		}
	}
	a := here.htmx("/settings/sessions/"+id+"/end", nil)
	contains(t, "after one was ended", a.body, `id="sessions"`, "The device was logged out.", "Firefox on Linux")
	lacks(t, "after one was ended", a.body, "iPhone")
	stream.until("logged-out")
	if got := phone.get("/").status; got != http.StatusSeeOther {
		t.Errorf("the phone: %d", got)
	}
	// Without scripts.
	if a := here.post("/settings/sessions/end-others", nil); a.status != http.StatusSeeOther || !strings.HasPrefix(a.header.Get("Location"), "/settings/account?note=sessions_ended") {
		t.Errorf("%d %v", a.status, a.header)
	}
	if third.get("/").status != http.StatusSeeOther || here.get("/").status != http.StatusOK {
		t.Error("the other sessions did not end, or this one did")
	}
	lacks(t, "without other sessions", here.get("/settings/account").body, "end-others", `/end"`)
}

func TestChangePassword(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	here, other := w.loggedIn(), w.loggedIn()
	for _, c := range []struct{ current, password, again, want string }{
		{"", "a new password", "a new password", "This field is required."},
		{"wrong", "a new password", "a new password", "The current password is incorrect."},
		{adminPassword, "short", "short", "use at least 8 characters"},
		{adminPassword, "a new password", "another one", "passwords do not match"},
	} {
		a := here.htmx("/settings/account/password", url.Values{"current": {c.current}, "password": {c.password}, "password2": {c.again}})
		if a.status != http.StatusUnprocessableEntity || !strings.Contains(strings.ToLower(a.body), strings.ToLower(c.want)) {
			t.Errorf("%+v: %d %s", c, a.status, a.body)
		}
		lacks(t, "the form", a.body, adminPassword, "a new password")
	}
	a := here.htmx("/settings/account/password", url.Values{"current": {adminPassword}, "password": {"a new password"}, "password2": {"a new password"}})
	if a.header.Get("HX-Redirect") != "/settings/account?note=password" {
		t.Errorf("%d %v", a.status, a.header)
	}
	contains(t, "afterwards", here.get("/settings/account?note=password").body, "Your password was changed.")
	if other.get("/").status != http.StatusSeeOther {
		t.Error("the other session did not end")
	}
	if a := w.browser().post("/login", url.Values{"username": {"admin"}, "password": {"a new password"}}); a.status != http.StatusSeeOther {
		t.Errorf("login with the new password: %d", a.status)
	}
}

// The page's stream does not redirect to the login page before the response arrives.
func TestChangePasswordInABrowser(t *testing.T) {
	t.Parallel()
	seen := make(chan struct{}, 1)
	w := newWorld(t)
	// The answer to a change of the password waits until the test has seen that the page's stream
	// is closed, or until the streams have noticed the end of the sessions.
	next := w.HTTP.Config.Handler
	w.HTTP.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			next.ServeHTTP(rw, r)
			return
		}
		held := httptest.NewRecorder()
		next.ServeHTTP(held, r)
		wait := time.Second
		if held.Code == http.StatusUnprocessableEntity {
			wait = patience
		}
		if r.URL.Path == "/settings/account/password" {
			select {
			case <-r.Context().Done():
			case <-seen:
			case <-time.After(wait):
			}
		}
		maps.Copy(rw.Header(), held.Header())
		rw.WriteHeader(held.Code)
		_, _ = rw.Write(held.Body.Bytes())
	})
	b := w.tab()
	b.logIn()
	b.visit("/settings/account")
	b.until(`document.querySelector('[sse-connect]')`)
	b.press(`a[href="/settings/account/password"]`)
	b.enter("#f-current", "wrong")
	b.enter("#f-password", "a new password")
	b.enter("#f-password2", "a new password\r")
	b.until(`!document.querySelector('[sse-connect]')`)
	seen <- struct{}{}
	// A refusal ends no session, so the stream is open again.
	b.shown("dialog[open] #e-current")
	b.until(`document.querySelector('[sse-connect]')`)
	b.enter("#f-current", adminPassword)
	b.enter("#f-password", "a new password")
	b.enter("#f-password2", "a new password\r")
	b.until(`location.pathname === '/login' || document.getElementById('toasts').textContent.includes('Your password was changed.')`)
	b.until(`location.pathname === '/settings/account' && document.querySelector('.topbar')`)
}

func TestDeviceOf(t *testing.T) {
	t.Parallel()
	for agent, want := range map[string]string{
		firefoxOnLinux: "Firefox on Linux",
		safariOnIPhone: "Safari on iPhone",
		"Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36 Edg/140.0.0.0":   "Edge on Windows",
		"Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36":           "Chrome on macOS",
		"Mozilla/5.0 (Linux; Android 15; SM-S931N) AppleWebKit/537.36 (KHTML, like Gecko) SamsungBrowser/28.0 Chrome/130.0 Mobile Safari": "Samsung Internet on Android",
		"Go-http-client/1.1": "codehub",
		"":                   "Unknown device",
	} {
		if got := deviceOf(agent, catalogue.English); got != want {
			t.Errorf("%q: %s, want %s", agent, got, want)
		}
	}
}
