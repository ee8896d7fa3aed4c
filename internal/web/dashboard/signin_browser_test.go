package dashboard

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/testing/harness/idp"
	"codehub/internal/users/auth"
	"codehub/internal/users/signin"
)

// In a real browser: the login page in both languages, a login at the provider, the links on
// the account page, and an identity that is linked by a dialog.
func TestSignInInBrowser(t *testing.T) {
	t.Parallel()
	w := newSignInWorld(t, idp.Options{InIDToken: true}, nil)
	w.idp.Set("s1", idp.User{Username: "ann", Groups: []string{"developers"}})
	w.idp.Set("s2", idp.User{Username: "boss", Groups: []string{"admins"}})
	b := w.tab(w.idp.Issuer)
	b.expected = "Content Security Policy" // the provider's own pages load a font
	shots := t.ArtifactDir()
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/login")
		b.shown("#with-company")
		want := map[bool]string{true: "Company 계정으로 로그인", false: "Log in with Company"}[strings.HasPrefix(l.language, "ko")]
		b.until(fmt.Sprintf("document.querySelector('#with-company').textContent.trim() === %q", want))
		b.shoot(shots, l, "login-providers")
		b.visit("/login/company/callback?state=x")
		b.shown("#entry-problem")
		b.shoot(shots, l, "login-expired-wrong")
	}
	b.visit("/login?next=/settings/account")
	b.press("#with-company")
	b.enter("input[name=login]", "s1")
	b.enter("input[name=password]", "x\r")
	b.shown("#identities")
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/settings/account")
		b.shown("#identities")
		b.shoot(shots, l, "account-identity")
	}
	// The administrator has a password and links an identity.
	b.logIn()
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/settings/account")
		b.press("#link-company")
		b.shown("dialog[open] #f-current")
		b.shoot(shots, l, "link")
	}
	b.enter("#f-current", "wrong password\r")
	b.shown("#e-current")
	b.eval(`document.querySelector('#f-current').value = ''`)
	b.enter("#f-current", adminPassword+"\r")
	b.enter("input[name=login]", "s2")
	b.enter("input[name=password]", "x\r")
	b.shown("#identities [data-identity]")
	b.shown(".toast")
}

// In a real browser: a user allows the login of the command line, by the browser and by a
// code.
func TestProgramLoginInBrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	asked := make(chan url.Values, 1)
	program := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/callback" {
			asked <- r.URL.Query()
		}
		_, _ = rw.Write([]byte("You can close this page."))
	}))
	t.Cleanup(program.Close)
	address, err := url.Parse(program.URL)
	if err != nil {
		t.Fatal(err)
	}
	verifier := strings.Repeat("v", 43)
	sum := sha256.Sum256([]byte(verifier))
	page := "/cli-login?" + url.Values{"challenge": {base64.RawURLEncoding.EncodeToString(sum[:])}, "state": {"s"}, "name": {"laptop"}, "port": {address.Port()}}.Encode()
	b := w.tab(program.URL)
	b.visit(page) // leads to the login, and back
	b.enter("#username", "admin")
	b.enter("#password", adminPassword+"\r")
	b.shown("#allow")
	shots := t.ArtifactDir()
	for _, l := range b.screens() {
		b.as(l)
		b.visit(page)
		b.shown("#allow")
		b.shoot(shots, l, "program")
	}
	b.press("#allow")
	got := <-asked
	if got.Get("state") != "s" {
		t.Errorf("the program got %v", got)
	}
	if _, _, caller, err := w.Auth.RedeemLogin(t.Context(), got.Get("code"), verifier, nil, auth.Client{}); err != nil || caller.Username != "admin" {
		t.Errorf("%+v, %v", caller, err)
	}
	b.visit(page)
	b.press("#refuse")
	if got := <-asked; got.Get("error") != "access_denied" || got.Has("code") {
		t.Errorf("the program got %v", got)
	}

	d, err := w.Auth.BeginDevice(t.Context(), "build-machine", "", 0, auth.Client{Address: netip.MustParseAddr("203.0.113.7")})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/device")
		b.shoot(shots, l, "device")
		b.enter("#code", "WRNG-CODE\r")
		b.shown("#device-problem")
		b.shoot(shots, l, "device-wrong")
	}
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/device")
		b.enter("#code", strings.ToLower(d.UserCode)+"\r")
		b.shown("#allow")
		b.shoot(shots, l, "device-allow")
	}
	b.press("#allow")
	b.shown("#device-answer")
	if _, _, caller, err := w.Auth.RedeemLogin(t.Context(), d.DeviceCode, "", nil, auth.Client{}); err != nil || caller.Username != "admin" {
		t.Errorf("%+v, %v", caller, err)
	}
}

