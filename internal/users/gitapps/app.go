// Package gitapps connects users to GitHub, GitLab, Gitea, Forgejo and Bitbucket by OAuth2 apps, and
// refreshes their tokens, one refresh of a connection at a time over all servers.
package gitapps

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/oauth2"

	"codehub/internal/users/gitaccess"
)

// App is an OAuth2 app at a provider.
type App struct {
	ID    string // part of the callback address that the provider knows
	Title string
	Type  string
	URL   string // of the provider
	// Hosts are those that the tokens are for, as in git_connections; a connection is stored under
	// the first.
	Hosts    []string
	ClientID string
	Scopes   []string

	secret                         string
	authorize, token, user, revoke string // addresses; revoke is empty if the provider has none
	kind                           kind
}

// kind is what the providers of a type have in common.
type kind struct {
	title  string
	url    string // empty: there is no usual one
	scopes []string
	// Paths below the address.
	authorize, token, user, revoke string
	// logins are the fields of the user's API that may have the login.
	logins []string
	style  oauth2.AuthStyle
	// username is what Git sends with a token.
	username string
}

const (
	githubURL    = "https://github.com"
	bitbucketURL = "https://bitbucket.org"
)

var gitea = kind{
	scopes: []string{"read:user", "write:repository"}, logins: []string{"login"}, style: oauth2.AuthStyleInParams, username: "oauth2",
	authorize: "/login/oauth/authorize", token: "/login/oauth/access_token", user: "/api/v1/user",
}

// bitbucketServer is Bitbucket Data Center, whose API differs from that of the cloud.
var bitbucketServer = kind{
	scopes: []string{"PUBLIC_REPOS", "REPO_WRITE"}, style: oauth2.AuthStyleInParams, username: "x-token-auth",
	authorize: "/rest/oauth2/latest/authorize", token: "/rest/oauth2/latest/token", user: "/plugins/servlet/applinks/whoami", revoke: "/rest/oauth2/latest/revoke",
}

var kinds = map[string]kind{
	"github": {
		title: "GitHub", url: githubURL, scopes: []string{"repo", "read:org", "workflow"}, logins: []string{"login"}, style: oauth2.AuthStyleInParams, username: "x-access-token",
		authorize: "/login/oauth/authorize", token: "/login/oauth/access_token", user: "/api/v3/user", revoke: "/api/v3/applications/{client_id}/token",
	},
	"gitlab": {
		title: "GitLab", url: "https://gitlab.com", scopes: []string{"api", "write_repository"}, logins: []string{"username"}, style: oauth2.AuthStyleInParams, username: "oauth2",
		authorize: "/oauth/authorize", token: "/oauth/token", user: "/api/v4/user", revoke: "/oauth/revoke",
	},
	"gitea":   titled("Gitea", gitea),
	"forgejo": titled("Forgejo", gitea),
	"bitbucket": {
		title: "Bitbucket", url: bitbucketURL, scopes: []string{"account", "repository:write", "pullrequest:write"}, logins: []string{"username", "nickname"}, style: oauth2.AuthStyleInHeader, username: "x-token-auth",
		authorize: "/site/oauth2/authorize", token: "/site/oauth2/access_token",
	},
}

func titled(title string, k kind) kind {
	k.title = title
	return k
}

// fill sets what follows from the type and the address.
func (a *App) fill(k kind) {
	api := a.URL
	switch {
	case a.Type == "github" && a.URL == githubURL:
		api = "https://api.github.com"
		k.user, k.revoke = strings.TrimPrefix(k.user, "/api/v3"), strings.TrimPrefix(k.revoke, "/api/v3")
	case a.Type == "bitbucket" && a.URL == bitbucketURL:
		api, k.user = "https://api.bitbucket.org", "/2.0/user"
	case a.Type == "bitbucket":
		k = bitbucketServer
	}
	a.kind, a.user = k, api+k.user
	if k.revoke != "" {
		a.revoke = api + strings.ReplaceAll(k.revoke, "{client_id}", url.PathEscape(a.ClientID))
	}
	if a.authorize == "" {
		a.authorize = a.URL + k.authorize
	}
	if a.token == "" {
		a.token = a.URL + k.token
	}
	if a.Scopes == nil {
		a.Scopes = k.scopes
	}
}

// defaultHosts are the hosts of Git at a provider's address.
func defaultHosts(address string) []string {
	u, err := url.Parse(address)
	if err != nil {
		return nil
	}
	host := u.Host
	if u.Scheme == "http" {
		host = "http://" + host
	}
	if address == githubURL {
		return []string{host, "gist.github.com"}
	}
	return []string{host}
}

const (
	// requestTimeout bounds a request to a provider.
	requestTimeout = 15 * time.Second
	maxAnswer      = 1 << 20
	maxLogin       = 100
)

