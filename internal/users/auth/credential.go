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
func CookieNames() []string {
	return []string{plainCookie, secureCookie, workspaceCookie, hostPrefix + workspaceCookie, nonceCookie, hostPrefix + nonceCookie, flowCookie, hostPrefix + flowCookie, pendingCookie, hostPrefix + pendingCookie}
}

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

// credentials returns the credential in a request and its kind. An explicit token takes
// precedence.
func (a *Auth) credentials(r *http.Request, bearer bool) (secret string, kind credential, err error) {
	if v := r.Header.Values(api.TokenHeader); len(v) > 0 {
		if len(v) > 1 || !IsToken(v[0]) {
			return "", tokenCredential, unauthenticated()
		}
		return v[0], tokenCredential, nil
	}
	if v := r.Header.Values("Authorization"); bearer && len(v) > 0 {
		scheme, value, _ := strings.Cut(v[0], " ")
		if len(v) > 1 || !strings.EqualFold(scheme, "Bearer") || !IsToken(strings.TrimSpace(value)) {
			return "", tokenCredential, unauthenticated()
		}
		return strings.TrimSpace(value), tokenCredential, nil
	}
	name := a.cookieName()
	session, err := sessionCookie(r.CookiesNamed(name), name)
	if err == nil && session == "" {
		err = unauthenticated()
	}
	return session, sessionCredential, err
}

func unauthenticated() error {
	return workspace.Errorf(workspace.CodeUnauthenticated, "Log in first.")
}
