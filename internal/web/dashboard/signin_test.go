package dashboard

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"codehub/internal/postgres"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/harness/idp"
	"codehub/internal/users/auth"
	"codehub/internal/users/signin"
	"codehub/internal/workspace"
)

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

// TestSignInOfMovedUser: a user who was moved with the account of the identity provider logs in with it, and
// no other account of that name does.
func TestSignInOfMovedUser(t *testing.T) {
	t.Parallel()
	w := newSignInWorld(t, idp.Options{}, nil)
	source, old := uuid.NewString(), uuid.NewString()
	id, err := w.DB.AddArrivedUser(t.Context(), postgres.ArrivedUser{Source: source, OldID: old, User: postgres.User{Username: "ann"}, Identities: []postgres.ArrivedIdentity{{Issuer: w.idp.Issuer, Subject: "s1", Username: "ann"}}})
	if err != nil {
		t.Fatal(err)
	}
	w.idp.Set("s1", idp.User{Username: "ann", Groups: []string{"developers"}})
	w.idp.Set("s2", idp.User{Username: "ann", Groups: []string{"developers"}})
	other := idp.NewBrowser(t)
	w.refused(other, w.signIn(other, "s2", ""), http.StatusConflict, signin.NameTaken)
	if who := w.loggedInAs(w.mustSignIn("s1")); who != "ann" {
		t.Errorf("logged in as %q", who)
	}
	if n := fixture.Query[int](w, `SELECT count(*) FROM user_identities WHERE user_id = $1 AND active AND refresh_token IS NOT NULL`, id); n != 1 {
		t.Errorf("%d identities are checked again", n)
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
	for _, next := range []string{"/\\evil.example", "/login/company", strings.Repeat("/x", 900)} {
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
