package auth

import (
	"context"
	"encoding/hex"
	"log/slog"
	"net/http"
	"testing"

	"github.com/google/uuid"

	"codehub/internal/postgres"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"
)

// newWorkspace creates a workspace of the user and returns its host.
func (e *env) newWorkspace(caller workspace.Caller) workspace.Host {
	e.t.Helper()
	return workspace.Host{ID: e.AddWorkspace(caller, uuid.NewString()).ID}
}

// nonce returns the nonce cookie of a new browser and its hash.
func (e *env) nonce() (string, *http.Cookie) {
	hash, c := e.Nonce(request())
	return hash, c
}

func with(cookies ...*http.Cookie) *http.Request {
	r := request()
	for _, c := range cookies {
		r.AddCookie(c)
	}
	return r
}

// enter gives the session one on the host, and returns its cookie.
func (e *env) enter(s Session, host workspace.Host) *http.Cookie {
	e.t.Helper()
	hash, nonce := e.nonce()
	ticket, err := e.IssueTicket(e.t.Context(), s.Caller, host, hash)
	if err != nil {
		e.t.Fatal(err)
	}
	cookies, err := e.RedeemTicket(with(nonce), ticket, host)
	if err != nil {
		e.t.Fatal(err)
	}
	return cookies[0]
}

// inside returns the name of the user that a cookie is worth on a host, or the code of the error.
func (e *env) inside(host workspace.Host, cookies ...*http.Cookie) string {
	e.t.Helper()
	c, err := e.AuthenticateWorkspace(with(cookies...), host)
	if err == nil {
		return c.Username
	}
	if code := workspace.CodeOf(err); code != "" {
		return string(code)
	}
	e.t.Fatal(err)
	return ""
}

const refused = string(workspace.CodeUnauthenticated)

func TestTicketBecomesSessionOfHost(t *testing.T) {
	t.Parallel()
	for base, secure := range map[string]bool{"http://localhost:8080": false, "https://code.example.com": true} {
		e := newEnv(t, base)
		s := e.login()
		host, other := e.newWorkspace(s.Caller), e.newWorkspace(s.Caller)
		port := workspace.Host{ID: host.ID, Port: 3000}
		c := e.enter(s, host)
		if c.Secure != secure || !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != "/" || c.Domain != "" {
			t.Errorf("%s: the cookie is %v", base, c)
		}
		if got := e.inside(host, c); got != "ann" {
			t.Errorf("%s: on its host the cookie is %s", base, got)
		}
		caller, err := e.AuthenticateWorkspace(with(c), host)
		if own := hashSecret(c.Value); err != nil || caller.Session != hex.EncodeToString(own[:]) {
			t.Errorf("%s: the caller's session is %q, want that of the host: %v", base, caller.Session, err)
		}
		for name, elsewhere := range map[string]workspace.Host{"another workspace": other, "a port": port} {
			if got := e.inside(elsewhere, c); got != refused {
				t.Errorf("%s: on the host of %s the cookie is %s", base, name, got)
			}
		}
		if got := e.inside(port, e.enter(s, port)); got != "ann" {
			t.Errorf("%s: on the host of a port its cookie is %s", base, got)
		}
		// Neither kind of session is accepted as the other.
		if got := e.who(with(&http.Cookie{Name: e.cookieName(), Value: c.Value}), false); got != refused {
			t.Errorf("%s: on the main origin the cookie of a workspace is %s", base, got)
		}
		if got := e.inside(host, &http.Cookie{Name: c.Name, Value: s.ID}); got != refused {
			t.Errorf("%s: on a workspace's host the session of the main origin is %s", base, got)
		}
		if got := e.inside(host, e.Cookie(s)); got != refused {
			t.Errorf("%s: on a workspace's host the cookie of the main origin is %s", base, got)
		}
		if got := e.inside(host, &http.Cookie{Name: c.Name, Value: "planted"}, c); got != string(workspace.CodeCookieConflict) {
			t.Errorf("%s: with a planted cookie before it the cookie is %s", base, got)
		}
	}
}

