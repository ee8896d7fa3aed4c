package dashboard

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"codehub/api"
	"codehub/internal/auth"
	"codehub/internal/harness"
	"codehub/internal/harness/fixture"
	"codehub/internal/harness/idp"
	"codehub/internal/postgres"
	"codehub/internal/signin"
	"codehub/internal/workspace"
)

// refreshInterval is the interval in which these tests check identities.
const refreshInterval = time.Second

// signInWorld is a world whose users log in at a real OpenID provider.
type signInWorld struct {
	*world
	idp     *idp.Provider
	service *signin.Service
	config  signin.Config
}

// providersFile reads providers as the settings do.
func providersFile(t *testing.T, list ...map[string]any) []signin.ProviderConfig {
	t.Helper()
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte(idp.ClientSecret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		p["client_id"], p["client_secret_file"] = idp.ClientID, secret
	}
	s := signin.Settings{File: filepath.Join(dir, "oidc.json")}
	if err := os.WriteFile(s.File, []byte(toJSON(t, map[string]any{"providers": list})), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Resolve(); err != nil {
		t.Fatal(err)
	}
	return s.Providers
}

func toJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// newSignInWorld has the provider company, whose group developers may log in and whose
// group admins administers, unless change says otherwise.
func newSignInWorld(t *testing.T, options idp.Options, change func(company map[string]any, c *signin.Config)) *signInWorld {
	t.Helper()
	w := &signInWorld{}
	w.world = newWorld(t, func(c *Config) {
		base := strings.TrimRight(c.URL.String(), "/") + "/login/company"
		options.RedirectURI, options.LogoutURI = base+"/callback", base+"/logout"
		w.idp = idp.Start(t, options)
		company := map[string]any{
			"id": "company", "name": "Company", "issuer": w.idp.Issuer, "scopes": []string{"profile", "groups", "offline_access"},
			"allowed_groups": []string{"developers"}, "admin_groups": []string{"admins"},
		}
		w.config = signin.Config{
			Settings: signin.Settings{Interval: refreshInterval, Grace: time.Hour}, URL: c.URL, Store: c.Store.(*postgres.DB),
			Sessions: c.Auth.(*auth.Auth), Log: c.Log,
		}
		if change != nil {
			change(company, &w.config)
		}
		if w.config.Providers == nil {
			w.config.Providers = providersFile(t, company)
		}
		var err error
		if w.service, err = signin.New(w.config); err != nil {
			t.Fatal(err)
		}
		c.SignIn = w.service
	})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = w.service.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait(); w.service.Wait() })
	return w
}

// address is an address of codehub.
func (w *signInWorld) address(path string) string { return w.HTTP.URL + path }

// callback accepts redirects up to the one that comes back from the provider.
func (w *signInWorld) callback(u *url.URL) bool { return !strings.HasSuffix(u.Path, "/callback") }

// signIn logs a browser in as a subject, and returns the page at the end.
func (w *signInWorld) signIn(b *idp.Browser, subject, next string) idp.Page {
	w.t.Helper()
	address := w.address("/login/company")
	if next != "" {
		address += "?next=" + url.QueryEscape(next)
	}
	return b.LogIn(b.Open(address, nil), subject, nil)
}

// mustSignIn is signIn, which has to succeed.
func (w *signInWorld) mustSignIn(subject string) *idp.Browser {
	w.t.Helper()
	b := idp.NewBrowser(w.t)
	p := w.signIn(b, subject, "")
	if p.StatusCode != http.StatusOK || p.Request.URL.Path != "/" || p.Request.URL.Host != w.URL.Host {
		w.t.Fatalf("login as %s ended at %s with %d: %s", subject, p.Request.URL, p.StatusCode, shownProblem(p))
	}
	return b
}

// pending logs in at the provider and stops before the browser returns to codehub.
func (w *signInWorld) pending(b *idp.Browser, subject string) (callback string) {
	w.t.Helper()
	p := b.LogIn(b.Open(w.address("/login/company"), w.callback), subject, w.callback)
	callback = p.Header.Get("Location")
	if !strings.Contains(callback, "/login/company/callback?") {
		w.t.Fatalf("the provider did not send the browser back: %d %s %s", p.StatusCode, callback, p.Text)
	}
	return callback
}

// loggedInAs reports who the browser is at codehub; empty if no user is logged in.
func (w *signInWorld) loggedInAs(b *idp.Browser) string {
	w.t.Helper()
	p := b.Open(w.address("/settings/account"), nil)
	if p.Request.URL.Path != "/settings/account" {
		return ""
	}
	return fixture.Query[string](w, `SELECT COALESCE((SELECT username FROM users u JOIN sessions s ON s.user_id = u.id WHERE s.hash = $1), '')`, w.sessionHash(b))
}

