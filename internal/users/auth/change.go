package auth

import (
	"context"
	"fmt"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// ChangePassword replaces the caller's password. It requires the current one, so
// that a stolen session or token is not sufficient. Wrong ones count towards the
// lockout. All of the user's sessions and tokens end, including the caller's; the
// returned session lets a browser continue until the end of the one that it replaces, also
// if an identity provider ends that one, as the change is no login with all its factors. It is
// empty for a caller with a token.
// Errors are those of Login, CodeInvalid for an unacceptable password, and
// CodeUnauthenticated if the password was changed, the user disabled or the session
// ended in the meantime.
func (a *Auth) ChangePassword(ctx context.Context, caller workspace.Caller, current, password string, from Client) (Session, error) {
	start := time.Now()
	user, hash, err := a.checkedChange(ctx, caller, current, password)
	if err != nil {
		if workspace.CodeOf(err) == workspace.CodeBadCredentials {
			a.wait(ctx, start)
		}
		return Session{}, err
	}
	if caller.Token != "" {
		if _, err := a.store.SetPassword(ctx, caller, user.PasswordHash, hash, nil); err != nil {
			return Session{}, fmt.Errorf("set the password: %w", err)
		}
		a.Invalidate(caller.UserID, "")
		return Session{}, nil
	}
	id := newSessionID()
	next := hashSecret(id)
	ends, err := a.store.SetPassword(ctx, caller, user.PasswordHash, hash, &postgres.Successor{Hash: next[:], From: from.stored()})
	if err != nil {
		return Session{}, fmt.Errorf("set the password: %w", err)
	}
	a.Invalidate(caller.UserID, "")
	user.PasswordHash = hash
	return Session{ID: id, Expires: ends, User: user, Caller: callerOf(user, next, "")}, nil
}

// checkedChange returns the caller, whose current password has been verified, and
// the hash of the new one.
func (a *Auth) checkedChange(ctx context.Context, caller workspace.Caller, current, password string) (user postgres.User, changed string, err error) {
	user, err = a.verified(ctx, caller, current, func(u postgres.User) error { return CheckPassword(u.Username, password) })
	if err != nil {
		return user, "", err
	}
	changed, err = a.hasher.Hash(ctx, sourceOf(caller), password)
	return user, changed, err
}

// verified returns the caller, whose password it verifies: after check, which may be nil.
// Errors: CodeBadCredentials, which counts as a failed login; CodeLockedOut;
// CodeNotSupported for a user without a password.
func (a *Auth) verified(ctx context.Context, caller workspace.Caller, password string, check func(postgres.User) error) (user postgres.User, err error) {
	done, err := a.names.take(ctx, postgres.UsernameKey(caller.Username), sourceOf(caller))
	if err != nil {
		return user, err
	}
	defer done()
	user, err = a.store.User(ctx, caller.UserID)
	if err != nil {
		return user, fmt.Errorf("look up the user: %w", err)
	}
	if user.PasswordHash == "" {
		return user, workspace.Errorf(workspace.CodeNotSupported, "You log in with an identity provider and have no password here.")
	}
	if until, now := user.LockedUntil, a.now(); until != nil && until.After(now) {
		return user, lockedOut(*until, now)
	}
	if check != nil {
		if err := check(user); err != nil {
			return user, err
		}
	}
	ok := false
	if password != "" && len(password) <= MaxPassword {
		if ok, err = a.hasher.Verify(ctx, sourceOf(caller), user.PasswordHash, password); err != nil {
			return user, fmt.Errorf("verify the password: %w", err)
		}
	}
	if !ok {
		if err := a.store.RecordLoginFailure(ctx, user.ID, lockedUntil); err != nil {
			return user, fmt.Errorf("count the failed attempt: %w", err)
		}
		return user, workspace.Errorf(workspace.CodeBadCredentials, "The current password is incorrect.")
	}
	return user, nil
}
