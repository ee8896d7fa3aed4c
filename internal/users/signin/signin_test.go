package signin

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/go-cmp/cmp"

	"codehub/internal/postgres"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"
)

func claimsOf(t *testing.T, s string) claimSet {
	t.Helper()
	var c claimSet
	if err := json.Unmarshal([]byte(s), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestGroupsClaim(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		claims, name string
		want         []string
		bad          bool
	}{
		{`{"groups":["a","b"]}`, "groups", []string{"a", "b"}, false},
		{`{"groups":"a"}`, "groups", []string{"a"}, false},
		{`{"groups":null}`, "groups", nil, false},
		{`{}`, "groups", nil, false},
		{`{"groups":[]}`, "groups", []string{}, false},
		{`{"groups":{"a":1}}`, "groups", nil, true},
		{`{"groups":[1]}`, "groups", nil, true},
		{`{"realm_access":{"roles":["a"]}}`, "realm_access.roles", []string{"a"}, false},
		{`{"https://example.com/groups":["a"]}`, "https://example.com/groups", []string{"a"}, false},
		{`{"realm_access":"x"}`, "realm_access.roles", nil, false},
		{`{"_claim_names":{"groups":"src1"}}`, "groups", nil, true},
	} {
		got, err := claimsOf(t, c.claims).groups(c.name)
		if (err != nil) != c.bad || !cmp.Equal(got, c.want) {
			t.Errorf("%s: %q, %v", c.claims, got, err)
		}
	}
}

func TestGroupsDecide(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	for _, c := range []struct {
		allowed, admins, groups []string
		want                    access
	}{
		{nil, nil, nil, access{allowed: true}},
		{[]string{"a"}, nil, nil, access{}},
		{[]string{"a"}, nil, []string{"A", "aa", ""}, access{}},
		{[]string{"a"}, nil, []string{"b", "a"}, access{allowed: true}},
		{[]string{"a"}, []string{"x"}, []string{"a"}, access{allowed: true, admin: &no}},
		{[]string{"a"}, []string{"x"}, []string{"x"}, access{allowed: true, admin: &yes}},
		{[]string{"a"}, []string{"x"}, nil, access{admin: &no}},
		{nil, []string{"x"}, nil, access{allowed: true, admin: &no}},
	} {
		got := ProviderConfig{AllowedGroups: c.allowed, AdminGroups: c.admins}.decide(c.groups)
		if !cmp.Equal(got, c.want, cmp.AllowUnexported(access{})) {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}

func TestUsernameOfClaim(t *testing.T) {
	t.Parallel()
	for claim, want := range map[string]string{
		"ann": "ann", " Ann Lee ": "Ann-Lee", "ann@example.com": "ann@example.com", "EXAMPLE\\ann": "EXAMPLE-ann", "..ann": "ann",
		"김 안": "김-안", "\u3164": "", "": "", "///": "", "a\x00b": "ab", "a\u200bb": "ab", "-_@": "", "ann!": "ann", strings.Repeat("x", 99): strings.Repeat("x", 64),
		"a\xffb": "ab", "e\u0301": "é",
	} {
		if got := usernameOf(claim); got != want {
			t.Errorf("%q became %q, want %q", claim, got, want)
		}
	}
}

// What was sealed with one secret, for one purpose or subject, opens with no other.
func TestSeal(t *testing.T) {
	t.Parallel()
	sealerOf := func(purpose string, secrets ...string) *sealer {
		s, err := newSealer(secrets, purpose)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first := sealerOf("p", "one")
	sealed := first.seal([]byte("token"), "ann")
	if b, err := first.open(sealed, "ann"); err != nil || string(b) != "token" {
		t.Errorf("%q, %v", b, err)
	}
	if b, err := sealerOf("p", "two", "one").open(sealed, "ann"); err != nil || string(b) != "token" {
		t.Errorf("with the former secret second: %q, %v", b, err)
	}
	for name, open := range map[string]func() ([]byte, error){
		"another secret":  func() ([]byte, error) { return sealerOf("p", "two").open(sealed, "ann") },
		"another purpose": func() ([]byte, error) { return sealerOf("q", "one").open(sealed, "ann") },
		"another subject": func() ([]byte, error) { return first.open(sealed, "bob") },
		"a changed byte": func() ([]byte, error) {
			b := append([]byte(nil), sealed...)
			b[len(b)-1] ^= 1
			return first.open(b, "ann")
		},
		"nothing": func() ([]byte, error) { return first.open(nil, "ann") },
	} {
		if _, err := open(); err == nil {
			t.Errorf("%s opened it", name)
		}
	}
	if string(first.seal([]byte("token"), "ann")) == string(sealed) {
		t.Error("two seals are equal")
	}
}

func TestProvidersFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	secret, short := write("secret", "0123456789abcdef\nformer 0123456789\n"), write("short", "short")
	provider := func(more string) string {
		return `{"id":"company","issuer":"https://login.example.com","client_id":"c","client_secret_file":"` + secret + `"` + more + `}`
	}
	s := Settings{File: write("good.json", `{"providers":[`+provider(`,"allowed_groups":["a"]`)+`]}`)}
	if err := s.Resolve(); err != nil {
		t.Fatal(err)
	}
	if p := s.Providers[0]; p.Name != "company" || p.UsernameClaim != "preferred_username" || p.GroupsClaim != "groups" || len(p.secrets) != 2 || len(p.Scopes) != 2 {
		t.Errorf("%+v", p)
	}
	if strings.Contains(s.Clients()+s.Groups(), "0123456789") {
		t.Error("the comparison has the secret")
	}
	for name, text := range map[string]string{
		"not JSON":          `providers: []`,
		"no provider":       `{"providers":[]}`,
		"unknown field":     `{"providers":[` + provider(`,"client_secret":"x"`) + `]}`,
		"two objects":       `{"providers":[` + provider("") + `]}{}`,
		"same id":           `{"providers":[` + provider("") + `,` + provider("") + `]}`,
		"same issuer":       `{"providers":[` + provider("") + `,` + strings.Replace(provider(""), "company", "other", 1) + `]}`,
		"bad id":            `{"providers":[` + strings.Replace(provider(""), "company", "Com/pany", 1) + `]}`,
		"plain http":        `{"providers":[` + strings.Replace(provider(""), "https:", "http:", 1) + `]}`,
		"issuer with query": `{"providers":[` + strings.Replace(provider(""), "example.com", "example.com/?a=b", 1) + `]}`,
		"reserved":          `{"providers":[` + provider(`,"parameters":{"nonce":"x"}`) + `]}`,
		"short secret":      `{"providers":[` + strings.Replace(provider(""), secret, short, 1) + `]}`,
		"no secret":         `{"providers":[` + strings.Replace(provider(""), secret, dir+"/nothing", 1) + `]}`,
		"bad auth method":   `{"providers":[` + provider(`,"token_endpoint_auth_method":"none"`) + `]}`,
		"bad name":          `{"providers":[` + provider(`,"name":"a\nb"`) + `]}`,
	} {
		s := Settings{File: write("bad.json", text)}
		if err := s.Resolve(); err == nil {
			t.Errorf("%s is accepted", name)
		} else if strings.Contains(err.Error(), "0123456789") {
			t.Errorf("%s: the error has the secret: %v", name, err)
		}
	}
}

// fakeProvider is a provider whose tokens the test signs.
type fakeProvider struct {
	*httptest.Server
	key  *rsa.PrivateKey
	keys atomic.Int64 // requests for the keys
	// answer is how the keys are answered; nil: as they should be.
	answer atomic.Pointer[func(http.ResponseWriter)]
}

func newFakeProvider(t *testing.T) *fakeProvider {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeProvider{key: key}
	mux := http.NewServeMux()
	f.Server = httptest.NewServer(mux)
	t.Cleanup(f.Close)
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"issuer":%q,"authorization_endpoint":%q,"token_endpoint":%q,"jwks_uri":%q,"id_token_signing_alg_values_supported":["RS256"]}`,
			f.URL, f.URL+"/auth", f.URL+"/token", f.URL+"/keys")
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, r *http.Request) {
		f.keys.Add(1)
		if answer := f.answer.Load(); answer != nil {
			(*answer)(w)
			return
		}
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k", Algorithm: "RS256", Use: "sig"}}})
	})
	mux.HandleFunc("/redirects/", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/auth", http.StatusTemporaryRedirect)
	})
	mux.HandleFunc("/large/", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.CopyN(w, zeros{}, 64<<20)
	})
	return f
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

func sign(t *testing.T, key *rsa.PrivateKey, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: key, KeyID: "k"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(b)
	if err != nil {
		t.Fatal(err)
	}
	s, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Logout tokens that a provider has not issued for codehub, for a logout and for now are
// refused; a good one counts once. A flood of forged ones does not become one of requests.
func TestLogoutTokens(t *testing.T) {
	t.Parallel()
	f := newFakeProvider(t)
	stranger, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	base, _ := url.Parse("https://codehub.example.com")
	db := fixture.NewDatabase(t, postgres.Options{})
	s, err := New(Config{URL: base, Store: db.DB, Log: slog.New(slog.DiscardHandler), Settings: Settings{Providers: []ProviderConfig{
		{ID: "company", Issuer: f.URL, ClientID: "codehub", secrets: []string{"a secret of some length"}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	const event = "http://schemas.openid.net/event/backchannel-logout"
	n := 0
	good := func() map[string]any {
		n++
		now := time.Now()
		return map[string]any{"iss": f.URL, "aud": "codehub", "iat": now.Unix(), "exp": now.Add(time.Minute).Unix(), "jti": fmt.Sprint("t", n), "sub": "s1", "sid": "x",
			"events": map[string]any{event: map[string]any{}}}
	}
	ask := func(token string) workspace.Code {
		return workspace.CodeOf(s.Logout(t.Context(), "company", token))
	}
	token := sign(t, f.key, good())
	if code := ask(token); code != "" {
		t.Fatal(code)
	}
	if got := fixture.Query[string](db, `SELECT concat_ws(' ', issuer, subject, provider_session) FROM provider_logouts`); got != f.URL+" s1 x" {
		t.Errorf("recorded %s", got)
	}
	if code := ask(token); code != workspace.CodeInvalid {
		t.Errorf("a second time: %q", code)
	}
	for name, change := range map[string]func(map[string]any){
		"another issuer":   func(c map[string]any) { c["iss"] = "https://evil.example" },
		"another audience": func(c map[string]any) { c["aud"] = "other" },
		"no audience":      func(c map[string]any) { delete(c, "aud") },
		"a nonce":          func(c map[string]any) { c["nonce"] = "n" },
		"no event":         func(c map[string]any) { delete(c, "events") },
		"another event":    func(c map[string]any) { c["events"] = map[string]any{"x": map[string]any{}} },
		"nobody":           func(c map[string]any) { delete(c, "sub"); delete(c, "sid") },
		"no id":            func(c map[string]any) { delete(c, "jti") },
		"expired":          func(c map[string]any) { c["exp"] = time.Now().Add(-2 * time.Minute).Unix() },
		"old":              func(c map[string]any) { c["iat"] = time.Now().Add(-time.Hour).Unix() },
		"of the future":    func(c map[string]any) { c["iat"] = time.Now().Add(time.Hour).Unix() },
		"a long id":        func(c map[string]any) { c["jti"] = strings.Repeat("x", 300) },
	} {
		c := good()
		change(c)
		if code := ask(sign(t, f.key, c)); code != workspace.CodeInvalid {
			t.Errorf("%s: %q", name, code)
		}
	}
	before := f.keys.Load()
	for range 50 {
		if code := ask(sign(t, stranger, good())); code != workspace.CodeInvalid {
			t.Errorf("another key: %q", code)
		}
	}
	if asked := f.keys.Load() - before; asked > 2 {
		t.Errorf("50 forged tokens caused %d requests for the keys", asked)
	}
	for _, token := range []string{"", "x", "a.b.c", strings.Repeat("x", 1<<20), "eyJhbGciOiJub25lIn0." + strings.Split(token, ".")[1] + "."} {
		if code := ask(token); code != workspace.CodeInvalid {
			t.Errorf("%.20q: %q", token, code)
		}
	}
	if code := workspace.CodeOf(s.Logout(t.Context(), "other", token)); code != workspace.CodeNotFound {
		t.Errorf("an unknown provider: %q", code)
	}
}

// While a provider does not send its keys, logout tokens are to be sent again, forged ones
// cause no flood of requests or log, and other requests to the provider do not wait.
func TestKeysFail(t *testing.T) {
	t.Parallel()
	f := newFakeProvider(t)
	base, _ := url.Parse("https://codehub.example.com")
	var log lockedBuffer
	s, err := New(Config{URL: base, Log: slog.New(slog.NewTextHandler(&log, nil)), Settings: Settings{Providers: []ProviderConfig{
		{ID: "company", Issuer: f.URL, ClientID: "codehub", secrets: []string{"a secret of some length"}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	token := sign(t, f.key, map[string]any{"iss": f.URL})
	fails := func(w http.ResponseWriter) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, strings.Repeat("x", 1<<16))
	}
	f.answer.Store(&fails)
	ask := func() int {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(url.Values{"logout_token": {token}}.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		s.ServeLogout(w, r.WithContext(t.Context()), "company")
		return w.Code
	}
	for range 100 {
		if status := ask(); status != http.StatusServiceUnavailable {
			t.Fatalf("status %d", status)
		}
	}
	if n := f.keys.Load(); n > 2 {
		t.Errorf("100 tokens caused %d requests for the keys", n)
	}
	if n := log.len(); n > 100*1000 {
		t.Errorf("100 tokens caused a log of %d bytes", n)
	}
	// The keys hang.
	hang, asked := make(chan struct{}), make(chan struct{})
	hangs := func(http.ResponseWriter) { close(asked); <-hang }
	f.answer.Store(&hangs)
	p := s.providers[0]
	p.client.Transport.(*transport).last = nil
	var waiting sync.WaitGroup
	waiting.Go(func() {
		for { // the library answers with the last failure until its goroutine has ended
			ask()
			select {
			case <-asked:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	defer func() { close(hang); waiting.Wait() }()
	<-asked
	resp, err := p.client.Get(f.URL + "/.well-known/openid-configuration")
	if err != nil {
		t.Fatalf("another request: %v", err)
	}
	resp.Body.Close()
}

type lockedBuffer struct {
	mu sync.Mutex
	n  int
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n += len(p)
	return len(p), nil
}

func (b *lockedBuffer) len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n
}

// The client follows no redirects and reads no endless answers.
func TestClientIsBounded(t *testing.T) {
	t.Parallel()
	f := newFakeProvider(t)
	c, err := newClient("")
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Post(f.URL+"/redirects/", "text/plain", strings.NewReader("secret"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusTemporaryRedirect {
		t.Errorf("the redirect was followed: %d", resp.StatusCode)
	}
	if resp, err = c.Get(f.URL + "/large/"); err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if n, err := io.Copy(io.Discard, resp.Body); err == nil || n > maxAnswer {
		t.Errorf("read %d bytes, %v", n, err)
	}
}

// The interval is kept with the pauses between two passes.
func TestIntervalIsKept(t *testing.T) {
	t.Parallel()
	for _, interval := range []time.Duration{time.Second, 10 * time.Second, 5 * time.Minute, 10 * time.Minute} {
		if age(interval) <= 0 || age(interval)+pause(interval) >= interval || pause(interval) <= 0 {
			t.Errorf("%v: age %v, pause %v", interval, age(interval), pause(interval))
		}
	}
}

// The name and the address for commits are one line each, and the address is not one that the
// provider has not verified.
func TestAuthorOfClaims(t *testing.T) {
	t.Parallel()
	for claims, want := range map[string][2]string{
		`{"name":" Ann Lee ","email":"ann@example.com"}`:           {"Ann Lee", "ann@example.com"},
		`{"email":"ann@example.com","email_verified":true}`:        {"", "ann@example.com"},
		`{"email":"ann@example.com","email_verified":"true"}`:      {"", "ann@example.com"},
		`{"email":"ann@example.com","email_verified":false}`:       {},
		`{"name":"Ann\n[core]","email":"ann"}`:                     {},
		`{"name":"Ann <a@b>","email":"a b@c"}`:                     {},
		`{"name":["Ann"],"email":7}`:                               {},
		`{"name":"` + strings.Repeat("x", 300) + `","email":null}`: {},
	} {
		var c claimSet
		if err := json.Unmarshal([]byte(claims), &c); err != nil {
			t.Fatal(err)
		}
		if got := [2]string{c.author("name"), c.email()}; got != want {
			t.Errorf("%s: %q", claims, got)
		}
	}
}