// client sends all requests to providers. It follows no redirects: they could carry a secret
// elsewhere.
var client = &http.Client{
	Timeout:       requestTimeout,
	Transport:     http.DefaultTransport,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func with(ctx context.Context) context.Context {
	return context.WithValue(ctx, oauth2.HTTPClient, client)
}

func (a *App) oauth(callback string) *oauth2.Config {
	return &oauth2.Config{
		ClientID: a.ClientID, ClientSecret: a.secret, RedirectURL: callback, Scopes: a.Scopes,
		// The style is never left open: oauth2 would then send a refused request a second time, and a
		// provider takes a refresh token that it gets twice for stolen.
		Endpoint: oauth2.Endpoint{AuthURL: a.authorize, TokenURL: a.token, AuthStyle: a.kind.style},
	}
}

// tokens are what a provider has issued.
type tokens struct {
	access, refresh string        // refresh is empty if there is none
	lifetime        time.Duration // of the access token; 0: unlimited or unknown
}

// Errors of a provider; all others are a failure to reach it, or to understand its answer.
var (
	// errRevoked: the provider does not accept the refresh token or the code any more.
	errRevoked = errors.New("the provider refused the token")
	// errClient: the provider does not accept the app.
	errClient = errors.New("the provider refused the app's client_id, client_secret or scopes")
)

var (
	revokedCodes = []string{"invalid_grant", "bad_refresh_token", "bad_verification_code", "access_denied"}
	clientCodes  = []string{"invalid_client", "incorrect_client_credentials", "unauthorized_client", "invalid_scope", "unsupported_grant_type", "redirect_uri_mismatch"}
)

// failure makes an error of a token endpoint readable. The answer itself may have tokens, so it is
// left out.
func failure(err error) error {
	var answer *oauth2.RetrieveError
	if !errors.As(err, &answer) {
		return err
	}
	code := bounded(answer.ErrorCode, 64)
	switch {
	case slices.Contains(revokedCodes, code):
		return fmt.Errorf("%w: it answered %q", errRevoked, code)
	case slices.Contains(clientCodes, code):
		return fmt.Errorf("%w: it answered %q", errClient, code)
	case answer.Response != nil:
		return fmt.Errorf("the provider answered %d, error %q", answer.Response.StatusCode, code)
	}
	return fmt.Errorf("the provider answered the error %q", code)
}

func bounded(s string, n int) string {
	if len(s) > n {
		s = s[:n]
	}
	return s
}

func toTokens(t *oauth2.Token) (out tokens, err error) {
	out = tokens{access: t.AccessToken, refresh: t.RefreshToken}
	for _, token := range []string{out.access, out.refresh} {
		if len(token) > gitaccess.MaxToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			return tokens{}, errors.New("the provider issued a token that is too long, or is no text")
		}
	}
	if !t.Expiry.IsZero() {
		out.lifetime = max(time.Until(t.Expiry), time.Second)
	}
	return out, nil
}

// exchange redeems an authorization code.
func (a *App) exchange(ctx context.Context, callback, code, verifier string) (tokens, error) {
	t, err := a.oauth(callback).Exchange(with(ctx), code, oauth2.VerifierOption(verifier))
	if err != nil {
		return tokens{}, failure(err)
	}
	return toTokens(t)
}

// renew redeems a refresh token. If the answer is lost, it tries once more: some providers accept the
// old token until the new one is used, and otherwise nothing is lost that was not lost already.
func (a *App) renew(ctx context.Context, refresh string) (tokens, error) {
	for retried := false; ; retried = true {
		t, err := a.oauth("").TokenSource(with(ctx), &oauth2.Token{RefreshToken: refresh}).Token()
		if err == nil {
			return toTokens(t)
		}
		var answered *oauth2.RetrieveError
		if errors.As(err, &answered) || retried || ctx.Err() != nil {
			return tokens{}, failure(err)
		}
	}
}

// login returns the name of the account at the provider.
func (a *App) login(ctx context.Context, access string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, a.user, nil)
	if err != nil {
		return "", err
	}
	r.Header.Set("Authorization", "Bearer "+access)
	r.Header.Set("Accept", "application/json")
	body, err := send(r)
	if err != nil {
		return "", fmt.Errorf("read the user: %w", err)
	}
	name := ""
	if a.kind.logins == nil {
		name = strings.TrimSpace(string(body))
	} else {
		var user map[string]any
		if err := json.Unmarshal(body, &user); err != nil {
			return "", errors.New("read the user: the provider's answer is not JSON")
		}
		for _, field := range a.kind.logins {
			if text, ok := user[field].(string); ok && name == "" {
				name = text
			}
		}
	}
	if name == "" || len(name) > maxLogin || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return "", errors.New("read the user: the provider named no login")
	}
	return name, nil
}

// end revokes tokens at the provider. It reports false if the provider has no address for that.
func (a *App) end(ctx context.Context, t tokens) (bool, error) {
	if a.revoke == "" {
		return false, nil
	}
	r, err := a.revocation(ctx, t)
	if err == nil {
		_, err = send(r)
	}
	if err != nil {
		return true, fmt.Errorf("revoke the tokens: %w", err)
	}
	return true, nil
}

func (a *App) revocation(ctx context.Context, t tokens) (*http.Request, error) {
	if a.Type == "github" {
		body, err := json.Marshal(map[string]string{"access_token": t.access})
		if err != nil {
			return nil, err
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodDelete, a.revoke, bytes.NewReader(body))
		if err == nil {
			r.SetBasicAuth(a.ClientID, a.secret)
			r.Header.Set("Accept", "application/vnd.github+json")
		}
		return r, err
	}
	// RFC 7009. The end of a refresh token ends the access token as well.
	form := url.Values{"client_id": {a.ClientID}, "client_secret": {a.secret}, "token": {t.access}, "token_type_hint": {"access_token"}}
	if t.refresh != "" {
		form.Set("token", t.refresh)
		form.Set("token_type_hint", "refresh_token")
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.revoke, strings.NewReader(form.Encode()))
	if err == nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return r, err
}

// send returns the body of a successful answer.
func send(r *http.Request) ([]byte, error) {
	resp, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	switch {
	case err != nil:
	case resp.StatusCode == http.StatusUnauthorized:
		err = errRevoked
	case resp.StatusCode/100 != 2:
		err = fmt.Errorf("the provider answered %d", resp.StatusCode)
	}
	return body, err
}
