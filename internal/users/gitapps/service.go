package gitapps

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/users/auth"
	"codehub/internal/users/gitaccess"
	"codehub/internal/users/sealed"
	"codehub/internal/workspace"
)

// Config configures New.
type Config struct {
	Settings
	URL      *url.URL // of codehub
	Store    *postgres.DB
	Keys     *sealed.Ring
	Access   *gitaccess.Service
	Sessions *auth.Auth
	Log      *slog.Logger
	Now      func() time.Time // nil: time.Now
}

// Service connects users with apps, and refreshes their tokens. It is safe for concurrent use.
type Service struct {
	Config
	refreshes singleflight.Group
	begun     sync.WaitGroup
	// slots bounds the refreshes, each of which holds a connection to the database while the
	// provider answers.
	slots chan struct{}
	// See the constants.
	patience, failurePause time.Duration

	mu     sync.Mutex
	failed map[string]failed // by app
}

const (
	// flowLifetime is how long a connection at a provider may take.
	flowLifetime = 15 * time.Minute
	// maxRefreshes bounds the refreshes of a server at a time.
	maxRefreshes = 4
)

// New returns a Service. Providers need not respond.
func New(cfg Config) *Service {
	s := &Service{Config: cfg, slots: make(chan struct{}, maxRefreshes), failed: map[string]failed{}, patience: patience, failurePause: failurePause}
	if s.Now == nil {
		s.Now = time.Now
	}
	return s
}

// Wait waits for refreshes that have begun: a provider may have replaced a token already, and the
// new one must be stored. None takes longer than refreshTimeout.
func (s *Service) Wait() { s.begun.Wait() }

// Apps lists the apps in the order of the file.
func (s *Service) Apps() []App { return s.Settings.Apps }

// App returns the app with that id.
func (s *Service) App(id string) (*App, bool) {
	i := slices.IndexFunc(s.Settings.Apps, func(a App) bool { return a.ID == id })
	if i < 0 {
		return nil, false
	}
	return &s.Settings.Apps[i], true
}

// Title returns the title of an app, or its id if the settings do not have it any more.
func (s *Service) Title(id string) string {
	if a, ok := s.App(id); ok {
		return a.Title
	}
	return id
}

// Primary returns the host under which a connection for host is stored; host itself unless an app
// has it as a further one.
func (s *Service) Primary(host string) string {
	if a := s.For(host); a != nil {
		return a.Hosts[0]
	}
	return host
}

// For returns the app whose connections are for a host, or nil.
func (s *Service) For(host string) *App {
	for i, a := range s.Settings.Apps {
		if slices.Contains(a.Hosts, host) {
			return &s.Settings.Apps[i]
		}
	}
	return nil
}

// Reason is why no connection was made, for the page and the log.
type Reason string

const (
	// Expired: this session has not begun the connection, or too long ago.
	Expired Reason = "expired"
	// Denied: the user or the provider refused it.
	Denied Reason = "denied"
	// Unavailable: the provider does not respond, or not as it should.
	Unavailable Reason = "unavailable"
	// Misconfigured: the provider does not accept the app.
	Misconfigured Reason = "misconfigured"
)

// Failure is a connection that was not made.
type Failure struct {
	Reason Reason
	Err    error // for the log
}

func (f *Failure) Error() string { return fmt.Sprintf("%s: %v", f.Reason, f.Err) }
func (f *Failure) Unwrap() error { return f.Err }

// flow is a connection in progress, in the browser's cookie.
type flow struct {
	State    string `json:"s"`
	Verifier string `json:"v"` // of PKCE
	Expires  int64  `json:"e"`
	For      string `json:"f,omitempty"`
}

// flowOwner binds a flow to an app and a session of codehub.
func flowOwner(app string, caller workspace.Caller) string {
	return "git flow " + app + " " + caller.UserID + " " + caller.Session
}

// base is the address of codehub without a slash at its end.
func (s *Service) base() string { return strings.TrimRight(s.URL.String(), "/") }

func (s *Service) callback(app string) string { return s.base() + "/settings/git/" + app + "/callback" }

// Begin returns the provider's address to which to send the browser, and the cookie to set. purpose is
// what Finish returns, or empty. CodeNotFound; CodeNotSupported without a key for tokens; CodeForbidden
// for an API token.
func (s *Service) Begin(caller workspace.Caller, id, purpose string) (address string, cookie *http.Cookie, err error) {
	app, ok := s.App(id)
	if !ok {
		return "", nil, workspace.NotFound("app")
	}
	if caller.Token != "" || caller.Session == "" {
		return "", nil, workspace.Errorf(workspace.CodeForbidden, "Connect in a browser.")
	}
	f := flow{State: rand.Text(), Verifier: oauth2.GenerateVerifier(), Expires: s.Now().Add(flowLifetime).Unix(), For: purpose}
	plain, err := json.Marshal(f)
	if err != nil {
		return "", nil, err
	}
	value, err := s.Keys.Seal(plain, flowOwner(id, caller))
	if err != nil {
		return "", nil, err
	}
	address = app.oauth(s.callback(id)).AuthCodeURL(f.State, oauth2.S256ChallengeOption(f.Verifier))
	return address, s.Sessions.FlowCookie(base64.RawURLEncoding.EncodeToString(value), flowLifetime), nil
}