func TestTicketIsRefused(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost:8080")
	s := e.login()
	host, other := e.newWorkspace(s.Caller), e.newWorkspace(s.Caller)
	issue := func() (string, *http.Cookie) {
		hash, nonce := e.nonce()
		ticket, err := e.IssueTicket(t.Context(), s.Caller, host, hash)
		if err != nil {
			t.Fatal(err)
		}
		return ticket, nonce
	}
	redeem := func(ticket string, host workspace.Host, cookies ...*http.Cookie) error {
		_, err := e.RedeemTicket(with(cookies...), ticket, host)
		return err
	}
	ticket, nonce := issue()
	if err := redeem(ticket, host); workspace.CodeOf(err) != workspace.CodeInvalid {
		t.Errorf("without a cookie: %v", err)
	}
	if err := redeem(ticket, host, nonce); workspace.CodeOf(err) != workspace.CodeUnauthenticated {
		t.Errorf("after a request without a cookie, whose page shows the ticket: %v", err)
	}
	ticket, nonce = issue()
	if err := redeem(ticket, host, nonce); err != nil {
		t.Fatalf("the first use: %v", err)
	}
	if err := redeem(ticket, host, nonce); workspace.CodeOf(err) != workspace.CodeUnauthenticated {
		t.Errorf("the second use: %v", err)
	}
	if err := redeem(ticket, host, &http.Cookie{Name: nonce.Name, Value: enteredValue(hashSecret("x"))}); workspace.CodeOf(err) != workspace.CodeInvalid {
		t.Errorf("with the cookie after entering: %v", err)
	}
	_, foreign := e.nonce()
	for name, use := range map[string]func(ticket string, nonce *http.Cookie) error{
		"another workspace": func(ticket string, nonce *http.Cookie) error { return redeem(ticket, other, nonce) },
		"a port": func(ticket string, nonce *http.Cookie) error {
			return redeem(ticket, workspace.Host{ID: host.ID, Port: 80}, nonce)
		},
		"another browser": func(ticket string, _ *http.Cookie) error { return redeem(ticket, host, foreign) },
		"too late": func(ticket string, nonce *http.Cookie) error {
			e.Change(`UPDATE tickets SET expires_at = now()`)
			return redeem(ticket, host, nonce)
		},
	} {
		ticket, nonce := issue()
		if err := use(ticket, nonce); workspace.CodeOf(err) != workspace.CodeUnauthenticated {
			t.Errorf("%s: %v", name, err)
		}
		if err := redeem(ticket, host, nonce); workspace.CodeOf(err) != workspace.CodeUnauthenticated {
			t.Errorf("after an attempt (%s) the ticket is valid: %v", name, err)
		}
	}
	for _, wrong := range []string{"", "x", ticket + "x"} {
		if err := redeem(wrong, host, nonce); workspace.CodeOf(err) != workspace.CodeUnauthenticated {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	// After the logout neither a ticket nor a session of the host is left.
	ticket, nonce = issue()
	inside := e.enter(s, host)
	if err := e.Logout(t.Context(), s.Caller); err != nil {
		t.Fatal(err)
	}
	if err := redeem(ticket, host, nonce); workspace.CodeOf(err) != workspace.CodeUnauthenticated {
		t.Errorf("after the logout: %v", err)
	}
	if got := e.inside(host, inside); got != refused {
		t.Errorf("after the logout the session of the host is %s", got)
	}
	hash, _ := e.nonce()
	if _, err := e.IssueTicket(t.Context(), s.Caller, host, hash); workspace.CodeOf(err) != workspace.CodeUnauthenticated {
		t.Errorf("a ticket after the logout: %v", err)
	}
	by := s.Caller
	by.Token = "id"
	if _, err := e.IssueTicket(t.Context(), by, host, hash); workspace.CodeOf(err) != workspace.CodeUnauthenticated {
		t.Errorf("a ticket for a caller with a token: %v", err)
	}
	if _, err := e.IssueTicket(t.Context(), s.Caller, host, "not a hash"); workspace.CodeOf(err) != workspace.CodeUnauthenticated {
		t.Errorf("a ticket for a nonce that is no hash: %v", err)
	}
}

// A ticket lets only the owner in, even if it was issued before the workspace changed hands.
func TestTicketOfFormerOwner(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost:8080")
	s := e.login()
	host := e.newWorkspace(s.Caller)
	bob, err := e.CreateUser(t.Context(), "bob", password, false)
	if err != nil {
		t.Fatal(err)
	}
	hash, nonce := e.nonce()
	ticket, err := e.IssueTicket(t.Context(), s.Caller, host, hash)
	if err != nil {
		t.Fatal(err)
	}
	e.Change(`UPDATE workspaces SET owner_user_id = $1 WHERE id = $2`, bob.ID, host.ID)
	if _, err := e.RedeemTicket(with(nonce), ticket, host); workspace.CodeOf(err) != workspace.CodeUnauthenticated {
		t.Errorf("%v", err)
	}
}

// The session of a host ends with the user's access and the workspace.
func TestSessionOfHostEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(e *env, s Session, host workspace.Host){
		"the user disabled": func(e *env, _ Session, _ workspace.Host) {
			e.Change(`UPDATE users SET disabled = true`)
			e.Invalidate(e.user.ID, "")
		},
		"the sessions of the workspace": func(e *env, s Session, host workspace.Host) {
			port := workspace.Host{ID: host.ID, Port: 3000}
			own, err := e.AuthenticateWorkspace(with(e.enter(s, port)), port)
			if err != nil {
				e.t.Fatal(err)
			}
			var ended []context.Context
			for _, session := range []string{own.Session, s.Caller.Session} {
				watched, stop := e.Watch(e.t.Context(), session)
				defer stop()
				ended = append(ended, watched)
			}
			e.Change(`DELETE FROM workspace_sessions`)
			e.InvalidateAll()
			if err := e.revalidate(e.t.Context()); err != nil {
				e.t.Fatal(err)
			}
			if ended[0].Err() == nil || ended[1].Err() != nil {
				e.t.Errorf("open connections: of the host %v, of the dashboard %v", ended[0].Err(), ended[1].Err())
			}
			if c := e.enter(s, host); e.inside(host, c) != "ann" {
				e.t.Error("the visitor cannot enter again")
			}
		},
		"the row of the workspace removed": func(e *env, _ Session, host workspace.Host) {
			e.Change(`DELETE FROM workspaces WHERE id = $1`, host.ID)
			e.InvalidateAll()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, "http://localhost:8080")
			s := e.login()
			host := e.newWorkspace(s.Caller)
			c := e.enter(s, host)
			if got := e.inside(host, c); got != "ann" {
				t.Fatalf("before: %s", got)
			}
			end(e, s, host)
			if got := e.inside(host, c); got != refused {
				t.Errorf("after: %s", got)
			}
		})
	}
}

