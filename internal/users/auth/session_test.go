package auth

import (
	"encoding/hex"
	"net/http"
	"strings"
	"testing"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"

	"github.com/google/go-cmp/cmp"
)

func TestCookie(t *testing.T) {
	t.Parallel()
	for base, want := range map[string]struct {
		name   string
		secure bool
	}{
		"http://localhost:8080":   {"codehub_session", false},
		"https://hub.example.com": {"__Host-codehub_session", true},
	} {
		e := newEnv(t, base)
		s := e.login()
		for _, c := range []*http.Cookie{e.Cookie(s), e.ClearCookie()} {
			if c.Name != want.name || c.Secure != want.secure || !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != "/" || c.Domain != "" {
				t.Errorf("%s: %s", base, c)
			}
			if err := c.Valid(); err != nil {
				t.Error(err)
			}
		}
		if c := e.Cookie(s); c.MaxAge < int((SessionLifetime-time.Minute)/time.Second) || !c.Expires.Equal(s.Expires) {
			t.Errorf("the cookie holds until %v, the session until %v", c.Expires, s.Expires)
		}
		if c := e.ClearCookie(); c.MaxAge >= 0 || c.Value != "" {
			t.Errorf("cleared: %s", c)
		}
		other := map[string]string{plainCookie: secureCookie, secureCookie: plainCookie}[want.name]
		if got := e.who(request(cookie(want.name, s.ID)), false); got != "ann" {
			t.Errorf("%s: %s", base, got)
		}
		if got := e.who(request(cookie(other, s.ID)), false); got != "unauthenticated" {
			t.Errorf("%s, by the cookie %s: %s", base, other, got)
		}
	}
}

func TestIdentify(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost")
	s := e.login()
	if _, err := e.CreateUser(t.Context(), "eve", password, false); err != nil {
		t.Fatal(err)
	}
	eve, err := e.Login(t.Context(), "eve", password, from)
	if err != nil {
		t.Fatal(err)
	}
	_, token, err := e.CreateToken(t.Context(), Identity{Caller: s.Caller}, "ci", nil, TokenLimits{})
	if err != nil {
		t.Fatal(err)
	}
	mine, hers := cookie(plainCookie, s.ID), cookie(plainCookie, eve.ID)
	const no, conflict = "unauthenticated", "cookie_conflict"
	for name, c := range map[string]struct {
		r      *http.Request
		bearer bool
		want   string
	}{
		"nothing":                          {request(), true, no},
		"session":                          {request(mine), false, "ann"},
		"garbage":                          {request(cookie(plainCookie, "x")), false, no},
		"the hash instead of the id":       {request(cookie(plainCookie, s.Caller.Session)), false, no},
		"a token as a cookie":              {request(cookie(plainCookie, token)), false, no},
		"token":                            {request(tokenHeader(token)), false, "ann"},
		"a session id as a token":          {request(tokenHeader(s.ID)), true, no},
		"a token cut short":                {request(tokenHeader(token[:len(token)-1])), true, no},
		"token twice":                      {request(tokenHeader(token), tokenHeader(token)), true, no},
		"a bad token and a session":        {request(tokenHeader("chub_x"), mine), true, no},
		"bearer":                           {request(header("Authorization", "Bearer "+token)), true, "ann"},
		"bearer in lower case":             {request(header("Authorization", "bearer "+token)), true, "ann"},
		"bearer where it is not allowed":   {request(header("Authorization", "Bearer "+token)), false, no},
		"basic":                            {request(header("Authorization", "Basic "+token)), true, no},
		"a strange bearer":                 {request(header("Authorization", "Bearer abc"), mine), true, no},
		"a strange bearer, not ours":       {request(header("Authorization", "Bearer abc"), mine), false, "ann"},
		"bearer twice":                     {request(header("Authorization", "Bearer "+token), header("Authorization", "Bearer "+token)), true, no},
		"two cookies, one garbage":         {request(cookie(plainCookie, "x"), mine), false, conflict},
		"two cookies, mine twice":          {request(mine, mine), false, "ann"},
		"two cookies, hers slipped in":     {request(hers, mine), false, conflict},
		"two cookies, hers behind":         {request(mine, hers), false, conflict},
		"four planted cookies":             {request(hers, hers, hers, hers, mine), false, conflict},
		"a planted cookie and a token":     {request(hers, mine, tokenHeader(token)), false, "ann"},
		"a cookie of another name":         {request(cookie("session", s.ID)), false, no},
		"another's, by header over cookie": {request(tokenHeader(token), hers), false, "ann"},
	} {
		if got := e.who(c.r, c.bearer); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	c, err := e.Authenticate(request(mine), false)
	want := workspace.Caller{UserID: e.user.ID, Username: "ann", Session: c.Session, Address: c.Address}
	if err != nil || c != want || len(c.Session) != 64 || strings.Contains(c.Session, s.ID) {
		t.Errorf("%+v, %v", c, err)
	}
}

// Ended sessions are refused at once after the event, and within a minute without
// it.
func TestEndedSessions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end   func(e *env, s Session)
		event func(e *env, s Session)
	}{
		"logged out here": {
			end: func(e *env, s Session) {
				if err := e.Logout(e.t.Context(), s.Caller); err != nil {
					e.t.Error(err)
				}
			},
			event: func(*env, Session) {},
		},
		"logged out elsewhere": {
			end:   func(e *env, s Session) { e.Change(`DELETE FROM sessions`) },
			event: func(e *env, s Session) { e.Invalidate(s.User.ID, s.Caller.Session) },
		},
		"disabled": {
			end:   func(e *env, s Session) { e.Change(`UPDATE users SET disabled = true`) },
			event: func(e *env, s Session) { e.Invalidate(s.User.ID, "") },
		},
		"new password": {
			end: func(e *env, s Session) {
				if _, err := e.DB.SetPassword(e.t.Context(), s.Caller, s.User.PasswordHash, "$x", nil); err != nil {
					e.t.Error(err)
				}
			},
			event: func(e *env, s Session) { e.Invalidate(s.User.ID, "") },
		},
		"events were missed": {
			end:   func(e *env, s Session) { e.Change(`DELETE FROM sessions`) },
			event: func(e *env, s Session) { e.InvalidateAll() },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, "http://localhost")
			for _, notified := range []bool{true, false} {
				e.Change(`UPDATE users SET disabled = false, password_hash = $1`, e.user.PasswordHash)
				s := e.login()
				r := request(cookie(plainCookie, s.ID))
				if got := e.who(r, false); got != "ann" {
					t.Fatal(got)
				}
				c.end(e, s)
				if notified {
					c.event(e, s)
				} else {
					e.skew.Store(int64(cacheTTL))
				}
				if got := e.who(r, false); got != "unauthenticated" {
					t.Errorf("notified %v: %s", notified, got)
				}
			}
		})
	}
}

