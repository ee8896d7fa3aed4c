package dashboard

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"html"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/harness/idp"
	"codehub/internal/users/signin"
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
			Settings: signin.Settings{Interval: refreshInterval, Grace: time.Hour}, URL: c.URL, Store: c.Store,
			Sessions: c.Auth, Log: c.Log,
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
