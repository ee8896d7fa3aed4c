package auth

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"time"

	"codehub/api"
	"codehub/internal/workspace"
)

// On the host of a workspace a visitor has a session of that host alone. It begins with
// a ticket:
//
//  1. The workspace's host sets a nonce cookie and redirects to the main origin with
//     the nonce's hash (Nonce).
//  2. The main origin, where the visitor is logged in, redirects back with a ticket
//     that is bound to this hash (IssueTicket).
//  3. The workspace's host compares the nonce cookie, ends the ticket and sets the
//     session cookie (RedeemTicket).
//
// The nonce keeps others from sending a visitor to a workspace with a ticket of
// theirs. The session ends with the one that the visitor has on the main origin.

const (
	workspaceCookie = "codehub_workspace"
	nonceCookie     = "codehub_nonce"
	hostPrefix      = "__Host-" // with https: the cookie is of this host and path /

	nonceLifetime = 10 * time.Minute
	// enteredFor is how long Entered reports a redeemed ticket.
	enteredFor = 10 * time.Second
	// entered begins the value of the nonce cookie after a ticket was redeemed. A part
	// of the hash of the session that it became follows.
	entered = "entered-"
)

// AuthenticateWorkspace returns the sender of a request to the host of a workspace: by
// the API token in Codehub-Session-Token, or else by the session cookie of this very
// host. It is Authenticate in all other respects.
func (a *Auth) AuthenticateWorkspace(r *http.Request, host workspace.Host) (workspace.Caller, error) {
	if len(r.Header.Values(api.TokenHeader)) > 0 {
		return a.Authenticate(r, false)
	}
	name := a.hostCookieName(workspaceCookie)
	session, err := sessionCookie(r.CookiesNamed(name), name)
	switch {
	case err != nil:
		return workspace.Caller{}, err
	case session == "":
		return workspace.Caller{}, unauthenticated()
	}
	id, err := a.identify(r.Context(), hashSecret(session), workspaceCredential)
	switch {
	case err != nil:
		return workspace.Caller{}, err
	case id.host != host:
		return workspace.Caller{}, unauthenticated()
	}
	return id.at(r).Caller, nil
}

// Nonce returns the hash, in hex, of the nonce in the request's cookie, and the cookie
// to set. A browser that opens several tabs keeps its nonce.
func (a *Auth) Nonce(r *http.Request) (hash string, cookie *http.Cookie) {
	nonce := newSessionID()
	for _, c := range r.CookiesNamed(a.hostCookieName(nonceCookie)) {
		if len(c.Value) == len(nonce) {
			nonce = c.Value
			break
		}
	}
	h := hashSecret(nonce)
	return hex.EncodeToString(h[:]), a.hostCookie(nonceCookie, nonce, nonceLifetime)
}

// Entered reports whether this browser was given a session of this host some seconds
// ago and does not send its cookie. Another ticket would not help.
func (a *Auth) Entered(r *http.Request) bool {
	c, err := r.Cookie(a.hostCookieName(nonceCookie))
	if err != nil || !strings.HasPrefix(c.Value, entered) {
		return false
	}
	name := a.hostCookieName(workspaceCookie)
	session, err := sessionCookie(r.CookiesNamed(name), name)
	return err != nil || session == "" || enteredValue(hashSecret(session)) != c.Value
}

func enteredValue(session secretHash) string { return entered + hex.EncodeToString(session[:8]) }

// IssueTicket returns a ticket for a host that a browser with this nonce (its hash in
// hex) can redeem once, within a minute. The caller must have a session
// of the main origin, and the right to use the workspace.
func (a *Auth) IssueTicket(ctx context.Context, caller workspace.Caller, host workspace.Host, nonce string) (string, error) {
	session, ok := decodeSession(caller.Session)
	bound, valid := decodeSession(nonce)
	if !ok || !valid || caller.Token != "" {
		return "", unauthenticated()
	}
	ticket := newSessionID()
	hash := hashSecret(ticket)
	if err := a.store.CreateTicket(ctx, hash[:], session[:], host, bound[:]); err != nil {
		return "", fmt.Errorf("create a ticket: %w", err)
	}
	return ticket, nil
}

// RedeemTicket ends a ticket, valid or not, and returns the cookies of the browser's new
// session of this host. Errors: CodeInvalid if the browser sent no nonce, and
// CodeUnauthenticated for a ticket that has been used, has expired, or belongs to
// another host or browser.
func (a *Auth) RedeemTicket(r *http.Request, ticket string, host workspace.Host) ([]*http.Cookie, error) {
	id, nonce := newSessionID(), ""
	for _, c := range r.CookiesNamed(a.hostCookieName(nonceCookie)) {
		if c.Value != "" && !strings.HasPrefix(c.Value, entered) {
			nonce = c.Value
			break
		}
	}
	hash, redeemed := hashSecret(id), hashSecret(ticket)
	if nonce == "" {
		// The page that follows has the ticket in its address, which pages of the workspace can read.
		if _, err := a.store.RedeemTicket(r.Context(), redeemed[:], host, nil, hash[:]); workspace.CodeOf(err) != workspace.CodeUnauthenticated {
			return nil, fmt.Errorf("end a ticket: %w", err)
		}
		return nil, workspace.Errorf(workspace.CodeInvalid, "The browser sent no cookie of this workspace.")
	}
	bound := hashSecret(nonce)
	expires, err := a.store.RedeemTicket(r.Context(), redeemed[:], host, bound[:], hash[:])
	if err != nil {
		return nil, fmt.Errorf("redeem a ticket: %w", err)
	}
	session := a.hostCookie(workspaceCookie, id, expires.Sub(a.now()))
	session.Expires = expires
	return []*http.Cookie{session, a.hostCookie(nonceCookie, enteredValue(hash), enteredFor)}, nil
}

func (a *Auth) hostCookie(name, value string, lifetime time.Duration) *http.Cookie {
	return &http.Cookie{
		Name: a.hostCookieName(name), Value: value, Path: "/", MaxAge: max(1, int(lifetime/time.Second)),
		HttpOnly: true, Secure: a.secure, SameSite: http.SameSiteLaxMode,
	}
}

func (a *Auth) hostCookieName(name string) string {
	if a.secure {
		return hostPrefix + name
	}
	return name
}