func (w *signInWorld) sessionHash(b *idp.Browser) []byte {
	for _, c := range b.Jar.Cookies(w.URL) {
		if c.Name == "codehub_session" {
			sum := sha256.Sum256([]byte(c.Value))
			return sum[:]
		}
	}
	return nil
}

// shownProblem returns the problem that the login page shows.
func shownProblem(p idp.Page) string {
	_, rest, _ := strings.Cut(p.Text, `class="problem-text">`)
	text, _, _ := strings.Cut(rest, "</p>")
	return text
}

// refused fails the test unless the login was refused with this reason and no user is logged in.
func (w *signInWorld) refused(b *idp.Browser, p idp.Page, status int, reason signin.Reason) {
	w.t.Helper()
	want := w.dash.pages["en"].lang.T("signin." + string(reason))
	got := html.UnescapeString(shownProblem(p))
	missing := func(part string) bool { return !strings.Contains(got, part) }
	if p.StatusCode != status || slices.ContainsFunc(strings.Split(want, "%s"), missing) || got == "" {
		w.t.Errorf("%d %q, want %d %q", p.StatusCode, got, status, want)
	}
	if who := w.loggedInAs(b); who != "" {
		w.t.Errorf("%q is logged in", who)
	}
	if who := w.loggedInAs(b); who != "" {
		w.t.Errorf("logged in as %s", who)
	}
}

// Logins at the provider, with the claims in the ID token and at the UserInfo endpoint.
func TestSignIn(t *testing.T) {
	t.Parallel()
	for _, inIDToken := range []bool{false, true} {
		t.Run(fmt.Sprint("claims in ID token ", inIDToken), func(t *testing.T) {
			t.Parallel()
			w := newSignInWorld(t, idp.Options{InIDToken: inIDToken}, nil)
			w.idp.Set("s1", idp.User{Username: "Ann Lee", Groups: []string{"developers", "everyone"}})
			b := idp.NewBrowser(t)
			if p := w.signIn(b, "s1", "/settings/tokens"); p.Request.URL.Path != "/settings/tokens" || p.StatusCode != http.StatusOK {
				t.Fatalf("the login led to %s with %d: %s", p.Request.URL, p.StatusCode, shownProblem(p))
			}
			if who := w.loggedInAs(b); who != "Ann-Lee" {
				t.Fatalf("logged in as %q", who)
			}
			if w.caller("ann-lee").Admin {
				t.Error("the user administers")
			}
			groups := fixture.Query[[]string](w, `SELECT array_agg(name ORDER BY name) FROM user_claim_groups`)
			if !slices.Equal(groups, []string{"developers", "everyone"}) {
				t.Errorf("groups %q", groups)
			}
			page := b.Open(w.address("/settings/account"), nil).Text
			if strings.Contains(page, `id="change-password"`) || !strings.Contains(page, "as Ann Lee") || !strings.Contains(page, "· Company") {
				t.Error("the account page does not show the identity alone")
			}
			// A second login is the same user's, also under another name, and another session.
			w.idp.Set("s1", idp.User{Username: "admin", Email: "boss@example.com", Groups: []string{"developers"}})
			again := w.mustSignIn("s1")
			if who := w.loggedInAs(again); who != "Ann-Lee" {
				t.Errorf("logged in as %q", who)
			}
			if n := fixture.Query[int](w, `SELECT count(*) FROM users`); n != 2 {
				t.Errorf("%d users", n)
			}
			if slices.Equal(w.sessionHash(b), w.sessionHash(again)) {
				t.Error("two logins have one session")
			}
			// No password opens the account.
			for _, password := range []string{"", "x", "password"} {
				if _, err := w.Auth.Login(t.Context(), "Ann-Lee", password, auth.Client{}); workspace.CodeOf(err) != workspace.CodeBadCredentials {
					t.Errorf("password %q: %v", password, err)
				}
			}
			if tokens := fixture.Query[string](w, `SELECT string_agg(encode(refresh_token, 'escape'), ' ') FROM user_identities`); tokens == "" {
				t.Error("no refresh token is stored")
			}
		})
	}
}

