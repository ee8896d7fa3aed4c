package signin

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"codehub/internal/base/health"
	"codehub/internal/postgres"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// Config configures New.
type Config struct {
	Settings
	URL      *url.URL // of codehub
	Store    *postgres.DB
	Sessions *auth.Auth
	Log      *slog.Logger
	// Conditions lists that a provider does not respond; nil: it is only logged.
	Conditions *health.Monitor
	Now        func() time.Time // nil: time.Now
}

// Service logs users in with providers. It is safe for concurrent use.
type Service struct {
	cfg       Config
	log       *slog.Logger
	now       func() time.Time
	providers []*provider
	foreign   *health.Condition // of the identities of removed providers
	begun     sync.WaitGroup    // checks of identities
}

const (
	// flowLifetime is how long a login at a provider may take.
	flowLifetime = 15 * time.Minute
	// maxNext bounds the address of the page to which a login leads, so that the cookie
	// stays below what browsers accept.
	maxNext = 1024
	// maxExchanges bounds the logins that a provider handles at the same time, and
	// exchangeWait how long another one waits for its turn.
	maxExchanges = 32
	exchangeWait = 5 * time.Second
)

// New returns a Service. Providers need not respond.
func New(cfg Config) (*Service, error) {
	s := &Service{cfg: cfg, log: cfg.Log, now: cfg.Now}
	if s.now == nil {
		s.now = time.Now
	}
	if s.cfg.Interval <= 0 {
		s.cfg.Interval = 5 * time.Minute
	}
	condition := func() *health.Condition {
		return cfg.Conditions.New(health.Config{
			Name: "identity-providers", Failing: "check identities failed; retrying", Resolved: "identities are checked again", Level: slog.LevelWarn, Log: cfg.Log,
		})
	}
	s.foreign = condition()
	base := strings.TrimRight(cfg.URL.String(), "/")
	for _, c := range cfg.Settings.Providers {
		p, err := newProvider(c, base+"/login/"+c.ID+"/callback", s.now)
		if err != nil {
			return nil, fmt.Errorf("provider %q: %w", c.ID, err)
		}
		p.checks = condition()
		s.providers = append(s.providers, p)
	}
	return s, nil
}

// Provider is a provider for display.
type Provider struct{ ID, Name, Issuer string }

// Providers lists the providers in the order of the settings.
func (s *Service) Providers() []Provider {
	list := make([]Provider, len(s.providers))
	for i, p := range s.providers {
		list[i] = Provider{ID: p.ID, Name: p.Name, Issuer: p.Issuer}
	}
	return list
}

func (s *Service) provider(id string) (*provider, bool) {
	for _, p := range s.providers {
		if p.ID == id {
			return p, true
		}
	}
	return nil, false
}

// Link is a login that adds an identity to a user who is logged in.
type Link struct {
	Caller workspace.Caller
	Proof  string // see auth.Auth.VerifyPassword
}

// Begin returns the provider's address to which to send the browser, and the cookie to set.
// next is the local path to which the login leads. link is nil for a login. Errors are
// *Failure, or CodeNotFound.
func (s *Service) Begin(ctx context.Context, id, next string, link *Link) (address string, cookie *http.Cookie, err error) {
	p, ok := s.provider(id)
	if !ok {
		return "", nil, workspace.NotFound("identity provider")
	}
	d, err := p.discover(ctx)
	if err != nil {
		s.log.WarnContext(ctx, "identity provider does not respond", "provider", id, "err", err)
		return "", nil, fail(Unavailable, err)
	}
	if len(next) > maxNext {
		next = "/"
	}
	f := flow{State: randomText(), Nonce: randomText(), Verifier: oauth2.GenerateVerifier(), Next: next, Expires: s.now().Add(flowLifetime).Unix()}
	if link != nil {
		f.Session, f.Proof = link.Caller.Session, link.Proof
	}
	value, err := p.sealFlow(f)
	if err != nil {
		return "", nil, err
	}
	options := []oauth2.AuthCodeOption{oauth2.S256ChallengeOption(f.Verifier), oidc.Nonce(f.Nonce)}
	parameters := maps.Clone(p.Parameters)
	if link != nil {
		// The user sees which account is linked, also if another page has logged the
		// browser in at the provider.
		if parameters == nil {
			parameters = map[string]string{}
		}
		parameters["prompt"] = strings.TrimSpace("login " + strings.ReplaceAll(parameters["prompt"], "login", ""))
	}
	for name, v := range parameters {
		options = append(options, oauth2.SetAuthURLParam(name, v))
	}
	return p.oauth(d).AuthCodeURL(f.State, options...), s.cfg.Sessions.FlowCookie(value, flowLifetime), nil
}

// ClearCookie returns a cookie that ends the login in progress.
func (s *Service) ClearCookie() *http.Cookie { return s.cfg.Sessions.FlowCookie("", 0) }

