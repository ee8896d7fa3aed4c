package auth

import (
	"context"
	"net/http"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// flowCookie holds a login in progress with an identity provider.
const flowCookie = "codehub_signin"

// FlowCookie returns the cookie for a login in progress, which only its package can read;
// an empty value removes it.
func (a *Auth) FlowCookie(value string, lifetime time.Duration) *http.Cookie {
	c := a.hostCookie(flowCookie, value, lifetime)
	if value == "" {
		c.MaxAge = -1
	}
	return c
}

// Flow returns the value of FlowCookie in a request; empty if there is none.
// CodeCookieConflict if there are several: another page may have set one.
func (a *Auth) Flow(r *http.Request) (string, error) {
	name := a.hostCookieName(flowCookie)
	return sessionCookie(r.CookiesNamed(name), name)
}

// SignIn begins a session of the user whose identity in names, which the caller has
// verified with its provider; see postgres.DB.SignIn for the errors.
func (a *Auth) SignIn(ctx context.Context, in postgres.SignIn, from Client) (Session, error) {
	id := newSessionID()
	hash := hashSecret(id)
	in.Session, in.From = hash[:], from.stored()
	in.Expires = a.now().Add(SessionLifetime).UTC().Truncate(time.Second)
	user, err := a.store.SignIn(ctx, in)
	if err != nil {
		return Session{}, err
	}
	a.hasUsers.Store(true)
	a.Invalidate(user.ID, "") // a suspension may have ended
	return Session{ID: id, Expires: in.Expires, User: user, Caller: callerOf(user, hash, "")}, nil
}

// VerifyPassword verifies the caller's password again, and returns what LinkIdentity and
// UnlinkIdentity need as proof of it. Wrong passwords count as failed logins. Errors:
// CodeBadCredentials, CodeLockedOut, CodeTooManyAttempts; CodeNotSupported for a user
// without a password.
func (a *Auth) VerifyPassword(ctx context.Context, caller workspace.Caller, password string) (proof string, err error) {
	start := time.Now()
	user, err := a.verified(ctx, caller, password, nil)
	if err != nil {
		if workspace.CodeOf(err) == workspace.CodeBadCredentials {
			a.wait(ctx, start)
		}
		return "", err
	}
	return postgres.PasswordProof(user.PasswordHash), nil
}

// LinkIdentity adds an identity, which its provider has verified, to the caller. Errors:
// CodeUnauthenticated if the password has changed or the session has ended since proof;
// CodeNameTaken if it is another user's.
func (a *Auth) LinkIdentity(ctx context.Context, caller workspace.Caller, proof string, in postgres.SignIn) error {
	return a.store.LinkIdentity(ctx, caller, proof, in)
}

// UnlinkIdentity removes an identity of the caller and ends its sessions.
func (a *Auth) UnlinkIdentity(ctx context.Context, caller workspace.Caller, proof, id string) error {
	if a.noPasswords {
		return workspace.Errorf(workspace.CodeNotSupported, "Password logins are turned off on this server, so you could not log in any more.")
	}
	if err := a.store.UnlinkIdentity(ctx, caller, proof, id); err != nil {
		return err
	}
	a.Invalidate(caller.UserID, "")
	return nil
}

// Identities lists the caller's identities.
func (a *Auth) Identities(ctx context.Context, caller workspace.Caller) ([]postgres.Identity, error) {
	return a.store.Identities(ctx, caller)
}

// HasPassword reports whether the caller has a password.
func (a *Auth) HasPassword(ctx context.Context, caller workspace.Caller) (bool, error) {
	u, err := a.store.User(ctx, caller.UserID)
	return u.PasswordHash != "", err
}