func TestSessionExpires(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost")
	s := e.login()
	e.Change(`UPDATE sessions SET expires_at = now() + interval '30 seconds'`)
	r := request(cookie(plainCookie, s.ID))
	if got := e.who(r, false); got != "ann" {
		t.Fatal(got)
	}
	e.skew.Store(int64(31 * time.Second)) // still within the cache's minute
	if got := e.who(r, false); got != "unauthenticated" {
		t.Errorf("expired: %s", got)
	}
}

// A change of the password does not make the login last longer: it needs no passkey.
func TestPasswordChangeKeepsEndOfSession(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost")
	s := e.login()
	e.Change(`UPDATE sessions SET expires_at = date_trunc('second', now() + interval '1 day')`)
	ends := fixture.Query[time.Time](e.Database, `SELECT expires_at FROM sessions`)
	next, err := e.ChangePassword(t.Context(), s.Caller, password, "another horse", from)
	if err != nil {
		t.Fatal(err)
	}
	stored := fixture.Query[time.Time](e.Database, `SELECT expires_at FROM sessions`)
	if !next.Expires.Equal(ends) || !stored.Equal(ends) {
		t.Errorf("it ends at %v, in the database at %v; want %v", next.Expires, stored, ends)
	}
	if cookie := e.Cookie(next); cookie.MaxAge > 24*60*60 {
		t.Errorf("the cookie lasts %d s", cookie.MaxAge)
	}
	e.Change(`UPDATE sessions SET expires_at = now()`)
	if _, err := e.ChangePassword(t.Context(), next.Caller, "another horse", password, from); workspace.CodeOf(err) != workspace.CodeUnauthenticated {
		t.Errorf("with a session that has ended: %v", err)
	}
}

// Without the database cached sessions stay valid for a minute.
func TestCacheDuringDatabaseOutage(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost")
	s := e.login()
	r := request(cookie(plainCookie, s.ID))
	e.who(r, false)
	e.DB.Close()
	if got := e.who(r, false); got != "ann" {
		t.Errorf("remembered: %s", got)
	}
	e.skew.Store(int64(cacheTTL))
	if _, err := e.Authenticate(r, false); err == nil || workspace.CodeOf(err) == workspace.CodeUnauthenticated {
		t.Errorf("after a minute: %v", err)
	}
}

