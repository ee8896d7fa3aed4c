package dashboard

import (
	"context"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"codehub/api"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/harness/idp"
	"codehub/internal/users/auth"
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

func (w *signInWorld) tokenWorks(token string) bool {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set(api.TokenHeader, token)
	_, err := w.Auth.Identify(r, false)
	return err == nil
}

// The provider ends its session, and codehub's with it. API tokens stay.
func TestBackChannelLogout(t *testing.T) {
	t.Parallel()
	w := newSignInWorld(t, idp.Options{InIDToken: true}, nil)
	w.idp.Set("s1", idp.User{Username: "ann", Groups: []string{"developers"}})
	b, other := w.mustSignIn("s1"), w.mustSignIn("s1")
	_, token, err := w.Auth.CreateToken(t.Context(), auth.Identity{Caller: w.caller("ann")}, "x", nil, auth.TokenLimits{})
	if err != nil {
		t.Fatal(err)
	}
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
