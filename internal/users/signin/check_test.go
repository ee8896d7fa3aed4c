package signin

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"codehub/internal/base/health"
	"codehub/internal/postgres"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// tokenProvider is a provider that rotates refresh tokens and ends a login when one is
// redeemed twice, as real ones do. The test decides what the token endpoint answers.
type tokenProvider struct {
	*httptest.Server
	methods  []string // of authentication, as the discovery document names them
	accepts  string   // the only method that is accepted; empty: each
	requests atomic.Int64

	mu     sync.Mutex
	subs   map[string]string              // subjects of the current refresh tokens
	groups map[string][]string            // by subject; nil: the claim is absent
	refuse map[string]string              // error by subject
	after  func(http.ResponseWriter) bool // is called after a rotation; true: it has answered
	mute   bool                           // the UserInfo endpoint answers 503
	next   int
}

func newTokenProvider(t *testing.T) *tokenProvider {
	t.Helper()
	p := &tokenProvider{subs: map[string]string{}, groups: map[string][]string{}, refuse: map[string]string{}}
	mux := http.NewServeMux()
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Close)
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{
			"issuer": p.URL, "authorization_endpoint": p.URL + "/auth", "token_endpoint": p.URL + "/token", "jwks_uri": p.URL + "/keys",
			"userinfo_endpoint": p.URL + "/me", "token_endpoint_auth_methods_supported": p.methods,
		})
	})
	mux.HandleFunc("/token", p.token)
	mux.HandleFunc("/me", func(w http.ResponseWriter, r *http.Request) {
		sub := r.Header.Get("Authorization")[len("Bearer "):]
		claims := map[string]any{"sub": sub, "preferred_username": sub}
		p.mu.Lock()
		if g := p.groups[sub]; g != nil {
			claims["groups"] = g
		}
		mute := p.mute
		p.mu.Unlock()
		if mute {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(claims)
	})
	return p
}

func (p *tokenProvider) token(w http.ResponseWriter, r *http.Request) {
	p.requests.Add(1)
	answer := func(status int, body map[string]any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}
	_, _, basic := r.BasicAuth()
	if p.accepts == authBasic && !basic || p.accepts == authPost && r.PostFormValue("client_secret") == "" {
		answer(http.StatusUnauthorized, map[string]any{"error": "invalid_client"})
		return
	}
	p.mu.Lock()
	old := r.PostFormValue("refresh_token")
	sub, ok := p.subs[old]
	delete(p.subs, old)
	why, after := p.refuse[sub], p.after
	p.next++
	fresh := fmt.Sprint("fresh", p.next)
	if ok && why == "" {
		p.subs[fresh] = sub
	}
	p.mu.Unlock()
	switch {
	case !ok:
		answer(http.StatusBadRequest, map[string]any{"error": "invalid_grant"})
	case why != "":
		answer(http.StatusBadRequest, map[string]any{"error": why})
	case after != nil && after(w):
	default:
		answer(http.StatusOK, map[string]any{"access_token": sub, "token_type": "Bearer", "refresh_token": fresh})
	}
}

func (p *tokenProvider) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// checkWorld has users of test providers in a real database.
type checkWorld struct {
	*fixture.Database
	t          *testing.T
	cfg        Config
	conditions *health.Monitor
	sessions   byte
}

// newCheckWorld returns a world with these providers, whose identities are due whenever
// check is called.
func newCheckWorld(t *testing.T, providers ...*tokenProvider) *checkWorld {
	t.Helper()
	w := &checkWorld{Database: fixture.NewDatabase(t, postgres.Options{}), t: t, conditions: &health.Monitor{}}
	w.AddUser("first")
	base, _ := url.Parse("https://codehub.example.com")
	w.cfg = Config{URL: base, Store: w.DB, Log: slog.New(slog.DiscardHandler), Conditions: w.conditions, Settings: Settings{Interval: 5 * time.Minute, Grace: time.Hour}}
	for i, p := range providers {
		w.cfg.Providers = append(w.cfg.Providers, ProviderConfig{
			ID: fmt.Sprint("p", i), Name: fmt.Sprint("P", i), Issuer: p.URL, ClientID: "codehub", UsernameClaim: "preferred_username", GroupsClaim: "groups",
			secrets: []string{"a secret of some length"},
		})
	}
	return w
}