// An invalidation during a load is not lost.
func TestInvalidationDuringLoad(t *testing.T) {
	t.Parallel()
	c, now := newCache(10), time.Now()
	h := hashSecret("x")
	seen := c.generation()
	c.drop(func(secretHash, Identity) bool { return false })
	c.put(h, Identity{}, now, seen)
	if _, ok := c.get(h, now); ok {
		t.Error("what was read before the invalidation was remembered after it")
	}
	c.put(h, Identity{}, now, c.generation())
	if _, ok := c.get(h, now); !ok {
		t.Error("what was read after it was not")
	}
}

func entries(c *cache) int {
	n := 0
	c.by.Range(func(any, any) bool { n++; return true })
	return n
}

func TestCacheIsLimited(t *testing.T) {
	t.Parallel()
	c, now := newCache(64), time.Now()
	for i := range 1000 {
		c.put(hashSecret(string(rune(i))), Identity{}, now, 0)
		if n := entries(c); n > 64 || n != c.n {
			t.Fatalf("%d are remembered, counted %d", n, c.n)
		}
	}
	if n := entries(c); n < 32 {
		t.Errorf("only %d are remembered", n)
	}
	c.drop(func(secretHash, Identity) bool { return true })
	if n := entries(c); n != 0 || c.n != 0 {
		t.Errorf("%d are remembered, counted %d", n, c.n)
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost")
	ctx := t.Context()
	s := e.login()
	by := Identity{Caller: s.Caller, Expires: s.Expires}
	past, soon, late := time.Now().Add(-time.Second), time.Now().Add(time.Hour), time.Now().Add(48*time.Hour)

	if _, _, err := e.CreateToken(ctx, by, "x", &past, TokenLimits{}); workspace.CodeOf(err) != workspace.CodeInvalid {
		t.Errorf("over before it begins: %v", err)
	}
	forever, secret, err := e.CreateToken(ctx, by, "forever", nil, TokenLimits{})
	if err != nil || forever.ExpiresAt != nil || !IsToken(secret) || len(secret) != 57 {
		t.Fatalf("%+v, %q, %v", forever, secret, err)
	}
	short, shortSecret, err := e.CreateToken(ctx, by, "short", &soon, TokenLimits{})
	if err != nil {
		t.Fatal(err)
	}
	// A token created with a token does not outlive it.
	parent, err := e.Identify(request(tokenHeader(shortSecret)), false)
	if err != nil || parent.Caller.Token != short.ID {
		t.Fatalf("%+v, %v", parent, err)
	}
	for _, want := range []*time.Time{nil, &late} {
		child, _, err := e.CreateToken(ctx, parent, "child", want, TokenLimits{})
		if err != nil || child.ExpiresAt == nil || !child.ExpiresAt.Equal(*short.ExpiresAt) {
			t.Errorf("child that wanted %v: %+v, %v", want, child, err)
		}
	}
	if err := e.Logout(ctx, parent.Caller); workspace.CodeOf(err) != workspace.CodeInvalid {
		t.Errorf("a token logs out: %v", err)
	}

	r := request(tokenHeader(secret))
	if got := e.who(r, false); got != "ann" {
		t.Error(got)
	}
	list, _, err := e.Tokens(ctx, s.Caller, postgres.Page{})
	if err != nil || len(list) != 4 {
		t.Fatalf("%d tokens, %v", len(list), err)
	}
	for _, tok := range list {
		if used := tok.LastUsedAt != nil; used != (tok.ID == forever.ID || tok.ID == short.ID) {
			t.Errorf("%s used: %v", tok.Name, used)
		}
	}
	if err := e.DeleteToken(ctx, s.Caller, forever.ID); err != nil {
		t.Fatal(err)
	}
	if got := e.who(r, false); got != "unauthenticated" {
		t.Errorf("deleted: %s", got)
	}
	e.skew.Store(int64(2 * time.Hour))
	if got := e.who(request(tokenHeader(shortSecret)), false); got != "unauthenticated" {
		t.Errorf("expired: %s", got)
	}
}

func TestValid(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost")
	a, b := e.login(), e.login()
	_, secret, err := e.CreateToken(t.Context(), Identity{Caller: a.Caller}, "x", nil, TokenLimits{})
	if err != nil {
		t.Fatal(err)
	}
	h := hashSecret(secret)
	token := hex.EncodeToString(h[:])
	if err := e.Logout(t.Context(), b.Caller); err != nil {
		t.Fatal(err)
	}
	got, err := e.Valid(t.Context(), []string{a.Caller.Session, b.Caller.Session, token, "", "zz", strings.Repeat("0", 64)})
	if err != nil || cmp.Diff(map[string]bool{a.Caller.Session: true, token: true}, got) != "" {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := e.Valid(t.Context(), nil); err != nil || len(got) != 0 {
		t.Errorf("of none: %v, %v", got, err)
	}
}
