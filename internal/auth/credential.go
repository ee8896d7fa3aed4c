package auth

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strings"
	"time"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

const (
	plainCookie  = "codehub_session"
	secureCookie = "__Host-codehub_session"

	// TokenPrefix begins every API token, so that people and secret scanners can
	// recognize it.
	TokenPrefix = "chub_"
)

// CookieNames returns the names of codehub's own cookies, which a workspace neither
// receives nor can set.
func CookieNames() []string { return []string{plainCookie, secureCookie} }

// IsToken reports whether a credential has the form of an API token of codehub.
func IsToken(s string) bool { return strings.HasPrefix(s, TokenPrefix) }

func newSessionID() string { return base64.RawURLEncoding.EncodeToString(random(32)) }

func newToken() string {
	return TokenPrefix + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(random(32)))
}

type secretHash = [sha256.Size]byte

func hashSecret(s string) secretHash { return sha256.Sum256([]byte(s)) }

func decodeSession(s string) (h secretHash, ok bool) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(h) {
		return h, false
	}
	return secretHash(b), true
}

func callerOf(u postgres.User, hash secretHash, token string) workspace.Caller {
	return workspace.Caller{UserID: u.ID, Username: u.Username, Admin: u.Admin, Session: hex.EncodeToString(hash[:]), Token: token}
}

// Cookie returns the cookie for a new session.
func (a *Auth) Cookie(s Session) *http.Cookie {
	c := a.cookie(s.ID)
	c.Expires = s.Expires
	c.MaxAge = int(s.Expires.Sub(a.now()) / time.Second)
	return c
}

// ClearCookie returns a cookie that deletes the session cookie.
func (a *Auth) ClearCookie() *http.Cookie {
	c := a.cookie("")
	c.MaxAge = -1
	return c
}

func (a *Auth) cookie(value string) *http.Cookie {
	return &http.Cookie{Name: a.cookieName(), Value: value, Path: "/", HttpOnly: true, Secure: a.secure, SameSite: http.SameSiteLaxMode}
}

func (a *Auth) cookieName() string {
	if a.secure {
		return secureCookie
	}
	return plainCookie
}

// maxCookies limits how many session cookies are checked: a page in a workspace can
// add some with a different path.
const maxCookies = 4

// credentials returns the credentials in a request. An explicit token takes
// precedence; there are several cookies only if a page has added some.
func (a *Auth) credentials(r *http.Request, bearer bool) (token string, sessions []string, err error) {
	if v := r.Header.Values(api.TokenHeader); len(v) > 0 {
		if len(v) > 1 || !IsToken(v[0]) {
			return "", nil, unauthenticated()
		}
		return v[0], nil, nil
	}
	if v := r.Header.Values("Authorization"); bearer && len(v) > 0 {
		scheme, value, _ := strings.Cut(v[0], " ")
		if len(v) > 1 || !strings.EqualFold(scheme, "Bearer") || !IsToken(strings.TrimSpace(value)) {
			return "", nil, unauthenticated()
		}
		return strings.TrimSpace(value), nil, nil
	}
	for _, c := range r.CookiesNamed(a.cookieName()) {
		if c.Value != "" && len(sessions) < maxCookies {
			sessions = append(sessions, c.Value)
		}
	}
	if len(sessions) == 0 {
		return "", nil, unauthenticated()
	}
	return "", sessions, nil
}

func unauthenticated() error {
	return workspace.Errorf(workspace.CodeUnauthenticated, "Log in first.")
}
