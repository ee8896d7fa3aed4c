package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

func TestLogin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.browser()

	a := b.get("/workspaces/0198c0de-0000-7000-8000-000000000001?x=1")
	if got := a.header.Get("Location"); a.status != http.StatusSeeOther || got != "/login?next=%2Fworkspaces%2F0198c0de-0000-7000-8000-000000000001%3Fx%3D1" {
		t.Fatalf("without a session: %d %q", a.status, got)
	}
	a = b.get("/login?next=/settings/tokens")
	contains(t, "login", a.body, `name="next" value="/settings/tokens"`, `autocomplete="current-password"`, `<label for="username">`)
	a = b.get("/login?next=https://evil/")
	contains(t, "login with a next of another origin", a.body, `name="next" value="/"`)

	a = b.post("/login", url.Values{"username": {"admin"}, "password": {"wrong"}})
	if a.status != http.StatusUnauthorized {
		t.Errorf("wrong password: %d", a.status)
	}
	contains(t, "wrong password", a.body, "The username or password is incorrect.", `value="admin"`)
	if a = b.post("/login", url.Values{}); a.status != http.StatusUnprocessableEntity {
		t.Errorf("empty form: %d", a.status)
	}

	a = b.post("/login", url.Values{"username": {"admin"}, "password": {adminPassword}, "next": {"//evil"}})
	if a.status != http.StatusSeeOther || a.header.Get("Location") != "/" {
		t.Fatalf("log in with a next of another origin: %d %q", a.status, a.header.Get("Location"))
	}
	if a = b.get("/login?next=/settings/tokens"); a.header.Get("Location") != "/settings/tokens" {
		t.Errorf("login page with a session: %d %q", a.status, a.header.Get("Location"))
	}
	if a = b.get("/"); a.status != http.StatusOK {
		t.Errorf("the list: %d", a.status)
	}
	if a = b.get("/logout"); a.status != http.StatusOK || !strings.Contains(a.body, "Log out of codehub?") || len(a.header["Set-Cookie"]) > 0 || b.get("/").status != http.StatusOK {
		t.Errorf("a GET of the logout: %d %v; want a page that asks", a.status, a.header["Set-Cookie"])
	}
	if a = b.post("/logout", nil); a.header.Get("Location") != "/login" {
		t.Errorf("log out: %d", a.status)
	}
	if a = b.get("/"); a.status != http.StatusSeeOther {
		t.Errorf("the list after logging out: %d", a.status)
	}
}

func TestSetup(t *testing.T) {
	t.Parallel()
	w := newEmptyWorld(t)
	code, err := w.Auth.SetupCode(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b := w.browser()
	if a := b.get("/login"); a.header.Get("Location") != "/setup" {
		t.Fatalf("login without users: %d %q", a.status, a.header.Get("Location"))
	}
	linked := b.get("/setup?code=ABCD-%3Cb%3E")
	contains(t, "setup by the printed address", linked.body, `name="code" type="text" value="ABCD-&lt;b&gt;"`)
	if got := linked.header.Get("Referrer-Policy"); got != "strict-origin" { // the code must not be in a Referer
		t.Errorf("Referrer-Policy: %s", got)
	}
	contains(t, "setup", b.get("/setup").body, `<label for="code">`, `<label for="password2">`, `autocomplete="new-password"`)

	fill := func(change map[string]string) url.Values {
		v := url.Values{"code": {code}, "username": {"mina"}, "password": {"a long password"}, "password2": {"a long password"}}
		for k, s := range change {
			v.Set(k, s)
		}
		return v
	}
	for name, c := range map[string]struct {
		change map[string]string
		want   string
	}{
		"the wrong code":      {map[string]string{"code": "AAAA-AAAA-AAAA-AAAA"}, "The setup code is incorrect."},
		"no code":             {map[string]string{"code": ""}, "This field is required."},
		"a short password":    {map[string]string{"password": "short", "password2": "short"}, "at least 8 characters"},
		"different passwords": {map[string]string{"password2": "another password"}, "do not match"},
		"a bad username":      {map[string]string{"username": "a b"}, "A username has"},
	} {
		a := b.post("/setup", fill(c.change))
		if a.status < 400 || a.status >= 500 {
			t.Errorf("%s: %d", name, a.status)
		}
		contains(t, name, a.body, c.want)
		lacks(t, name, a.body, "a long password")
	}
	a := b.post("/setup", fill(nil))
	if a.status != http.StatusSeeOther || a.header.Get("Location") != "/" {
		t.Fatalf("setup: %d %s", a.status, a.body)
	}
	contains(t, "the list", b.get("/").body, "Create your first workspace", "mina")
	if a := w.browser().get("/setup"); a.header.Get("Location") != "/login" {
		t.Errorf("setup again: %d %q", a.status, a.header.Get("Location"))
	}
	if a := w.browser().post("/setup", fill(map[string]string{"username": "second"})); a.header.Get("Location") != "/login" {
		t.Errorf("a second first user: %d", a.status)
	}
}
