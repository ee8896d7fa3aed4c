package signin

import (
	"context"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"

	"codehub/internal/base/health"
	"codehub/internal/postgres"
)

const (
	// skew is how far the clocks of a provider and a server may differ.
	skew = time.Minute
	// discoveryAge is how long a discovery document is used before it is read again.
	discoveryAge = time.Hour
	// discoveryPause is how long a failure to read it is remembered.
	discoveryPause = time.Second
	// maxError bounds what is logged of an answer of a provider.
	maxError = 300
	// maxToken bounds a refresh token, in bytes.
	maxToken = 32 << 10
)

// provider is an OpenID Connect provider. It is safe for concurrent use.
type provider struct {
	ProviderConfig
	callback string // redirect URI
	client   *http.Client
	flows    *sealer
	tokens   *sealer
	now      func() time.Time

	exchanges chan struct{} // bounds the codes that are being redeemed
	checks    *health.Condition

	discoveries singleflight.Group

	mu             sync.Mutex
	discovered     *discovered
	undiscovered   error // of the last reading of the document
	undiscoveredAt time.Time
	failure        error // of the last check of an identity
	accepted       bool  // a subject was in an allowed group since the server started
	rejected       int   // subjects since the last one that was
	rejectedAt     time.Time
}

// rejectionAge is how long the condition reports that subjects were rejected.
const rejectionAge = 24 * time.Hour

// failing returns the error of the last check of an identity, nil if it succeeded, and an
// error if the groups look wrong.
func (p *provider) failing() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rejected > 1 && time.Since(p.rejectedAt) < rejectionAge {
		return errors.Join(p.failure, fmt.Errorf("provider %s: the last %d users were in no allowed group: check allowed_groups, admin_groups and the claim %s", p.ID, p.rejected, p.GroupsClaim))
	}
	return p.failure
}

// accept records that a subject is in an allowed group.
func (p *provider) accept() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.accepted, p.rejected = true, 0
}

// reject records that a subject is in no allowed group. It reports whether that is surely
// no accident: groups that are misspelled in the settings, or renamed at the provider, reject
// one subject after the other.
func (p *provider) reject() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rejected++
	p.rejectedAt = time.Now()
	return p.accepted && p.rejected == 1
}