// Result is a login that succeeded.
type Result struct {
	Session auth.Session // empty if an identity was linked
	Next    string       // a local path
	Linked  bool
}

// Finish completes the login with which the provider has sent the browser back. caller is
// the user who is logged in, if any. Errors are *Failure.
func (s *Service) Finish(r *http.Request, id string, caller workspace.Caller) (Result, error) {
	p, ok := s.provider(id)
	if !ok {
		return Result{}, workspace.NotFound("identity provider")
	}
	result, err := s.finish(r, p, caller)
	var f *Failure
	if errors.As(err, &f) {
		s.log.WarnContext(r.Context(), "login with an identity provider failed", "provider", id, "reason", string(f.Reason), "err", f.Err)
	}
	return result, err
}

func (s *Service) finish(r *http.Request, p *provider, caller workspace.Caller) (Result, error) {
	ctx, q := r.Context(), r.URL.Query()
	f, err := s.flowOf(r, p)
	if err != nil {
		return Result{}, fail(Expired, err)
	}
	if len(q["state"]) != 1 || subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(f.State)) != 1 {
		return Result{}, fail(Expired, errors.New("the browser has not begun this login"))
	}
	d, err := p.discover(ctx)
	if err != nil {
		return Result{}, fail(Unavailable, err)
	}
	// An answer that another provider has sent here must not reach this one (RFC 9207).
	if iss := q["iss"]; len(iss) > 1 || len(iss) == 1 && iss[0] != p.Issuer || len(iss) == 0 && d.issued {
		return Result{}, fail(Unavailable, errors.New("the answer is another issuer's"))
	}
	switch {
	case q.Has("error"):
		return Result{}, fail(Denied, fmt.Errorf("the provider answered %q", bounded(q.Get("error"), 64)))
	case len(q["code"]) != 1 || q.Get("code") == "":
		return Result{}, fail(Unavailable, errors.New("the answer has no code"))
	}
	if f.Session != "" && (caller.Session != f.Session || caller.Token != "") {
		return Result{}, fail(OtherSession, nil)
	}
	select {
	case p.exchanges <- struct{}{}:
		defer func() { <-p.exchanges }()
	case <-time.After(exchangeWait):
		return Result{}, fail(Unavailable, errors.New("too many logins wait for the provider"))
	case <-ctx.Done():
		return Result{}, ctx.Err()
	}
	who, err := p.exchange(ctx, d, q.Get("code"), f.Verifier, f.Nonce)
	switch {
	case err != nil:
		return Result{}, fail(Unavailable, err)
	case !who.allowed:
		return Result{}, fail(NotAllowed, nil)
	case who.claims.RefreshToken == nil:
		return Result{}, fail(NoRefresh, errors.New("the provider issued no refresh token; see docs/signin.md"))
	}
	p.accept()
	in := postgres.SignIn{Issuer: p.Issuer, Subject: who.id, Claims: who.claims, ProviderSession: who.session, Begun: time.Unix(f.Expires, 0).Add(-flowLifetime)}
	if f.Session != "" {
		if err := s.cfg.Sessions.LinkIdentity(ctx, caller, f.Proof, in); err != nil {
			return Result{}, failureOf(err, Linked, OtherSession, "")
		}
		return Result{Next: f.Next, Linked: true}, nil
	}
	in.NewUser = usernameOf(who.claims.Username)
	session, err := s.cfg.Sessions.SignIn(ctx, in, auth.ClientOf(r))
	if err != nil {
		return Result{}, failureOf(err, NameTaken, Ended, in.NewUser)
	}
	return Result{Session: session, Next: f.Next}, nil
}

// failureOf is the failure of an error of the store.
func failureOf(err error, taken, unauthenticated Reason, username string) error {
	switch workspace.CodeOf(err) {
	case workspace.CodeNameTaken:
		return &Failure{Reason: taken, Username: username, Err: err}
	case workspace.CodeUnauthenticated:
		return fail(unauthenticated, err)
	case workspace.CodeInvalid:
		return fail(NoUsername, err)
	case workspace.CodeOneAccount:
		return fail(OneAccount, err)
	case workspace.CodeForbidden:
		if errors.Is(err, postgres.ErrNotSetUp) {
			return fail(NotSetUp, err)
		}
		return fail(Disabled, err)
	}
	return err
}

// flowOf returns the login that the browser has begun.
func (s *Service) flowOf(r *http.Request, p *provider) (flow, error) {
	value, err := s.cfg.Sessions.Flow(r)
	if err != nil {
		return flow{}, err
	}
	if value == "" {
		return flow{}, errors.New("the browser sent no cookie of a login")
	}
	f, err := p.openFlow(value)
	switch {
	case err != nil:
		return flow{}, errors.New("the login was begun with another provider, or with other settings")
	case f.Expires <= s.now().Unix():
		return flow{}, errors.New("the login took too long")
	}
	return f, nil
}
