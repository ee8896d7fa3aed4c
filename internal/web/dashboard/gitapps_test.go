package dashboard

import (
	"html"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/runtime/agent"
	"codehub/internal/testing/harness/idp"
	"codehub/internal/users/gitapps"
	"codehub/internal/users/sealed"
)

// withGitApps adds apps that a file describes.
func withGitApps(t *testing.T, file string) func(*Config) {
	return func(c *Config) {
		t.Helper()
		dir := t.TempDir()
		settings := gitapps.Settings{File: filepath.Join(dir, "git.yaml")}
		if err := os.WriteFile(settings.File, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := settings.Resolve(); err != nil {
			t.Fatal(err)
		}
		keys, err := sealed.OpenOrCreate(filepath.Join(dir, "secret.key"))
		if err != nil {
			t.Fatal(err)
		}
		c.GitApps = gitapps.New(gitapps.Config{Settings: settings, URL: c.URL, Store: c.Store, Keys: keys, Access: c.Git, Sessions: c.Auth, Log: c.Log})
		c.Git.Apps = c.GitApps
	}
}

// newGitWorld has the app company at a provider that is like GitLab, where s1 is ann-at-git.
func newGitWorld(t *testing.T, change ...func(*Config)) (*world, *idp.Provider) {
	t.Helper()
	var provider *idp.Provider
	w := newWorld(t, append(change, func(c *Config) {
		provider = idp.Start(t, idp.Options{RedirectURI: strings.TrimRight(c.URL.String(), "/") + "/settings/git/company/callback", AuthMethod: "client_secret_post"})
		withGitApps(t, `apps:
  - {id: company, title: "Company <Git>", type: gitlab, url: "`+provider.Issuer+`", client_id: `+idp.ClientID+`, client_secret: "`+idp.ClientSecret+`", scopes: [openid, offline_access]}
`)(c)
	})...)
	provider.Set("s1", idp.User{Username: "ann-at-git"})
	provider.Issue(idp.Tokens{Lifetime: 2 * time.Hour})
	return w, provider
}

// In a real browser: the button on the account page, and the one in the form for a token.
func TestConnectGitAppInBrowser(t *testing.T) {
	t.Parallel()
	w, provider := newGitWorld(t)
	b := w.tab(provider.Issuer)
	b.expected = "Content Security Policy" // the provider's own pages load a font
	shots := t.ArtifactDir()
	b.logIn()
	form := "/settings/git/new?host=" + url.QueryEscape(provider.Issuer)
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/settings/account")
		b.shown("#connect-company")
		b.shoot(shots, l, "account-git-app")
		b.visit(form)
		b.shown("#connect-company")
		b.shoot(shots, l, "git-app-or-token")
	}
	b.visit("/settings/account")
	b.press("#connect-company")
	b.enter("input[name=login]", "s1")
	b.enter("input[name=password]", "x\r")
	b.shown(".toast")
	b.shown("#git [data-git]")
	b.press("#git [data-git] button")
	b.shown("#connect-company")
	b.visit(form)
	b.press("#connect-company")
	b.shown("#git [data-git]")
}