func (w *checkWorld) service() *Service {
	w.t.Helper()
	s, err := New(w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(s.Wait)
	return s
}

// logIn adds a user with a session, an API token's worth of access and a refresh token.
func (w *checkWorld) logIn(s *Service, p *tokenProvider, sub string, groups ...string) {
	w.t.Helper()
	token := "first of " + sub
	p.set(func() { p.subs[token], p.groups[sub] = sub, groups })
	i := slices.IndexFunc(s.providers, func(of *provider) bool { return of.Issuer == p.URL })
	sealed, err := s.providers[i].sealToken(sub, token)
	if err != nil {
		w.t.Fatal(err)
	}
	w.sessions++
	hash := make([]byte, 32)
	hash[0] = w.sessions
	u, err := w.DB.SignIn(w.t.Context(), postgres.SignIn{
		Issuer: p.URL, Subject: sub, NewUser: sub, Session: hash, Expires: time.Now().Add(time.Hour), Claims: postgres.Claims{Username: sub, Groups: groups, RefreshToken: sealed},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.Exec(`INSERT INTO ssh_keys (id, user_id, name, public_key, hash) VALUES (gen_random_uuid(), $1, 'key', 'ssh-ed25519 AAAA', sha256($2)) ON CONFLICT DO NOTHING`, u.ID, []byte(sub))
	s.providers[i].accept()
}

// check checks all identities once.
func (w *checkWorld) check(s *Service) {
	w.t.Helper()
	w.Exec(`UPDATE user_identities SET tried_at = now() - interval '1 hour', claimed_until = NULL`)
	for _, p := range s.providers {
		p.checks.Set(s.check(w.t.Context(), p))
	}
}

// state is each user's suspension, sessions and SSH keys.
func (w *checkWorld) state() string {
	return fixture.Query[string](w, `SELECT COALESCE(string_agg(concat_ws(' ', u.username, COALESCE(u.suspended_for, 'active'),
		(SELECT count(*) FROM sessions s WHERE s.user_id = u.id), (SELECT count(*) FROM ssh_keys k WHERE k.user_id = u.id)), ', ' ORDER BY u.username), '')
		FROM users u WHERE EXISTS (SELECT FROM user_identities i WHERE i.user_id = u.id)`)
}

func (w *checkWorld) expect(what, want string) {
	w.t.Helper()
	if got := w.state(); got != want {
		w.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func (w *checkWorld) failing() string {
	for _, s := range w.conditions.States() {
		if s.Name == "identity-providers" {
			return s.Error
		}
	}
	return ""
}

// A refused user is out at the first check, however the token endpoint wants the client to
// authenticate, and no request is sent twice.
func TestRefusalIsOneRequest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		methods []string
		accepts string
		setting string
		refusal string
	}{
		"default":       {nil, authBasic, "", "invalid_grant"},
		"basic":         {[]string{authPost, authBasic}, authBasic, "", "access_denied"},
		"post":          {[]string{"private_key_jwt", authPost}, authPost, "", "interaction_required"},
		"post, pinned":  {[]string{authPost, authBasic}, authPost, authPost, "login_required"},
		"basic, pinned": {[]string{authPost}, authBasic, authBasic, "account_selection_required"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newTokenProvider(t)
			p.methods, p.accepts = c.methods, c.accepts
			w := newCheckWorld(t, p)
			w.cfg.Providers[0].AuthMethod = c.setting
			s := w.service()
			w.logIn(s, p, "ann")
			w.check(s)
			w.expect("accepted", "ann active 1 1")
			// Without a means of access the provider is not asked.
			w.Exec(`DELETE FROM sessions`)
			w.Exec(`DELETE FROM ssh_keys`)
			w.check(s)
			w.logIn(s, p, "ann")
			p.set(func() { p.refuse["ann"] = c.refusal })
			w.check(s)
			w.expect("refused", "ann refused 0 1")
			if n := p.requests.Load(); n != 2 {
				t.Errorf("%d requests for two checks with a means of access", n)
			}
		})
	}
}

// A failure of the provider after it has replaced the refresh token is not repeated with the
// former one, and is no refusal.
func TestFailureIsOneRequest(t *testing.T) {
	t.Parallel()
	p := newTokenProvider(t)
	w := newCheckWorld(t, p)
	s := w.service()
	w.logIn(s, p, "ann")
	p.set(func() {
		p.after = func(rw http.ResponseWriter) bool {
			rw.WriteHeader(http.StatusBadGateway)
			return true
		}
	})
	w.check(s)
	w.expect("after the failure", "ann active 1 1")
	if n := p.requests.Load(); n != 1 {
		t.Errorf("%d requests for one check", n)
	}
	if w.failing() == "" {
		t.Error("the condition does not fail")
	}
}

// A check that fails after the provider has replaced the refresh token keeps the new one, so
// that the next check does not redeem the former one again.
func TestFailureKeepsNewToken(t *testing.T) {
	t.Parallel()
	p := newTokenProvider(t)
	w := newCheckWorld(t, p)
	s := w.service()
	w.logIn(s, p, "ann")
	p.set(func() { p.mute = true })
	for range 2 {
		w.check(s)
		w.expect("without user information", "ann active 1 1")
		if w.failing() == "" {
			t.Error("the condition does not fail")
		}
	}
	p.set(func() { p.mute = false })
	w.check(s)
	w.expect("with user information again", "ann active 1 1")
	if problem := w.failing(); problem != "" {
		t.Errorf("the condition fails: %s", problem)
	}
	if n := p.requests.Load(); n != 3 {
		t.Errorf("%d requests for three checks", n)
	}
}

// A short failure of the database does not drop the refresh token that a provider has just
// replaced.
func TestDatabaseFailureKeepsNewToken(t *testing.T) {
	t.Parallel()
	p := newTokenProvider(t)
	w := newCheckWorld(t, p)
	s := w.service()
	w.logIn(s, p, "ann")
	// The database fails to record the next two results.
	w.Exec(`CREATE SEQUENCE results`)
	w.Exec(`CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF nextval('results') <= 2 THEN RAISE 'not responding'; END IF; RETURN NEW; END $$`)
	w.Exec(`CREATE TRIGGER fails BEFORE UPDATE OF refresh_token ON user_identities FOR EACH ROW EXECUTE FUNCTION fails()`)
	w.check(s)
	if problem := w.failing(); problem != "" || fixture.Query[int](w, `SELECT last_value FROM results`) != 3 {
		t.Errorf("the result was not recorded: %s", problem)
	}
	w.check(s)
	w.expect("after two checks", "ann active 1 1")
}

// The end of a term, as at a restart, does not drop the refresh token that a provider has
// just replaced.
func TestTermEndsDuringCheck(t *testing.T) {
	t.Parallel()
	p := newTokenProvider(t)
	w := newCheckWorld(t, p)
	s := w.service()
	w.logIn(s, p, "ann")
	rotated, release := make(chan struct{}), make(chan struct{})
	p.set(func() {
		p.after = func(http.ResponseWriter) bool {
			close(rotated)
			<-release
			return false
		}
	})
	w.Exec(`UPDATE user_identities SET tried_at = now() - interval '1 hour'`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Run(ctx)
	}()
	<-rotated
	cancel()
	<-ended // does not wait for the provider
	p.set(func() { p.after = nil })
	close(release)
	s.Wait()
	w.check(w.service())
	w.expect("after the successor's check", "ann active 1 1")
	if n := p.requests.Load(); n != 2 {
		t.Errorf("%d requests", n)
	}
}

// Users who are in no allowed group because of a wrong setting, or because the provider
// reports no groups, keep their SSH keys and tokens for the next login.
func TestWrongGroupsDeleteNothing(t *testing.T) {
	t.Parallel()
	p := newTokenProvider(t)
	w := newCheckWorld(t, p)
	w.cfg.Providers[0].AllowedGroups = []string{"developers"}
	s := w.service()
	for _, name := range []string{"ann", "bob", "eve"} {
		w.logIn(s, p, name, "developers")
	}
	// The claim is absent.
	p.set(func() { p.groups["ann"] = nil })
	w.check(s)
	w.expect("without the claim", "ann refused 0 1, bob active 1 1, eve active 1 1")
	w.logIn(s, p, "ann", "developers")
	w.check(s)
	// One user left the group, and the others did not.
	p.set(func() { p.groups["ann"] = []string{"others"} })
	w.check(s)
	w.expect("one user left", "ann not_allowed 0 0, bob active 1 1, eve active 1 1")
	if problem := w.failing(); problem != "" {
		t.Errorf("the condition fails: %s", problem)
	}
	// A misspelled group after a restart.
	w.cfg.Providers[0].AllowedGroups = []string{"devlopers"}
	misspelled := w.service()
	w.check(misspelled)
	w.expect("misspelled", "ann not_allowed 0 0, bob refused 0 1, eve refused 0 1")
	if problem := w.failing(); problem == "" {
		t.Error("the condition does not fail")
	}
}

// A provider that does not respond delays no check of another one.
func TestHangingProviderDelaysNoOther(t *testing.T) {
	t.Parallel()
	a, b := newTokenProvider(t), newTokenProvider(t)
	w := newCheckWorld(t, a, b)
	s := w.service()
	hang := make(chan struct{})
	for i := range 20 {
		w.logIn(s, a, fmt.Sprint("user", i))
	}
	w.logIn(s, b, "zoe")
	a.set(func() {
		a.after = func(http.ResponseWriter) bool {
			<-hang
			return false
		}
	})
	b.set(func() { b.refuse["zoe"] = "invalid_grant" })
	w.Exec(`UPDATE user_identities SET tried_at = now() - interval '1 hour'`)
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { _ = s.Run(ctx) })
	defer func() { cancel(); close(hang); run.Wait(); s.Wait() }()
	harness.Eventually(t, "the other provider's user is out", func() bool {
		return fixture.Query[int](w, `SELECT count(*) FROM users WHERE username = 'zoe' AND suspended_for = 'refused'`) == 1
	})
	if n := a.requests.Load(); n > parallel {
		t.Errorf("%d requests at once", n)
	}
}

// While a provider does not respond, users stay logged in for a while. After it they are suspended
// until it confirms them.
func TestOutageSuspendsAfterGrace(t *testing.T) {
	t.Parallel()
	p := newTokenProvider(t)
	w := newCheckWorld(t, p)
	s := w.service()
	w.logIn(s, p, "ann")
	p.set(func() { p.mute = true })
	w.check(s)
	w.expect("at first", "ann active 1 1")
	w.Exec(`UPDATE user_identities SET failing_since = now() - interval '2 hours'`)
	w.check(s)
	w.expect("after the grace period", "ann unreachable 1 1")
	p.set(func() { p.mute = false })
	w.check(s)
	w.expect("confirmed again", "ann active 1 1")
}

// Identities of a provider that the settings no longer name end.
func TestRemovedProviderEndsIdentities(t *testing.T) {
	t.Parallel()
	p := newTokenProvider(t)
	w := newCheckWorld(t, p)
	w.logIn(w.service(), p, "ann")
	w.cfg.Providers = nil
	if err := w.service().endForeign(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.expect("without its provider", "ann refused 0 1")
}