// A login never becomes that of a user who has the name already, and nobody without an allowed group
// gets in.
func TestSignInIsRefused(t *testing.T) {
	t.Parallel()
	w := newSignInWorld(t, idp.Options{}, nil)
	w.AddAccount("Bob", "another password", false)
	for name, c := range map[string]struct {
		user   idp.User
		status int
		reason signin.Reason
	}{
		"no group":       {idp.User{Username: "carl"}, http.StatusForbidden, signin.NotAllowed},
		"other groups":   {idp.User{Username: "carl", Groups: []string{"Developers", "developer", ""}}, http.StatusForbidden, signin.NotAllowed},
		"name taken":     {idp.User{Username: "bob", Groups: []string{"developers"}}, http.StatusConflict, signin.NameTaken},
		"name of admin":  {idp.User{Username: "ＡＤＭＩＮ", Groups: []string{"developers"}}, http.StatusConflict, signin.NameTaken},
		"no name":        {idp.User{Groups: []string{"developers"}}, http.StatusForbidden, signin.NoUsername},
		"invisible name": {idp.User{Username: "\u3164", Groups: []string{"developers"}}, http.StatusForbidden, signin.NoUsername},
	} {
		w.idp.Set("s1", c.user)
		b := idp.NewBrowser(t)
		t.Log(name)
		w.refused(b, w.signIn(b, "s1", ""), c.status, c.reason)
	}
	if n := fixture.Query[int](w, `SELECT count(*) FROM user_identities`); n != 0 {
		t.Errorf("%d identities were added", n)
	}
	// A user whom codehub has disabled stays out.
	w.idp.Set("s2", idp.User{Username: "eve", Groups: []string{"developers"}})
	b := w.mustSignIn("s2")
	yes := true
	if _, err := w.DB.PatchAccount(t.Context(), workspace.System, w.caller("eve").UserID, postgres.AccountPatch{Disabled: &yes}); err != nil {
		t.Fatal(err)
	}
	w.refused(b, w.signIn(b, "s2", ""), http.StatusForbidden, signin.Disabled)
}

// A callback counts only for the browser, provider and login that it belongs to, and once.
func TestSignInCallbackIsBound(t *testing.T) {
	t.Parallel()
	var other *idp.Provider
	w := newSignInWorld(t, idp.Options{InIDToken: true}, func(company map[string]any, c *signin.Config) {
		other = idp.Start(t, idp.Options{RedirectURI: strings.TrimRight(c.URL.String(), "/") + "/login/other/callback", InIDToken: true})
		c.Providers = providersFile(t, company, map[string]any{"id": "other", "issuer": other.Issuer, "scopes": []string{"profile"}})
	})
	w.idp.Set("s1", idp.User{Username: "ann", Groups: []string{"developers"}})
	other.Set("s1", idp.User{Username: "mallory"})

	// Another browser's login: it has no cookie, or that of its own login.
	victim, attacker := idp.NewBrowser(t), idp.NewBrowser(t)
	stolen := w.pending(attacker, "s1")
	w.refused(victim, victim.Open(stolen, nil), http.StatusBadRequest, signin.Expired)
	w.pending(victim, "s1")
	w.refused(victim, victim.Open(stolen, nil), http.StatusBadRequest, signin.Expired)

	// A code is redeemed once, also with the cookie of its login.
	b := idp.NewBrowser(t)
	callback := w.pending(b, "s1")
	flow := flowCookieOf(t, w, b)
	if p := b.Open(callback, nil); p.Request.URL.Path != "/" {
		t.Fatalf("the login ended at %s: %s", p.Request.URL, shownProblem(p))
	}
	replay := idp.NewBrowser(t)
	w.refused(replay, replay.Open(callback, nil), http.StatusBadRequest, signin.Expired)
	replay.Jar.SetCookies(w.URL, []*http.Cookie{flow})
	w.refused(replay, replay.Open(callback, nil), http.StatusBadGateway, signin.Unavailable)

	// An ID token with the nonce of another login.
	b = idp.NewBrowser(t)
	toProvider := b.Open(w.address("/login/company"), func(u *url.URL) bool { return false }).Header.Get("Location")
	changed, err := url.Parse(toProvider)
	if err != nil {
		t.Fatal(err)
	}
	q := changed.Query()
	for _, name := range []string{"state", "nonce", "code_challenge", "code_challenge_method"} {
		if q.Get(name) == "" {
			t.Errorf("the request has no %s", name)
		}
	}
	q.Set("nonce", "another-nonce-of-another-login")
	changed.RawQuery = q.Encode()
	w.refused(b, b.LogIn(b.Open(changed.String(), nil), "s1", nil), http.StatusBadGateway, signin.Unavailable)

	// An answer with another challenge of PKCE.
	b = idp.NewBrowser(t)
	changed, _ = url.Parse(b.Open(w.address("/login/company"), func(u *url.URL) bool { return false }).Header.Get("Location"))
	q = changed.Query()
	q.Set("code_challenge", "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM")
	changed.RawQuery = q.Encode()
	w.refused(b, b.LogIn(b.Open(changed.String(), nil), "s1", nil), http.StatusBadGateway, signin.Unavailable)

	// Mixed-up issuers: an answer that names another one, none, or comes to another's address.
	w.idp.AnswerAs(other.Issuer)
	b = idp.NewBrowser(t)
	w.refused(b, w.signIn(b, "s1", ""), http.StatusBadGateway, signin.Unavailable)
	w.idp.AnswerAs("")
	b = idp.NewBrowser(t)
	none, _ := url.Parse(w.pending(b, "s1"))
	q = none.Query()
	q.Del("iss")
	none.RawQuery = q.Encode()
	w.refused(b, b.Open(none.String(), nil), http.StatusBadGateway, signin.Unavailable)
	b = idp.NewBrowser(t)
	w.refused(b, b.Open(strings.Replace(w.pending(b, "s1"), "/login/company/", "/login/other/", 1), nil), http.StatusBadRequest, signin.Expired)

	// An error of the provider.
	b = idp.NewBrowser(t)
	denied, _ := url.Parse(w.pending(b, "s1"))
	q = denied.Query()
	q.Set("error", "<script>")
	denied.RawQuery = q.Encode()
	p := b.Open(denied.String(), nil)
	w.refused(b, p, http.StatusForbidden, signin.Denied)
	if strings.Contains(p.Text, "<script>") {
		t.Error("the page has the provider's text")
	}

	// The same subject at another issuer is another user.
	b = idp.NewBrowser(t)
	if p := b.LogIn(b.Open(w.address("/login/other"), nil), "s1", nil); p.Request.URL.Path != "/" {
		t.Fatalf("the login ended at %s: %s", p.Request.URL, shownProblem(p))
	}
	if who := w.loggedInAs(b); who != "mallory" {
		t.Errorf("logged in as %q", who)
	}
}

