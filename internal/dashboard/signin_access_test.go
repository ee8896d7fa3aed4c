package dashboard

import (
	"context"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
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
	if time.Since(removed) > 30*time.Second { // the check is due within 10 s
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
	harness.Eventually(t, "the page of administrators is refused", func() bool { return b.Open(w.address("/admin"), nil).StatusCode != http.StatusOK })
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
