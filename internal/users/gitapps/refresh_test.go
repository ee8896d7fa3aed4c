package gitapps

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/harness/idp"
	"codehub/internal/testing/pgtest"
	"codehub/internal/users/auth"
	"codehub/internal/users/gitaccess"
	"codehub/internal/users/sealed"
	"codehub/internal/workspace"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const redirect = "http://codehub.test/settings/git/company/callback"

// world is two servers on one database, and a provider with rotating refresh tokens.
type world struct {
	t testing.TB
	*fixture.Database
	clock   *pgtest.Clock
	idp     *idp.Provider
	servers [2]*Service
	users   int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, clock: pgtest.NewClock(t, pgtest.New(t, postgres.Migrate))}
	w.Database = fixture.OpenDatabase(t, w.clock.DSN, postgres.Options{})
	w.idp = idp.Start(t, idp.Options{RedirectURI: redirect, AuthMethod: "client_secret_post"})
	settings, err := resolve(t, `apps: [{id: company, title: Company, type: gitlab, url: "`+w.idp.Issuer+`", client_id: `+idp.ClientID+`, client_secret: "`+idp.ClientSecret+`", scopes: [openid, offline_access]}]`)
	w.ok(err)
	keys := filepath.Join(t.TempDir(), "secret.key")
	base := &url.URL{Scheme: "http", Host: "codehub.test"}
	for i := range w.servers {
		db, err := postgres.Open(t.Context(), w.DSN, postgres.Options{})
		w.ok(err)
		t.Cleanup(db.Close)
		ring, err := sealed.OpenOrCreate(keys)
		w.ok(err)
		log := harness.Logger(t, 100)
		w.servers[i] = New(Config{
			Settings: settings, URL: base, Store: db, Keys: ring, Access: gitaccess.New(db, ring), Log: log,
			Sessions: auth.New(db, auth.Config{URL: base, Log: log}),
		})
		w.servers[i].Access.Apps = w.servers[i]
		w.servers[i].patience, w.servers[i].failurePause = 100*time.Millisecond, 0
		t.Cleanup(w.servers[i].Wait)
	}
	return w
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// connection is that of a new user.
type connection struct {
	*world
	caller workspace.Caller
	id     string
	token  string // at first
}

// connect connects a new user in a browser.
func (w *world) connect(tokens idp.Tokens) *connection {
	w.t.Helper()
	w.users++
	name := "user" + strconv.Itoa(w.users)
	w.idp.Set(name, idp.User{Username: name})
	w.idp.Issue(tokens)
	c := &connection{world: w, caller: w.AddUser(name)}
	c.caller.Session = "session of " + name
	s := w.servers[0]
	address, cookie, err := s.Begin(c.caller, "company", "why")
	w.ok(err)
	back := func(u *url.URL) bool { return !strings.HasSuffix(u.Path, "/callback") }
	b := idp.NewBrowser(w.t)
	page := b.LogIn(b.Open(address, back), name, back)
	r := httptest.NewRequest(http.MethodGet, page.Header.Get("Location"), nil)
	r.AddCookie(cookie)
	made, purpose, err := s.Finish(r, c.caller, "company")
	w.ok(err)
	if purpose != "why" || made.Login != name || made.Provider != "company" || made.Kind != api.GitOAuth {
		w.t.Errorf("connected %+v", made)
	}
	c.id = made.ID
	if c.token, err = c.fresh(s, ""); err != nil {
		w.t.Fatal(err)
	}
	return c
}

// fresh asks a server for the token, as a workspace does.
func (c *connection) fresh(s *Service, rejected string) (string, error) {
	if rejected != "" {
		rejected = gitaccess.Digest(rejected)
	}
	t, err := s.Fresh(c.t.Context(), c.row(), rejected)
	if err == nil && t.Username != "oauth2" {
		c.t.Errorf("username %q", t.Username)
	}
	return t.Access, err
}

func (c *connection) row() (g postgres.GitTokens) {
	c.t.Helper()
	g.ID = c.id
	return g
}