// flowCookieOf returns the cookie of the login that the browser has begun.
func flowCookieOf(t *testing.T, w *signInWorld, b *idp.Browser) *http.Cookie {
	t.Helper()
	for _, c := range b.Jar.Cookies(w.URL) {
		if c.Name == "codehub_signin" {
			return c
		}
	}
	t.Fatal("no cookie of a login")
	return nil
}

// A login leads to a page of codehub, also if its address names another site.
func TestSignInRedirectsLocally(t *testing.T) {
	t.Parallel()
	w := newSignInWorld(t, idp.Options{}, nil)
	w.idp.Set("s1", idp.User{Username: "ann", Groups: []string{"developers"}})
	for _, next := range []string{"//evil.example", "https://evil.example/", "/\\evil.example", "/%09/evil.example", "\t//evil.example", "/login/company", strings.Repeat("/x", 900)} {
		b := idp.NewBrowser(t)
		p := w.signIn(b, "s1", next)
		if p.Request.URL.Host != w.URL.Host || p.StatusCode != http.StatusOK || w.loggedInAs(b) != "ann" {
			t.Errorf("next=%q led to %s with %d", next, p.Request.URL, p.StatusCode)
		}
	}
	// A link on another site does not log its visitors in.
	r, err := http.NewRequest(http.MethodGet, w.address("/login/company"), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.Header.Get("Location") != "/login" || len(resp.Cookies()) > 0 {
		t.Errorf("another site's link led to %s", resp.Header.Get("Location"))
	}
}

// A login that was begun at one server is finished at another one, or after a restart.
func TestSignInFinishesAtAnotherServer(t *testing.T) {
	t.Parallel()
	w := newSignInWorld(t, idp.Options{InIDToken: true}, nil)
	w.idp.Set("s1", idp.User{Username: "ann", Groups: []string{"developers"}})
	b := idp.NewBrowser(t)
	callback := w.pending(b, "s1")
	other, err := signin.New(w.config)
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, callback, nil)
	r.AddCookie(flowCookieOf(t, w, b))
	result, err := other.Finish(r, "company", workspace.Caller{})
	if err != nil || result.Session.User.Username != "ann" {
		t.Errorf("%+v, %v", result, err)
	}
}