// A user connects an account at a provider with a button, and disconnects it. No GET connects, and
// no answer of a provider that this session has not asked for.
func TestConnectGitApp(t *testing.T) {
	t.Parallel()
	w, provider := newGitWorld(t)
	w.AddAccount("ann", "another password", false)
	browser := func(name string) *idp.Browser {
		b := idp.NewBrowser(t)
		b.Jar.SetCookies(w.URL, []*http.Cookie{w.session(name)})
		return b
	}
	ann, other := browser("ann"), browser("ann")
	page := w.HTTP.URL + "/settings/account"
	connect, callback := w.HTTP.URL+"/settings/git/company/connect", w.HTTP.URL+"/settings/git/company/callback"
	back := func(u *url.URL) bool { return !strings.HasSuffix(u.Path, "/callback") }
	connections := func() []api.GitConnection {
		t.Helper()
		list, err := w.DB.GitConnections(t.Context(), w.caller("ann"))
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	// leave is the address of the provider to which the page after the button leads.
	leave := func(b *idp.Browser) string {
		t.Helper()
		p := b.Post(connect, nil, nil)
		_, rest, _ := strings.Cut(p.Text, `rel="noreferrer" href="`)
		address, _, _ := strings.Cut(rest, `"`)
		if !strings.HasPrefix(address, provider.Issuer+"/oauth/authorize?") || !strings.Contains(address, "code_challenge_method=S256") {
			t.Fatalf("no way to the provider: %d %s", p.StatusCode, p.Text)
		}
		return html.UnescapeString(address)
	}

	if p := ann.Open(page, nil); !strings.Contains(p.Text, `id="connect-company"`) || !strings.Contains(p.Text, "Company &lt;Git&gt;") {
		t.Errorf("no button: %s", p.Text)
	}
	if p := ann.Open(connect, nil); p.StatusCode != http.StatusNotFound {
		t.Errorf("a GET began it: %d", p.StatusCode)
	}
	for name, query := range map[string]string{"nothing": "", "a code": "?code=x&state=y", "an error": "?error=access_denied"} {
		if p := ann.Open(callback+query, nil); p.StatusCode != http.StatusBadRequest || !strings.Contains(p.Text, "took too long, or another browser began it") {
			t.Errorf("%s that was not asked for: %d", name, p.StatusCode)
		}
	}
	// The answer to one session does not connect another one of the same user, also with its cookie.
	answer := ann.LogIn(ann.Open(leave(ann), back), "s1", back).Header.Get("Location")
	u, err := url.Parse(w.HTTP.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range ann.Jar.Cookies(u) {
		if strings.Contains(c.Name, "signin") {
			other.Jar.SetCookies(u, []*http.Cookie{{Name: c.Name, Value: c.Value, Path: "/"}})
		}
	}
	if p := other.Open(answer, nil); p.StatusCode != http.StatusBadRequest || len(connections()) != 0 {
		t.Errorf("another session connected: %d", p.StatusCode)
	}
	if p := ann.Open(strings.Replace(answer, "state=", "state=x", 1), nil); p.StatusCode != http.StatusBadRequest || len(connections()) != 0 {
		t.Errorf("another state connected: %d", p.StatusCode)
	}
	if p := ann.Open(answer, nil); p.StatusCode != http.StatusBadRequest {
		t.Errorf("the answer after a wrong one: %d", p.StatusCode)
	}

	p := ann.LogIn(ann.Open(leave(ann), nil), "s1", nil)
	if p.Request.URL.Path != "/settings/account" || !strings.Contains(p.Text, "The account was connected.") || !strings.Contains(p.Text, "ann-at-git") || strings.Contains(p.Text, `id="connect-company"`) {
		t.Fatalf("the connection ended at %s: %d %s", p.Request.URL, p.StatusCode, p.Text)
	}
	if list := connections(); len(list) != 1 || list[0].Login != "ann-at-git" || list[0].Provider != "company" || list[0].Host != provider.Issuer {
		t.Fatalf("%+v", list)
	}
	// The form for a token of its host has the button, also for a clone that waits.
	if p := ann.Open(w.HTTP.URL+"/settings/git/new?host="+url.QueryEscape(provider.Issuer), nil); !strings.Contains(p.Text, `form="git-app">Connect Company &lt;Git&gt;`) || !strings.Contains(p.Text, `action="/settings/git/company/connect"`) {
		t.Errorf("the form for a token: %s", p.Text)
	}
	// failing ends a connection with these values of the provider's answer.
	failing := func(status int, text string, answer url.Values) {
		t.Helper()
		u, err := url.Parse(leave(ann))
		if err != nil {
			t.Fatal(err)
		}
		answer.Set("state", u.Query().Get("state"))
		provider.Down(status == http.StatusBadGateway)
		if p := ann.Open(callback+"?"+answer.Encode(), nil); p.StatusCode != status || !strings.Contains(p.Text, "Company &lt;Git&gt; "+text) || len(connections()) != 1 {
			t.Errorf("%v: %d, want %d and %q", answer, p.StatusCode, status, text)
		}
		provider.Down(false)
	}
	failing(http.StatusForbidden, "refused the connection", url.Values{"error": {"access_denied"}})
	failing(http.StatusForbidden, "refused the connection", url.Values{"code": {"another"}})
	failing(http.StatusBadGateway, "did not respond as expected", url.Values{"code": {"any"}})
	w.Exec(`UPDATE git_connections SET error = 'revoked'`)
	if p := ann.Open(page, nil); !strings.Contains(p.Text, `id="connect-company"`) || !strings.Contains(p.Text, "The connection has ended. Connect again.") {
		t.Errorf("a connection that has ended: %s", p.Text)
	}
	p = ann.LogIn(ann.Open(leave(ann), nil), "s1", nil)
	list := connections()
	if len(list) != 1 || list[0].Error != "" {
		t.Fatalf("connected again: %d, %+v", p.StatusCode, list)
	}

	disconnect := w.HTTP.URL + "/settings/git/" + list[0].ID + "/disconnect"
	if p := ann.Post(disconnect, nil, nil); !strings.Contains(p.Text, "The connection was removed, and its token revoked.") || len(connections()) != 0 {
		t.Errorf("disconnect: %d %s", p.StatusCode, p.Request.URL)
	}
}

// A clone that needs a login at an app's host connects with one button, is tried again, and leads
// back to the page that waits for it.
func TestConnectGitAppFromFailedClone(t *testing.T) {
	t.Parallel()
	s := &setups{}
	w, provider := newGitWorld(t, func(c *Config) { c.Setups = s })
	id := w.add("api", running)
	w.want(id, "desired_state", "RUNNING")
	repo := provider.Issuer + "/team/api.git"
	w.want(id, "project", `{"repositories":[{"url":"`+repo+`"}]}`)
	s.set(agent.StepStatus{Name: repo, Kind: agent.KindClone, State: agent.StepFailed, Reason: "login"})
	b := idp.NewBrowser(t)
	b.Jar.SetCookies(w.URL, []*http.Cookie{w.session("admin")})
	wait := "/workspaces/" + string(id) + "/wait"
	contains(t, "the page that waits", b.Open(w.HTTP.URL+wait, nil).Text, `action="/settings/git/company/connect"`, `name="workspace" value="`+string(id)+`"`,
		`name="from" value="wait"`, "Connect Company &lt;Git&gt;", `id="git-token"`)
	back := func(u *url.URL) bool { return u.Path != wait }
	p := b.Post(w.HTTP.URL+"/settings/git/company/connect", url.Values{"workspace": {string(id)}, "from": {"wait"}}, nil)
	_, rest, _ := strings.Cut(p.Text, `rel="noreferrer" href="`)
	address, _, _ := strings.Cut(rest, `"`)
	if p = b.LogIn(b.Open(html.UnescapeString(address), nil), "s1", back); p.Header.Get("Location") != wait || s.retried != 1 {
		t.Errorf("%d %s, tried again %d times", p.StatusCode, p.Header.Get("Location"), s.retried)
	}
}
