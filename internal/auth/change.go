package auth

import (
	"context"
	"fmt"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// ChangePassword gives the caller another password, if current is the present
// one: who has got hold of a session or token has not got the account. Wrong
// ones are limited together with those at the login. All the user's sessions
// and tokens end, the caller's too; the new session that is returned is for a
// browser to go on with, and none for a caller with a token. Errors are those
// of Login, CodeInvalid for a password that cannot be taken, and
// CodeUnauthenticated if somebody else has changed it, or disabled the user,
// meanwhile.
func (a *Auth) ChangePassword(ctx context.Context, caller workspace.Caller, current, password, userAgent string) (Session, error) {
	start := time.Now()
	user, hash, err := a.checkedChange(ctx, caller, current, password)
	if err != nil {
		if workspace.CodeOf(err) == workspace.CodeBadCredentials {
			a.wait(ctx, start)
		}
		return Session{}, err
	}
	if err := a.store.SetPassword(ctx, user.ID, user.PasswordHash, hash); err != nil {
		return Session{}, fmt.Errorf("set the password: %w", err)
	}
	a.Invalidate(caller.UserID, "")
	if caller.Token != "" {
		return Session{}, nil
	}
	user.PasswordHash = hash
	return a.begin(ctx, user, userAgent)
}

// checkedChange is the caller, with the hash of the present password, which has
// proved right, and the hash of the new one.
func (a *Auth) checkedChange(ctx context.Context, caller workspace.Caller, current, password string) (user postgres.User, changed string, err error) {
	done, err := a.names.take(ctx, cases.Fold().String(norm.NFKC.String(caller.Username)))
	if err != nil {
		return user, "", err
	}
	defer done()
	user, err = a.store.User(ctx, caller.UserID)
	if err != nil {
		return user, "", fmt.Errorf("look up the user: %w", err)
	}
	if until, now := user.LockedUntil, a.now(); until != nil && until.After(now) {
		return user, "", lockedOut(*until, now)
	}
	if err := CheckPassword(user.Username, password); err != nil {
		return user, "", err
	}
	ok := false
	if current != "" && len(current) <= MaxPassword {
		if ok, err = a.hasher.Verify(ctx, user.PasswordHash, current); err != nil {
			return user, "", fmt.Errorf("verify the password: %w", err)
		}
	}
	if !ok {
		if _, err := a.store.RecordLoginFailure(ctx, user.ID, lockedUntil); err != nil {
			return user, "", fmt.Errorf("count the failed attempt: %w", err)
		}
		return user, "", workspace.Errorf(workspace.CodeBadCredentials, "The current password is incorrect.")
	}
	changed, err = a.hasher.Hash(ctx, password)
	return user, changed, err
}