// relayed opens a WebSocket to a running workspace of the user, by the proxy.
func (w *signInWorld) relayed(b *idp.Browser, username string) *websocket.Conn {
	w.t.Helper()
	ide := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(rw, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, m, err := c.Read(context.Background())
			if err != nil || c.Write(context.Background(), kind, m) != nil {
				return
			}
		}
	}))
	w.t.Cleanup(ide.Close)
	w.logs.mu.Lock()
	w.logs.addr = strings.TrimPrefix(ide.URL, "http://")
	w.logs.mu.Unlock()
	id := w.AddWorkspace(w.caller(username), "open").ID
	w.observe(id, running)
	w.want(id, "desired_state", "RUNNING")
	header := http.Header{"Origin": {w.HTTP.URL}}
	for _, c := range b.Jar.Cookies(w.URL) {
		header.Add("Cookie", c.String())
	}
	c, _, err := websocket.Dial(w.t.Context(), w.HTTP.URL+"/w/"+string(id)+"/ws", &websocket.DialOptions{HTTPHeader: header})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.CloseNow() })
	w.echo(c)
	return c
}

func (w *signInWorld) echo(c *websocket.Conn) {
	w.t.Helper()
	if err := c.Write(w.t.Context(), websocket.MessageText, []byte("hello")); err != nil {
		w.t.Fatal(err)
	}
	if _, m, err := c.Read(w.t.Context()); err != nil || string(m) != "hello" {
		w.t.Fatalf("%q, %v", m, err)
	}
}

// cut waits until the WebSocket is closed.
func (w *signInWorld) cut(c *websocket.Conn) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	if _, _, err := c.Read(ctx); err == nil || ctx.Err() != nil {
		w.t.Fatalf("the WebSocket is open: %v", err)
	}
}

// access gives a user an API token and an SSH key, and returns the token's secret and a
// query of both.
func (w *signInWorld) access(username string) (token string, valid func() int) {
	w.t.Helper()
	caller := w.caller(username)
	t, secret, err := w.Auth.CreateToken(w.t.Context(), auth.Identity{Caller: caller}, "x", nil, auth.TokenLimits{})
	if err != nil {
		w.t.Fatal(err)
	}
	key := make([]byte, 32)
	copy(key, username)
	if _, err := w.DB.AddSSHKey(w.t.Context(), caller, postgres.SSHKey{Name: "key", PublicKey: "ssh-ed25519 AAAA", Hash: key}); err != nil {
		w.t.Fatal(err)
	}
	return secret, func() int {
		list, err := w.DB.ValidSessions(w.t.Context(), [][]byte{t.Hash, key})
		if err != nil {
			w.t.Fatal(err)
		}
		return len(list)
	}
}

func (w *signInWorld) tokenWorks(token string) bool {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set(api.TokenHeader, token)
	_, err := w.Auth.Identify(r, false)
	return err == nil
}

// A user who leaves the allowed groups loses everything at the next check, an open
// WebSocket included, and cannot come back until the provider allows it.
func TestRemovalFromGroupEndsAccess(t *testing.T) {
	t.Parallel()
	w := newSignInWorld(t, idp.Options{}, func(_ map[string]any, c *signin.Config) { c.Interval = 10 * time.Second })
	w.idp.Set("s1", idp.User{Username: "ann", Groups: []string{"developers"}})
	w.idp.Set("s2", idp.User{Username: "bob", Groups: []string{"developers"}})
	b, bob := w.mustSignIn("s1"), w.mustSignIn("s2")
	token, valid := w.access("ann")
	socket := w.relayed(b, "ann")
	if !w.tokenWorks(token) || valid() != 2 {
		t.Fatal("the token does not work")
	}
	w.idp.Set("s1", idp.User{Username: "ann", Groups: []string{"others"}})
	removed := time.Now()
	w.cut(socket)
	t.Logf("the WebSocket was cut after %v", time.Since(removed))
	if time.Since(removed) > 10*time.Second {
		t.Errorf("the WebSocket was cut after %v", time.Since(removed))
	}
	if who := w.loggedInAs(b); who != "" || w.tokenWorks(token) || valid() != 0 {
		t.Errorf("logged in as %q, %d means of access are valid", who, valid())
	}
	if n := fixture.Query[int](w, `SELECT (SELECT count(*) FROM api_tokens) + (SELECT count(*) FROM ssh_keys) + (SELECT count(*) FROM user_claim_groups g
		JOIN user_identities i ON i.id = g.identity_id WHERE i.subject = 's1')`); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	w.refused(b, w.signIn(b, "s1", ""), http.StatusForbidden, signin.NotAllowed)
	if who := w.loggedInAs(bob); who != "bob" {
		t.Errorf("another user is logged in as %q", who)
	}
	// Back in the group the user logs in again, and the former token stays invalid.
	w.idp.Set("s1", idp.User{Username: "ann", Groups: []string{"developers"}})
	if who := w.loggedInAs(w.mustSignIn("s1")); who != "ann" || w.tokenWorks(token) {
		t.Errorf("logged in as %q", who)
	}
}