func TestNonceIsKept(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost:8080")
	hash, c := e.nonce()
	again, same := e.Nonce(with(c))
	if again != hash || same.Value != c.Value || !c.HttpOnly || c.Path != "/" || c.SameSite != http.SameSiteLaxMode || c.MaxAge != 600 {
		t.Errorf("%v then %v", c, same)
	}
	if other, _ := e.nonce(); other == hash {
		t.Error("two browsers have the same nonce")
	}
	done := &http.Cookie{Name: c.Name, Value: enteredValue(hashSecret("session"))}
	session := &http.Cookie{Name: workspaceCookie, Value: "session"}
	planted := &http.Cookie{Name: workspaceCookie, Value: "planted"}
	if other, fresh := e.Nonce(with(done)); other == hash || fresh.Value == done.Value {
		t.Error("the cookie after entering is a nonce")
	}
	for name, tc := range map[string]struct {
		cookies []*http.Cookie
		want    bool
	}{
		"no cookies":              {nil, false},
		"a nonce":                 {[]*http.Cookie{c}, false},
		"the cookie was not kept": {[]*http.Cookie{done}, true},
		"another cookie was kept": {[]*http.Cookie{done, planted}, true},
		"the session has ended":   {[]*http.Cookie{done, session}, false},
		"another one as well":     {[]*http.Cookie{planted, session, done}, true},
	} {
		if got := e.Entered(with(tc.cookies...)); got != tc.want {
			t.Errorf("%s: Entered is %v", name, got)
		}
	}
}

// What one session leaves in the database is bounded, and expired tickets are removed.
func TestTicketsAreBounded(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost:8080")
	s := e.login()
	host := e.newWorkspace(s.Caller)
	hash, _ := e.nonce()
	for range 40 {
		if _, err := e.IssueTicket(t.Context(), s.Caller, host, hash); err != nil {
			t.Fatal(err)
		}
	}
	var last *http.Cookie
	for range 20 {
		last = e.enter(s, host)
	}
	if got := e.inside(host, last); got != "ann" {
		t.Errorf("the newest session is %s", got)
	}
	count := func(table string) int { return fixture.Query[int](e, `SELECT count(*) FROM `+table) }
	if tickets, sessions := count("tickets"), count("workspace_sessions"); tickets > 32 || sessions != 16 {
		t.Errorf("%d tickets and %d sessions are left", tickets, sessions)
	}
	e.Change(`UPDATE tickets SET expires_at = now() - interval '1 second'`)
	if _, err := e.DB.DeleteExpiredTickets(t.Context()); err != nil || count("tickets") != 0 {
		t.Errorf("%d expired tickets are left, %v", count("tickets"), err)
	}
}

// FuzzTicket checks that no other string is accepted for a ticket or a nonce.
func FuzzTicket(f *testing.F) {
	f.Add("", "")
	f.Add("x", "entered")
	a := New(fixture.NewDatabase(f, postgres.Options{}).DB, Config{Log: slog.New(slog.DiscardHandler)})
	f.Fuzz(func(t *testing.T, ticket, nonce string) {
		r := request()
		r.Header.Set("Cookie", nonceCookie+"="+nonce)
		if _, err := a.RedeemTicket(r, ticket, workspace.Host{}); err == nil {
			t.Fatalf("%q with %q is accepted", ticket, nonce)
		}
		hash, c := a.Nonce(r)
		if _, ok := decodeSession(hash); !ok || len(c.Value) != len(newSessionID()) || c.Valid() != nil {
			t.Fatalf("%q: the nonce is %v", nonce, c)
		}
	})
}
