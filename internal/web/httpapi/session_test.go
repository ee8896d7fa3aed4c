package httpapi

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"codehub/api"
)

func TestSession(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	a := e.want(200, "", "POST", "/login", `{"username":"Ann","password":"`+password+`"}`, as(e.eve))
	u := read[api.User](t, a)
	cookies := (&http.Response{Header: a.header}).Cookies()
	if u.Username != "ann" || u.Admin || u.ID != e.ann.User.ID || len(cookies) != 1 || cookies[0].Value == e.eve.ID {
		t.Fatalf("%+v %v", u, cookies)
	}
	if c := cookies[0]; !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != "/" || len(c.Value) != 43 {
		t.Errorf("%s", c)
	}
	me := func(r *http.Request) { r.AddCookie(cookies[0]) }
	s := read[api.Session](t, e.want(200, "", "GET", "/session", "", me))
	if s.User != u || s.Kind != api.SessionCookie || s.ExpiresAt == nil {
		t.Errorf("%+v", s)
	}
	if got := read[api.User](t, e.want(200, "", "GET", "/users/me", "", me)); got != u {
		t.Errorf("%+v", got)
	}
	a = e.want(204, "", "POST", "/logout", "", me)
	if c := (&http.Response{Header: a.header}).Cookies(); len(c) != 1 || c[0].MaxAge >= 0 {
		t.Errorf("%v", c)
	}
	e.want(401, "unauthenticated", "GET", "/session", "", me)
	e.want(401, "bad_credentials", "POST", "/login", `{"username":"ann","password":"nonsense"}`)
	e.want(401, "bad_credentials", "POST", "/login", `{"username":"ann"}`)
	e.want(400, "invalid_request", "POST", "/login", `{"username":"ann","password":null,"otp":"1"}`)
}

func TestLoginLockout(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for _, name := range []string{"eve", "nobody"} {
		for range 5 {
			e.want(401, "bad_credentials", "POST", "/login", `{"username":"`+name+`","password":"nonsense"}`)
		}
		for _, pw := range []string{"nonsense", password} {
			a := e.want(429, "locked_out", "POST", "/login", `{"username":"`+name+`","password":"`+pw+`"}`)
			if secs, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || secs < 1 || secs > 30 {
				t.Errorf("Retry-After: %q", a.header.Get("Retry-After"))
			}
		}
	}
	e.want(200, "", "POST", "/login", `{"username":"ann","password":"`+password+`"}`)
}

func TestTokens(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	me := as(e.ann)
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	tok := read[api.Token](t, e.want(201, "", "POST", "/tokens", `{"name":" ci ","expires_at":"`+until.Format(time.RFC3339)+`"}`, me))
	if tok.Name != "ci" || !strings.HasPrefix(tok.Token, "chub_") || !tok.ExpiresAt.Equal(until) {
		t.Errorf("%+v", tok)
	}
	by := header(api.TokenHeader, tok.Token)
	s := read[api.Session](t, e.want(200, "", "GET", "/session", "", by))
	if s.Kind != api.SessionToken || !s.ExpiresAt.Equal(until) || s.User.Username != "ann" {
		t.Errorf("%+v", s)
	}
	l := read[api.TokenList](t, e.want(200, "", "GET", "/tokens", "", by))
	if len(l.Tokens) != 1 || l.Tokens[0].Token != "" || l.Tokens[0].ID != tok.ID || l.Tokens[0].LastUsedAt == nil {
		t.Errorf("%+v", l)
	}
	e.want(400, "invalid_request", "POST", "/logout", "", by)
	for _, body := range []string{`{}`, `{"name":""}`, `{"name":"` + strings.Repeat("x", 101) + `"}`, `{"name":"a\u0000"}`,
		`{"name":"x","expires_at":"2001-01-01T00:00:00Z"}`, `{"name":"x","expires_at":"x"}`, `{"name":"x","expires_at":"9999-12-31T23:59:59-12:00"}`, `{"name":"x","scope":"all"}`} {
		e.want(400, "invalid_request", "POST", "/tokens", body, me)
	}
	e.want(204, "", "DELETE", "/tokens/"+tok.ID, "", by)
	e.want(401, "unauthenticated", "GET", "/session", "", by)
	e.want(404, "not_found", "DELETE", "/tokens/"+tok.ID, "", me)
	if strings.Contains(e.log.String(), tok.Token) || strings.Contains(e.log.String(), e.ann.ID) || strings.Contains(e.log.String(), password) {
		t.Error("a secret is in the log")
	}
}

func TestSessions(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	login := func() (func(*http.Request), string) {
		t.Helper()
		a := e.want(200, "", "POST", "/login", `{"username":"ann","password":"`+password+`"}`, func(r *http.Request) { r.Header.Set("User-Agent", "Firefox on a phone") })
		cookie := (&http.Response{Header: a.header}).Cookies()[0]
		me := func(r *http.Request) { r.AddCookie(cookie) }
		for _, s := range read[api.SessionList](t, e.want(200, "", "GET", "/sessions", "", me)).Sessions {
			if s.Current {
				if s.UserAgent != "Firefox on a phone" || s.LastUsedAt == nil || time.Since(*s.LastUsedAt) > time.Minute {
					t.Errorf("%+v", s)
				}
				return me, s.ID
			}
		}
		t.Fatal("no session is the current one")
		return nil, ""
	}
	first, firstID := login()
	second, secondID := login()
	third, thirdID := login()
	if firstID == secondID || secondID == thirdID {
		t.Fatal("two sessions have one id")
	}
	// Only the user's own sessions, and only those that exist.
	e.want(403, "forbidden", "DELETE", "/sessions/"+firstID, "", as(e.eve))
	e.want(404, "not_found", "DELETE", "/sessions/nonsense", "", first)
	e.want(401, "unauthenticated", "GET", "/sessions", "")

	e.want(204, "", "DELETE", "/sessions/"+secondID, "", first)
	e.want(401, "unauthenticated", "GET", "/session", "", second)
	e.want(404, "not_found", "DELETE", "/sessions/"+secondID, "", first)

	e.want(200, "", "GET", "/session", "", third)
	ended := read[api.SessionsEnded](t, e.want(200, "", "DELETE", "/sessions", "", first))
	e.want(401, "unauthenticated", "GET", "/session", "", third)
	e.want(200, "", "GET", "/session", "", first)
	e.want(200, "", "GET", "/session", "", as(e.eve))
	list := read[api.SessionList](t, e.want(200, "", "GET", "/sessions", "", first)).Sessions
	if len(list) != 1 || list[0].ID != firstID || ended.Ended < 1 {
		t.Errorf("%+v, %d ended", list, ended.Ended)
	}
	if again := read[api.SessionsEnded](t, e.want(200, "", "DELETE", "/sessions", "", first)); again.Ended != 0 {
		t.Errorf("%d ended", again.Ended)
	}
}