// A user whom the provider has disabled or deleted is out. Tokens wait for the user's next
// login: a provider also refuses refresh tokens that have merely expired.
func TestRefusedRefreshSuspends(t *testing.T) {
	t.Parallel()
	w := newSignInWorld(t, idp.Options{InIDToken: true}, nil)
	w.idp.Set("s1", idp.User{Username: "ann", Groups: []string{"developers"}})
	b := w.mustSignIn("s1")
	token, valid := w.access("ann")
	socket := w.relayed(b, "ann")
	w.idp.Set("s1", idp.User{Disabled: true})
	w.cut(socket)
	if who := w.loggedInAs(b); who != "" || w.tokenWorks(token) || valid() != 0 {
		t.Errorf("logged in as %q, %d means of access are valid", who, valid())
	}
	if _, err := w.DB.CreateWorkspace(t.Context(), w.caller("ann"), postgres.NewWorkspace{Name: "x", ImageRef: "x", Desired: workspace.DesiredStandby, StorageBackend: workspace.StorageDockerVolume}); workspace.CodeOf(err) != workspace.CodeForbidden {
		t.Errorf("a suspended user created a workspace: %v", err)
	}
	w.idp.Set("s1", idp.User{Username: "ann", Groups: []string{"developers"}})
	if who := w.loggedInAs(w.mustSignIn("s1")); who != "ann" || !w.tokenWorks(token) || valid() != 2 {
		t.Errorf("logged in as %q, %d means of access are valid", who, valid())
	}
}

// Refresh tokens are replaced at each check, and the user stays logged in.
func TestRefreshKeepsUsers(t *testing.T) {
	t.Parallel()
	w := newSignInWorld(t, idp.Options{}, nil)
	w.idp.Set("s1", idp.User{Username: "ann", Groups: []string{"developers"}})
	b := w.mustSignIn("s1")
	before := w.idp.Requests("/token")
	w.idp.Set("s1", idp.User{Username: "ann", Groups: []string{"developers", "new"}})
	harness.Eventually(t, "five checks", func() bool { return w.idp.Requests("/token") >= before+5 })
	if who := w.loggedInAs(b); who != "ann" {
		t.Errorf("logged in as %q", who)
	}
	if !fixture.Query[bool](w, `SELECT EXISTS (SELECT FROM user_claim_groups WHERE name = 'new')`) {
		t.Error("the new group is not stored")
	}
	// Without a means of access the provider is not asked.
	b.Post(w.address("/logout"), nil, nil)
	w.idp.Set("s2", idp.User{Username: "eve", Groups: []string{"developers"}})
	w.mustSignIn("s2")
	tried := func(subject string) time.Time {
		return fixture.Query[time.Time](w, `SELECT tried_at FROM user_identities WHERE subject = $1`, subject)
	}
	await := func(what string) {
		last := tried("s2")
		harness.Eventually(t, what, func() bool { return tried("s2").After(last) })
	}
	await("a check that began after the logout")
	last := tried("s1")
	await("one more check")
	await("another check")
	if at := tried("s1"); !at.Equal(last) {
		t.Errorf("the identity without a means of access was checked at %v", at)
	}
}

// Administrators come and go with their group; what an administrator has set stays.
func TestAdminByGroup(t *testing.T) {
	t.Parallel()
	w := newSignInWorld(t, idp.Options{InIDToken: true}, nil)
	w.idp.Set("s1", idp.User{Username: "ann", Groups: []string{"admins"}})
	b := w.mustSignIn("s1")
	if p := b.Open(w.address("/admin"), nil); p.StatusCode != http.StatusOK || !w.caller("ann").Admin {
		t.Fatalf("a member of the group does not administer: %d", p.StatusCode)
	}
	w.idp.Set("s1", idp.User{Username: "ann", Groups: []string{"developers"}})
	harness.Eventually(t, "the user administers no more", func() bool { return !w.caller("ann").Admin })
	if p := b.Open(w.address("/admin"), nil); p.StatusCode == http.StatusOK {
		t.Error("the page of administrators is shown")
	}
	// A grant by an administrator is not taken back.
	yes := true
	if _, err := w.DB.PatchAccount(t.Context(), workspace.System, w.caller("ann").UserID, postgres.AccountPatch{Admin: &yes}); err != nil {
		t.Fatal(err)
	}
	before := w.idp.Requests("/token")
	harness.Eventually(t, "two checks", func() bool { return w.idp.Requests("/token") >= before+2 })
	if !w.caller("ann").Admin {
		t.Error("the administrator's grant was taken back")
	}
}