// reason is the recorded error.
func (c *connection) reason() string {
	c.t.Helper()
	list, err := c.DB.GitConnections(c.t.Context(), c.caller)
	c.ok(err)
	return list[0].Error
}

// expire ends the access token before its time, for codehub.
func (c *connection) expire() {
	c.t.Helper()
	c.Change(`UPDATE git_connections SET expires_at = clock_timestamp() - interval '1 second' WHERE id = $1`, c.id)
}

// old makes the tokens those of an hour ago, of which codehub uses the access token for another minute.
func (c *connection) old() {
	c.t.Helper()
	c.Change(`UPDATE git_connections SET changed_at = clock_timestamp() - interval '1 hour', expires_at = clock_timestamp() + interval '1 minute' WHERE id = $1`, c.id)
}

// accepted reports whether the provider accepts a token.
func (c *connection) accepted(token string) bool {
	_, err := c.servers[0].Settings.Apps[0].login(c.t.Context(), token)
	return err == nil
}

func (w *world) refreshes() int { return w.idp.Requests("/oauth/token") }

// Each step connects a user of its own; the steps share the provider, which has one way to answer
// at a time.
func TestRefresh(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two := w.servers[0], w.servers[1]

	// A new token is not refreshed, also if its life is short. One that a Git server has rejected is, if it is not
	// new, and not for a token that was replaced meanwhile.
	w.connect(idp.Tokens{Lifetime: time.Minute})
	before := w.refreshes()
	c := w.connect(idp.Tokens{Lifetime: 2 * time.Hour})
	if n := w.refreshes() - before; n != 1 {
		t.Errorf("%d requests for a connection", n)
	}
	before = w.refreshes()
	if again, err := c.fresh(two, ""); err != nil || again != c.token {
		t.Errorf("%v", err)
	}
	if again, err := c.fresh(two, c.token); err != nil || again != c.token || w.refreshes() != before {
		t.Errorf("a new token was refreshed: %v", err)
	}
	c.Change(`UPDATE git_connections SET changed_at = clock_timestamp() - interval '2 minutes'`)
	next, err := c.fresh(two, c.token)
	if err != nil || next == c.token || !c.accepted(next) || w.refreshes() != before+1 {
		t.Errorf("a rejected token was not refreshed: %v", err)
	}
	if again, err := c.fresh(one, c.token); err != nil || again != next || w.refreshes() != before+1 {
		t.Errorf("a replaced token was refreshed: %v", err)
	}

	// The database's clock jumps ahead, and back: then the expiry says too much.
	w.clock.Set(3 * time.Hour)
	ahead, err := c.fresh(one, "")
	if err != nil || ahead == next || !c.accepted(ahead) {
		t.Errorf("after a jump ahead: %v", err)
	}
	w.clock.Set(0)
	if back, err := c.fresh(one, ahead); err != nil || back == ahead || !c.accepted(back) {
		t.Errorf("after a jump back: %v", err)
	}

	// Two servers, five requests each: one refresh.
	c = w.connect(idp.Tokens{Lifetime: 2 * time.Hour})
	c.expire()
	w.idp.Issue(idp.Tokens{Lifetime: 2 * time.Hour, Delay: 300 * time.Millisecond})
	before = w.refreshes()
	var mu sync.Mutex
	var wg sync.WaitGroup
	got := map[string]int{}
	for i := range 10 {
		wg.Go(func() {
			token, err := c.fresh(w.servers[i%2], "")
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			got[token]++
		})
	}
	wg.Wait()
	if n := w.refreshes() - before; n != 1 || len(got) != 1 || got[c.token] != 0 {
		t.Errorf("%d refreshes, %d tokens", n, len(got))
	}
	for token := range got {
		if !c.accepted(token) {
			t.Error("the provider does not accept the token")
		}
	}

	// A request that ends does not end the refresh.
	c.expire()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := one.Fresh(ctx, c.row(), ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	one.Wait()
	before = w.refreshes()
	if token, err := c.fresh(two, ""); err != nil || got[token] != 0 || !c.accepted(token) || w.refreshes() != before {
		t.Errorf("the refresh of a request that ended: %v", err)
	}

	w.troubles()
}

// troubles are those of providers.
func (w *world) troubles() {
	t, one, two := w.t, w.servers[0], w.servers[1]

	// The provider is slow: the former token is used, and the new one is stored later.
	c := w.connect(idp.Tokens{Lifetime: 2 * time.Hour})
	c.old()
	w.idp.Issue(idp.Tokens{Lifetime: 2 * time.Hour, Delay: 500 * time.Millisecond})
	if token, err := c.fresh(one, ""); err != nil || token != c.token {
		t.Errorf("slow: %v", err)
	}
	one.Wait()
	if token, err := c.fresh(one, ""); err != nil || token == c.token || !c.accepted(token) {
		t.Errorf("after a slow answer: %v", err)
	}

	// It is down: the former token is used while it is valid, and then the message names the provider.
	c = w.connect(idp.Tokens{Lifetime: 2 * time.Hour})
	c.old()
	w.idp.Down(true)
	if token, err := c.fresh(one, ""); err != nil || token != c.token || c.reason() != api.GitUnavailable {
		t.Errorf("down: %v, %q", err, c.reason())
	}
	c.expire()
	if _, err := c.fresh(two, ""); workspace.CodeOf(err) != workspace.CodeUnavailable || !strings.Contains(err.Error(), "Company is not responding") {
		t.Errorf("down: %v", err)
	}
	w.idp.Down(false)
	if token, err := c.fresh(two, ""); err != nil || !c.accepted(token) || c.reason() != "" {
		t.Errorf("up again: %v, %q", err, c.reason())
	}

	// An answer is lost. A provider that accepts the refresh token again keeps the connection; for
	// others it has to be made again.
	c = w.connect(idp.Tokens{Lifetime: 2 * time.Hour, Keep: true})
	c.expire()
	w.idp.Issue(idp.Tokens{Lifetime: 2 * time.Hour, Keep: true, Lose: 1})
	before := w.refreshes()
	if token, err := c.fresh(one, ""); err != nil || token == c.token || !c.accepted(token) || w.refreshes() != before+2 {
		t.Errorf("a lost answer: %v, %d requests", err, w.refreshes()-before)
	}
	c.expire()
	w.idp.Issue(idp.Tokens{Lifetime: 2 * time.Hour, Lose: 1})
	c.revoked("a lost answer of a strict provider", one, two)

	// The provider revokes it. Its tokens are asked for no more.
	c = w.connect(idp.Tokens{Lifetime: 2 * time.Hour})
	w.idp.Set(c.caller.Username, idp.User{Disabled: true})
	c.expire()
	c.revoked("revoked", two, one)
	before = w.refreshes()
	c.revoked("revoked before", one, two)
	if n := w.refreshes(); n != before {
		t.Errorf("the provider was asked %d times about a connection that it has revoked", n-before)
	}

	// A disconnect ends the tokens at the provider, or says that it could not.
	c = w.connect(idp.Tokens{Lifetime: 2 * time.Hour})
	if ended, err := one.Access.Disconnect(t.Context(), c.caller, c.id); err != nil || !ended.Revoked || c.accepted(c.token) {
		t.Errorf("%+v, %v", ended, err)
	}
	c = w.connect(idp.Tokens{Lifetime: 2 * time.Hour})
	w.idp.Down(true)
	if ended, err := one.Access.Disconnect(t.Context(), c.caller, c.id); err != nil || ended.Revoked {
		t.Errorf("%+v, %v", ended, err)
	}
	if list, err := w.DB.GitConnections(t.Context(), c.caller); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}

// revoked checks that both servers tell the user to connect again.
func (c *connection) revoked(name string, servers ...*Service) {
	c.t.Helper()
	for _, s := range servers {
		_, err := c.fresh(s, "")
		if workspace.CodeOf(err) != workspace.CodeForbidden || !strings.Contains(err.Error(), "Connect Company again on your account page: http://codehub.test/settings/account") || c.reason() != api.GitRevoked {
			c.t.Errorf("%s: %v, %q", name, err, c.reason())
		}
	}
}