// ClearCookie returns a cookie that ends the connection in progress.
func (s *Service) ClearCookie() *http.Cookie { return s.Sessions.FlowCookie("", 0) }

// Finish completes the connection with which the provider has sent the browser back, and returns the
// purpose of Begin. Errors are *Failure, or those of the store.
func (s *Service) Finish(r *http.Request, caller workspace.Caller, id string) (made api.GitConnection, purpose string, err error) {
	app, ok := s.App(id)
	if !ok {
		return made, "", workspace.NotFound("app")
	}
	flow, err := s.flowOf(r, caller, app.ID)
	if err == nil {
		made, err = s.finish(r, caller, app, flow)
	} else {
		err = &Failure{Expired, err}
	}
	var f *Failure
	if errors.As(err, &f) {
		s.Log.WarnContext(r.Context(), "git connection failed", "app", id, "reason", string(f.Reason), "err", f.Err)
	}
	return made, flow.For, err
}

func (s *Service) finish(r *http.Request, caller workspace.Caller, app *App, f flow) (made api.GitConnection, err error) {
	q := r.URL.Query()
	if len(q["state"]) != 1 || subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(f.State)) != 1 {
		return made, &Failure{Expired, errors.New("the browser has not begun this connection")}
	}
	switch {
	case q.Has("error"):
		return made, failureOf(failure(&oauth2.RetrieveError{ErrorCode: q.Get("error")}))
	case len(q["code"]) != 1 || q.Get("code") == "":
		return made, &Failure{Unavailable, errors.New("the answer has no code")}
	}
	// The browser may go away once the provider has taken the code.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), refreshTimeout)
	defer cancel()
	t, err := app.exchange(ctx, s.callback(app.ID), q.Get("code"), f.Verifier)
	if err != nil {
		return made, failureOf(err)
	}
	login, err := app.login(ctx, t.access)
	if err != nil {
		return made, &Failure{Unavailable, err}
	}
	stored := gitaccess.Tokens{Access: t.access, Refresh: t.refresh}
	if t.lifetime > 0 {
		at, err := s.Store.GitExpiry(ctx, t.lifetime)
		if err != nil {
			return made, err
		}
		stored.ExpiresAt = &at
	}
	return s.Access.Store(ctx, caller, api.GitConnection{Host: app.Hosts[0], Kind: api.GitOAuth, Provider: app.ID, Login: login}, stored)
}

func failureOf(err error) *Failure {
	switch {
	case errors.Is(err, errRevoked):
		return &Failure{Denied, err}
	case errors.Is(err, errClient):
		return &Failure{Misconfigured, err}
	}
	return &Failure{Unavailable, err}
}

// flowOf returns the connection that the session has begun in this browser.
func (s *Service) flowOf(r *http.Request, caller workspace.Caller, app string) (f flow, err error) {
	value, err := s.Sessions.Flow(r)
	if err != nil {
		return f, err
	}
	if value == "" {
		return f, errors.New("the browser sent no cookie of a connection")
	}
	raw, err := base64.RawURLEncoding.DecodeString(value)
	if err != nil {
		return f, err
	}
	plain, err := s.Keys.Open(raw, flowOwner(app, caller))
	if err != nil {
		return f, errors.New("the connection was begun with another app or in another session")
	}
	if err := json.Unmarshal(plain, &f); err != nil {
		return f, err
	}
	if f.Expires <= s.Now().Unix() {
		return f, errors.New("the connection took too long")
	}
	return f, nil
}

// Ending returns what revokes the tokens of a connection of the caller once it is removed. It reports
// false if the provider did not, or has no address for that.
func (s *Service) Ending(ctx context.Context, caller workspace.Caller, id string) (func() bool, error) {
	nothing := func() bool { return false }
	if !workspace.ValidID(id) {
		return nothing, nil
	}
	g, err := s.Store.GitGrant(ctx, id)
	switch {
	case workspace.CodeOf(err) == workspace.CodeNotFound:
		return nothing, nil
	case err != nil:
		return nil, err
	}
	app, ok := s.App(g.Provider)
	if g.UserID != caller.UserID || !ok {
		return nothing, nil
	}
	t, err := s.Access.Open(g.GitTokens)
	return func() bool {
		// The user may be away before the provider answers.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
		defer cancel()
		tried := true
		if err == nil {
			tried, err = app.end(ctx, tokens{access: t.Access, refresh: t.Refresh})
		}
		if err != nil {
			s.Log.WarnContext(ctx, "tokens of a git connection were not revoked", "app", app.ID, "user", caller.UserID, "err", err)
		}
		return tried && err == nil
	}, nil
}