// While the provider does not respond, users stay logged in for a while. After it they are
// suspended until it confirms them.
func TestProviderOutage(t *testing.T) {
	t.Parallel()
	w := newSignInWorld(t, idp.Options{InIDToken: true}, nil)
	w.idp.Set("s1", idp.User{Username: "ann", Groups: []string{"developers"}})
	b := w.mustSignIn("s1")
	token, _ := w.access("ann")
	w.idp.Down(true)
	before := w.idp.Requests("/token")
	harness.Eventually(t, "three failed checks", func() bool { return w.idp.Requests("/token") >= before+3 })
	if who := w.loggedInAs(b); who != "ann" || !w.tokenWorks(token) {
		t.Errorf("an outage ended the session of %q", who)
	}
	page := idp.NewBrowser(t).Open(w.address("/login"), nil)
	if page.StatusCode != http.StatusOK || !strings.Contains(page.Text, "Log in with Company") {
		t.Errorf("the login page needs the provider: %d", page.StatusCode)
	}
	w.Change(`UPDATE user_identities SET failing_since = now() - interval '2 hours'`)
	harness.Eventually(t, "the user is suspended", func() bool { return w.loggedInAs(b) == "" })
	if w.tokenWorks(token) {
		t.Error("the token works after the outage was too long")
	}
	w.idp.Down(false)
	harness.Eventually(t, "the user is back", func() bool { return w.loggedInAs(b) == "ann" && w.tokenWorks(token) })
}

// The provider ends its session, and codehub's with it. API tokens stay.
func TestBackChannelLogout(t *testing.T) {
	t.Parallel()
	w := newSignInWorld(t, idp.Options{InIDToken: true}, nil)
	w.idp.Set("s1", idp.User{Username: "ann", Groups: []string{"developers"}})
	b, other := w.mustSignIn("s1"), w.mustSignIn("s1")
	token, _ := w.access("ann")
	socket := w.relayed(b, "ann")
	page := b.Open(w.idp.Issuer+"/session/end", nil)
	_, rest, _ := strings.Cut(page.Text, `name="xsrf" value="`)
	xsrf, _, _ := strings.Cut(rest, `"`)
	if xsrf == "" {
		t.Fatalf("no form to log out at the provider: %s", page.Text)
	}
	b.Post(w.idp.Issuer+"/session/end/confirm", url.Values{"xsrf": {xsrf}, "logout": {"yes"}}, nil)
	w.cut(socket)
	if who := w.loggedInAs(b); who != "" {
		t.Errorf("logged in as %q", who)
	}
	if who := w.loggedInAs(other); who != "ann" || !w.tokenWorks(token) {
		t.Errorf("the other session is %q's", who)
	}
	if n := fixture.Query[int](w, `SELECT count(*) FROM audit_log WHERE action = 'identity.logout'`); n != 1 {
		t.Errorf("%d entries in the audit log", n)
	}
	for _, form := range []url.Values{{}, {"logout_token": {"x"}}, {"logout_token": {"eyJhbGciOiJub25lIn0.e30."}}} {
		resp, err := http.PostForm(w.address("/login/company/logout"), form)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest || resp.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%v: %d", form, resp.StatusCode)
		}
	}
}