func (p *provider) setFailing(err error) {
	if err != nil {
		err = fmt.Errorf("provider %s: %w", p.ID, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failure = err
}

// discovered is what the discovery document says.
type discovered struct {
	*oidc.Provider
	issued   bool // answers name their issuer (RFC 9207)
	style    oauth2.AuthStyle
	verifier *oidc.IDTokenVerifier
	at       time.Time
}

func newProvider(cfg ProviderConfig, callback string, now func() time.Time) (*provider, error) {
	p := &provider{ProviderConfig: cfg, callback: callback, now: now, exchanges: make(chan struct{}, maxExchanges)}
	var err error
	if p.client, err = newClient(cfg.CAFile); err != nil {
		return nil, err
	}
	if p.flows, err = newSealer(cfg.secrets[:1], "flow "+cfg.ID+" "+cfg.Issuer); err != nil {
		return nil, err
	}
	p.tokens, err = newSealer(cfg.secrets, "refresh token "+cfg.Issuer)
	return p, err
}

// with is the context of requests to the provider.
func (p *provider) with(ctx context.Context) context.Context {
	return oidc.ClientContext(ctx, p.client)
}

// discover returns the discovery document. An old one is used as long as the provider does
// not answer.
func (p *provider) discover(ctx context.Context) (*discovered, error) {
	p.mu.Lock()
	known, failed, at := p.discovered, p.undiscovered, p.undiscoveredAt
	p.mu.Unlock()
	switch {
	case known != nil && time.Since(known.at) < discoveryAge:
		return known, nil
	case failed != nil && time.Since(at) < discoveryPause && known == nil:
		return nil, failed
	case failed != nil && time.Since(at) < discoveryPause:
		return known, nil
	}
	found, err, _ := p.discoveries.Do("", func() (any, error) {
		// The keys outlive the request that reads the document.
		d, err := p.readDocument(context.WithoutCancel(ctx))
		p.mu.Lock()
		defer p.mu.Unlock()
		if err != nil {
			p.undiscovered, p.undiscoveredAt = err, time.Now()
		} else {
			p.discovered, p.undiscovered = d, nil
		}
		return d, err
	})
	switch {
	case err == nil:
		return found.(*discovered), nil
	case known != nil:
		return known, nil
	}
	return nil, err
}

func (p *provider) readDocument(ctx context.Context) (*discovered, error) {
	found, err := oidc.NewProvider(p.with(ctx), p.Issuer)
	if err != nil {
		return nil, fmt.Errorf("read the discovery document: %s", bounded(err.Error(), maxError))
	}
	var more struct {
		Issued  bool     `json:"authorization_response_iss_parameter_supported"`
		Keys    string   `json:"jwks_uri"`
		Methods []string `json:"token_endpoint_auth_methods_supported"`
	}
	if err := found.Claims(&more); err != nil {
		return nil, fmt.Errorf("read the discovery document: %w", err)
	}
	if t, ok := p.client.Transport.(*transport); ok {
		t.keysAt(more.Keys)
	}
	d := &discovered{Provider: found, issued: more.Issued, style: p.authStyle(more.Methods), at: time.Now()}
	d.verifier = found.Verifier(&oidc.Config{ClientID: p.ClientID, Now: func() time.Time { return p.now().Add(-skew) }})
	return d, nil
}

// authStyle returns how the client authenticates at the token endpoint. It is never left
// open: oauth2 would then send each refused request a second time, in the other way. A
// provider takes a refresh token that it gets twice for stolen.
func (c ProviderConfig) authStyle(supported []string) oauth2.AuthStyle {
	method := c.AuthMethod
	if method == "" && len(supported) > 0 && !slices.Contains(supported, authBasic) {
		method = authPost
	}
	if method == authPost {
		return oauth2.AuthStyleInParams
	}
	return oauth2.AuthStyleInHeader
}

func (p *provider) oauth(d *discovered) *oauth2.Config {
	endpoint := d.Endpoint()
	endpoint.AuthStyle = d.style
	scopes := []string{oidc.ScopeOpenID}
	for _, s := range p.Scopes {
		if s != oidc.ScopeOpenID {
			scopes = append(scopes, s)
		}
	}
	return &oauth2.Config{ClientID: p.ClientID, ClientSecret: p.secrets[0], Endpoint: endpoint, RedirectURL: p.callback, Scopes: scopes}
}

// subject is a user of the provider, as it was verified.
type subject struct {
	id      string
	session string // the provider's id of its session; empty: unknown
	claims  postgres.Claims
	// reported: the provider said of which groups the subject is a member.
	reported bool
	access
}

// exchange redeems an authorization code and verifies the ID token that it yields.
func (p *provider) exchange(ctx context.Context, d *discovered, code, verifier, nonce string) (subject, error) {
	ctx = p.with(ctx)
	token, err := p.oauth(d).Exchange(ctx, code, oauth2.VerifierOption(verifier))
	if err != nil {
		return subject{}, fmt.Errorf("redeem the authorization code: %w", withoutBody(err))
	}
	id, claims, err := p.verify(ctx, d, token)
	if err != nil {
		return subject{}, err
	}
	if id == nil {
		return subject{}, errors.New("the provider issued no ID token")
	}
	if nonce == "" || subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(nonce)) != 1 {
		return subject{}, errors.New("the ID token has another nonce than the login")
	}
	s, err := p.subjectOf(ctx, d, token, id.Subject, claims)
	if err != nil {
		return subject{}, err
	}
	s.session = claims.text("sid")
	s.claims.RefreshToken, err = p.sealToken(s.id, token.RefreshToken)
	return s, err
}

// verify returns the ID token among the tokens, and its claims; nil if there is none.
func (p *provider) verify(ctx context.Context, d *discovered, token *oauth2.Token) (*oidc.IDToken, claimSet, error) {
	raw, ok := token.Extra("id_token").(string)
	if !ok || raw == "" {
		return nil, nil, nil
	}
	id, err := d.verifier.Verify(ctx, raw)
	if err != nil {
		return nil, nil, fmt.Errorf("verify the ID token: %s", bounded(err.Error(), maxError))
	}
	if id.AccessTokenHash != "" {
		if err := id.VerifyAccessToken(token.AccessToken); err != nil {
			return nil, nil, fmt.Errorf("verify the access token: %w", err)
		}
	}
	var claims claimSet
	if err := id.Claims(&claims); err != nil {
		return nil, nil, fmt.Errorf("read the ID token: %w", err)
	}
	if party := claims.text("azp"); party != "" && party != p.ClientID || len(id.Audience) > 1 && party == "" {
		return nil, nil, errors.New("the ID token was issued to another client")
	}
	if id.Subject == "" {
		return nil, nil, errors.New("the ID token has no subject")
	}
	return id, claims, nil
}

// subjectOf reads the claims of a subject, from the ID token and else from the UserInfo
// endpoint. claims is nil without an ID token.
func (p *provider) subjectOf(ctx context.Context, d *discovered, token *oauth2.Token, id string, claims claimSet) (subject, error) {
	_, named := claims.find(p.UsernameClaim)
	_, grouped := claims.find(p.GroupsClaim)
	if missing := !named || p.needsGroups() && !grouped && !claims.elsewhere(p.GroupsClaim); missing && (claims == nil || d.UserInfoEndpoint() != "") {
		info, err := d.UserInfo(ctx, oauth2.StaticTokenSource(token))
		if err != nil {
			return subject{}, fmt.Errorf("read the user information: %s", bounded(err.Error(), maxError))
		}
		if info.Subject != id {
			return subject{}, errors.New("the user information is about another subject")
		}
		var more claimSet
		if err := info.Claims(&more); err != nil {
			return subject{}, fmt.Errorf("read the user information: %w", err)
		}
		for name, v := range claims {
			more[name] = v // what is signed takes precedence
		}
		claims = more
	}
	groups, err := claims.groups(p.GroupsClaim)
	if err != nil && p.needsGroups() {
		return subject{}, err
	}
	_, reported := claims.find(p.GroupsClaim)
	s := subject{id: id, reported: reported, access: p.decide(groups), claims: postgres.Claims{Username: claims.text(p.UsernameClaim), Name: claims.author("name"), Email: claims.email(), Groups: groups}}
	s.claims.Admin = s.admin
	return s, nil
}

// errRefused: the provider does not accept the refresh token, as it does after it has
// disabled or deleted the user.
var errRefused = errors.New("the provider refused the refresh token")

// refusals are the errors of a token endpoint that refuse the user. All others, such as
// invalid_client, are a failure of the provider or its settings.
var refusals = []string{"invalid_grant", "access_denied", "interaction_required", "login_required", "account_selection_required"}

// refresh asks the provider about a subject again. It returns errRefused if the provider
// refuses; any other error leaves it open whether the provider accepts the subject. With such an
// error, the subject has the new refresh token if the provider has issued one already.
func (p *provider) refresh(ctx context.Context, due postgres.DueIdentity) (subject, error) {
	ctx = p.with(ctx)
	d, err := p.discover(ctx)
	if err != nil {
		return subject{}, err
	}
	old, err := p.openToken(due.Subject, due.RefreshToken)
	if err != nil {
		return subject{}, fmt.Errorf("decrypt the refresh token: %w", err)
	}
	token, err := p.oauth(d).TokenSource(ctx, &oauth2.Token{RefreshToken: old}).Token()
	var answer *oauth2.RetrieveError
	if errors.As(err, &answer) && slices.Contains(refusals, answer.ErrorCode) {
		return subject{}, errRefused
	}
	if err != nil {
		return subject{}, fmt.Errorf("redeem the refresh token: %w", withoutBody(err))
	}
	sealed, err := p.sealToken(due.Subject, token.RefreshToken)
	if err != nil {
		return subject{}, err
	}
	s, err := p.refreshed(ctx, d, token, due.Subject)
	s.claims.RefreshToken = sealed // also with an error: the old one may be spent
	return s, err
}

// refreshed verifies what a refresh token has yielded, and reads the claims of the subject.
func (p *provider) refreshed(ctx context.Context, d *discovered, token *oauth2.Token, of string) (subject, error) {
	id, claims, err := p.verify(ctx, d, token)
	if err != nil {
		return subject{}, err
	}
	if id != nil && id.Subject != of {
		return subject{}, errors.New("the new ID token is about another subject")
	}
	return p.subjectOf(ctx, d, token, of, claims)
}

func (p *provider) sealToken(subject, token string) ([]byte, error) {
	switch {
	case token == "":
		return nil, nil
	case len(token) > maxToken:
		return nil, errors.New("the refresh token is too long")
	}
	return p.tokens.seal([]byte(token), subject), nil
}

func (p *provider) openToken(subject string, sealed []byte) (string, error) {
	b, err := p.tokens.open(sealed, subject)
	return string(b), err
}

// withoutBody removes the answer of a token endpoint from an error: it may have tokens.
func withoutBody(err error) error {
	var answer *oauth2.RetrieveError
	if !errors.As(err, &answer) {
		return err
	}
	status := 0
	if answer.Response != nil {
		status = answer.Response.StatusCode
	}
	return fmt.Errorf("the provider answered %d, error %q", status, bounded(answer.ErrorCode, 64))
}

func bounded(s string, n int) string {
	if len(s) > n {
		s = s[:n]
	}
	return s
}

// flow is a login in progress, in the browser's cookie.
type flow struct {
	State    string `json:"s"`
	Nonce    string `json:"n"`
	Verifier string `json:"v"` // of PKCE
	Next     string `json:"x"`
	Expires  int64  `json:"e"`
	// Of a link: the session that asked for it, and the proof of its user's password.
	Session string `json:"h,omitempty"`
	Proof   string `json:"p,omitempty"`
}

func (p *provider) sealFlow(f flow) (string, error) {
	b, err := json.Marshal(f)
	return base64.RawURLEncoding.EncodeToString(p.flows.seal(b, "flow")), err
}

func (p *provider) openFlow(value string) (f flow, err error) {
	sealed, err := base64.RawURLEncoding.DecodeString(value)
	if err != nil {
		return f, err
	}
	b, err := p.flows.open(sealed, "flow")
	if err != nil {
		return f, err
	}
	return f, json.Unmarshal(b, &f)
}