// The address of a program that logs in must be complete, and leads to this machine alone.
func TestProgramLoginAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	good := url.Values{"challenge": {base64.RawURLEncoding.EncodeToString(make([]byte, 32))}, "state": {"s"}, "name": {"laptop"}, "port": {"4000"}, "lasts": {"3600"},
		"expires": {time.Now().Add(time.Hour).UTC().Format(time.RFC3339)}, "answer": {"allow"}}
	if a := b.post("/cli-login", good); a.status != http.StatusSeeOther || !strings.HasPrefix(a.header.Get("Location"), "http://127.0.0.1:4000/callback?code=") {
		t.Errorf("%d %s", a.status, a.header.Get("Location"))
	}
	if a := b.get("/cli-login?" + good.Encode()); a.status != http.StatusOK || !strings.Contains(a.header.Get("Content-Security-Policy"), "form-action 'self' http://127.0.0.1:4000;") {
		t.Errorf("%d %s", a.status, a.header.Get("Content-Security-Policy"))
	}
	// The page says what is allowed: as whom, until when, and administration.
	page := b.get("/cli-login?" + good.Encode())
	_, until, _ := strings.Cut(page.body, `name="expires" value="`)
	until, _, _ = strings.Cut(until, `"`)
	if at, err := time.Parse(time.RFC3339, until); err != nil || at.After(time.Now().Add(time.Hour)) {
		t.Errorf("the token ends at %q, %v", until, err)
	}
	const code = "B4AH-HBNW"
	if code != api.LoginCode(good.Get("challenge")) {
		t.Errorf("the code is %s", api.LoginCode(good.Get("challenge")))
	}
	contains(t, "the page", page.body, code, "Compare this code", "use your account (admin)?", `datetime="`+until, "It can also administer codehub.")
	for name, bad := range map[string][]string{"lasts": {"-1", "x"}, "port": {"", "80", "65536", "4000@evil.example", "4000/x"}, "name": {""}, "challenge": {""}, "state": {strings.Repeat("s", 200)}} {
		for _, value := range bad {
			q := url.Values{}
			for k, v := range good {
				q[k] = v
			}
			q.Set(name, value)
			if a := b.get("/cli-login?" + q.Encode()); a.status != http.StatusNotFound {
				t.Errorf("%s=%q: %d", name, value, a.status)
			}
			if a := b.post("/cli-login", q); a.status != http.StatusNotFound {
				t.Errorf("POST %s=%q: %d", name, value, a.status)
			}
		}
	}
	// Another site cannot allow a login for its visitor.
	for _, path := range []string{"/cli-login", "/device"} {
		if a := b.post(path, good, "Sec-Fetch-Site", "cross-site"); a.status != http.StatusForbidden {
			t.Errorf("%s from another site: %d", path, a.status)
		}
	}
}

// Password logins that are turned off have no form, except after codehub reset-password.
func TestNoPasswordLoginPage(t *testing.T) {
	t.Parallel()
	w := newSignInWorld(t, idp.Options{}, func(map[string]any, *signin.Config) {})
	off := auth.New(w.DB, auth.Config{URL: w.URL, Log: w.dash.Log, CheapHashes: true, Settings: auth.Settings{NoPasswordLogin: true}})
	w.dash.Auth = off
	b := w.browser()
	if a := b.get("/login"); strings.Contains(a.body, `name="password"`) || !strings.Contains(a.body, "Log in with Company") {
		t.Error("the login page asks for a password")
	}
	if a := b.get("/login?with=password"); !strings.Contains(a.body, `name="password"`) {
		t.Error("there is no form for a password")
	}
	login := url.Values{"username": {"admin"}, "password": {adminPassword}}
	if a := b.post("/login", login); a.status != http.StatusUnauthorized || !strings.Contains(a.body, "turned off") {
		t.Errorf("a password login: %d", a.status)
	}
	if err := w.DB.AllowPasswordLogin(t.Context(), w.caller("admin").UserID, refreshInterval*1000); err != nil {
		t.Fatal(err)
	}
	if a := b.post("/login", login); a.status != http.StatusSeeOther {
		t.Errorf("after the reset: %d", a.status)
	}
	// A taken name leads to an administrator, and not to a login that is turned off.
	w.idp.Set("s1", idp.User{Username: "admin", Groups: []string{"developers"}})
	if p := w.signIn(idp.NewBrowser(t), "s1", ""); p.StatusCode != http.StatusConflict || strings.Contains(shownProblem(p), "its password") {
		t.Errorf("%d %s", p.StatusCode, shownProblem(p))
	}
	// The setup says what its password is good for.
	empty := newEmptyWorld(t, func(c *Config) { c.SignIn = w.service })
	empty.dash.Auth = auth.New(empty.DB, auth.Config{URL: empty.URL, Log: empty.dash.Log, CheapHashes: true, Settings: auth.Settings{NoPasswordLogin: true}})
	if a := empty.browser().get("/setup"); !strings.Contains(a.body, `id="password-once"`) {
		t.Errorf("the setup asks for a password without a note: %d", a.status)
	}
}