// A user with a password links an identity with it, logs in with either, and unlinks it.
func TestLinkIdentity(t *testing.T) {
	t.Parallel()
	w := newSignInWorld(t, idp.Options{InIDToken: true}, nil)
	w.idp.Set("s1", idp.User{Username: "someone", Groups: []string{"developers"}})
	w.idp.Set("s2", idp.User{Username: "eve", Groups: []string{"developers"}})
	w.AddAccount("ann", "another password", false)
	ann := idp.NewBrowser(t)
	ann.Jar.SetCookies(w.URL, []*http.Cookie{w.session("ann")})
	link := w.address("/settings/identities/company/link")
	if p := ann.Post(link, url.Values{"current": {"wrong password"}}, nil); p.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("a wrong password: %d", p.StatusCode)
	}
	leave := func(b *idp.Browser) string {
		t.Helper()
		p := b.Post(link, url.Values{"current": {"another password"}}, nil)
		_, rest, _ := strings.Cut(p.Text, `rel="noreferrer" href="`)
		address, _, _ := strings.Cut(rest, `"`)
		if address == "" {
			t.Fatalf("no way to the provider: %d %s", p.StatusCode, p.Text)
		}
		return html.UnescapeString(address)
	}
	// The link of a browser that is no longer logged in, or is another user's by then, is void.
	p := ann.LogIn(ann.Open(leave(ann), w.callback), "s1", w.callback)
	thief := idp.NewBrowser(t)
	thief.Jar.SetCookies(w.URL, []*http.Cookie{w.session("admin"), flowCookieOf(t, w, ann)})
	if p := thief.Open(p.Header.Get("Location"), nil); p.StatusCode != http.StatusForbidden {
		t.Errorf("another user finished the link: %d at %s", p.StatusCode, p.Request.URL)
	}
	p = ann.LogIn(ann.Open(leave(ann), nil), "s1", nil)
	if p.Request.URL.Path != "/settings/account" || !strings.Contains(p.Text, "The login was linked.") {
		t.Fatalf("the link ended at %s: %s", p.Request.URL, shownProblem(p))
	}
	b := idp.NewBrowser(t)
	if w.signIn(b, "s1", ""); w.loggedInAs(b) != "ann" {
		t.Errorf("logged in as %q", w.loggedInAs(b))
	}
	// The identity of another user cannot be linked.
	w.mustSignIn("s2")
	bob := idp.NewBrowser(t)
	w.AddAccount("bob", "another password", false)
	bob.Jar.SetCookies(w.URL, []*http.Cookie{w.session("bob")})
	if p := bob.LogIn(bob.Open(leave(bob), nil), "s2", nil); p.StatusCode != http.StatusConflict {
		t.Errorf("the identity of another user: %d", p.StatusCode)
	}
	// The link ends with the sessions that it began.
	id := fixture.Query[string](w, `SELECT i.id::text FROM user_identities i JOIN users u ON u.id = i.user_id WHERE u.username = 'ann'`)
	unlink := w.address("/settings/identities/" + id + "/unlink")
	if p := bob.Post(unlink, url.Values{"current": {"another password"}}, nil); p.StatusCode != http.StatusNotFound {
		t.Errorf("another user unlinked it: %d", p.StatusCode)
	}
	if p := ann.Post(unlink, url.Values{"current": {"another password"}}, nil); !strings.Contains(p.Text, "The login was unlinked.") {
		t.Errorf("the unlink ended at %s", p.Request.URL)
	}
	if w.loggedInAs(b) != "" || w.loggedInAs(ann) != "ann" {
		t.Error("the wrong sessions ended")
	}
}

// A linked user is out with the identity, also with the password.
func TestLinkedUserIsSuspended(t *testing.T) {
	t.Parallel()
	w := newSignInWorld(t, idp.Options{InIDToken: true}, nil)
	w.idp.Set("s1", idp.User{Username: "ann", Groups: []string{"developers"}})
	w.mustSignIn("s1")
	password := "another password"
	service := w.dash.Admin
	if _, err := service.PatchAccount(t.Context(), workspace.System, w.caller("ann").UserID, api.PatchAccount{Password: &password}); err != nil {
		t.Fatal(err)
	}
	b := w.mustSignIn("s1")
	w.idp.Set("s1", idp.User{Username: "ann"})
	harness.Eventually(t, "the user is out", func() bool { return w.loggedInAs(b) == "" })
	if _, err := w.Auth.Login(t.Context(), "ann", password, auth.Client{}); workspace.CodeOf(err) != workspace.CodeSuspended {
		t.Errorf("the password: %v", err)
	}
	// An administrator can vouch for the user, with a new password.
	if _, err := service.PatchAccount(t.Context(), workspace.System, w.caller("ann").UserID, api.PatchAccount{Password: &password}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Auth.Login(t.Context(), "ann", password, auth.Client{}); err != nil {
		t.Errorf("the new password: %v", err)
	}
}

// Identities of a provider that the settings no longer name end.
func TestRemovedProviderEndsIdentities(t *testing.T) {
	t.Parallel()
	w := newSignInWorld(t, idp.Options{InIDToken: true}, nil)
	w.idp.Set("s1", idp.User{Username: "ann", Groups: []string{"developers"}})
	b := w.mustSignIn("s1")
	without := w.config
	without.Providers = nil
	s, err := signin.New(without)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var run sync.WaitGroup
	run.Go(func() { _ = s.Run(ctx) })
	defer func() { cancel(); run.Wait(); s.Wait() }()
	harness.Eventually(t, "the user is out", func() bool { return w.loggedInAs(b) == "" })
}
