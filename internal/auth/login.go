package auth

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"codehub/internal/postgres"
	"codehub/internal/workspace"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// Session is a login that has just been made. ID is the secret for the
// cookie; it is kept nowhere.
type Session struct {
	ID      string
	Expires time.Time
	User    postgres.User
	Caller  workspace.Caller
}

// Login checks a password and begins a session. Errors: CodeBadCredentials;
// CodeLockedOut with how long in its details; CodeForbidden for an account
// that is disabled (said only to who knows its password); CodeUnavailable
// when too many log in at once. A name that nobody has answers like one that
// somebody has, in its words, its lockout and its time.
func (a *Auth) Login(ctx context.Context, username, password, userAgent string) (Session, error) {
	start := time.Now()
	s, err := a.login(ctx, username, password, userAgent)
	if workspace.CodeOf(err) == workspace.CodeUnauthenticated {
		// The password was given another hash meanwhile: by its renewal, or
		// because it is another one.
		s, err = a.login(ctx, username, password, userAgent)
	}
	if err != nil {
		a.wait(ctx, start)
	}
	return s, err
}

func (a *Auth) login(ctx context.Context, username, password, userAgent string) (Session, error) {
	username = norm.NFC.String(strings.TrimSpace(username))
	bad := workspace.Errorf(workspace.CodeBadCredentials, "The username or password is incorrect.")
	if CheckUsername(username) != nil || password == "" || len(password) > MaxPassword {
		return Session{}, bad
	}
	name := cases.Fold().String(norm.NFKC.String(username)) // as the store compares them
	done, err := a.names.take(ctx, name)
	if err != nil {
		return Session{}, err
	}
	defer done()

	user, err := a.store.UserByName(ctx, username)
	known := err == nil
	if err != nil && workspace.CodeOf(err) != workspace.CodeNotFound {
		return Session{}, fmt.Errorf("look up the user: %w", err)
	}
	until, hash := user.LockedUntil, user.PasswordHash
	if !known {
		until, hash = a.attempts.lockedUntil(name), a.hasher.dummy
	}
	if now := a.now(); until != nil && until.After(now) {
		return Session{}, lockedOut(*until, now)
	}
	ok, err := a.hasher.Verify(ctx, hash, password)
	if errors.Is(err, errHash) {
		a.log.WarnContext(ctx, "nobody can log in with this user's password hash: set a new password", "user", user.ID)
	} else if err != nil {
		return Session{}, fmt.Errorf("verify the password: %w", err)
	}
	switch {
	case !known:
		a.attempts.fail(name, a.now())
		return Session{}, bad
	case !ok:
		if _, err := a.store.RecordLoginFailure(ctx, user.ID, lockedUntil); err != nil {
			return Session{}, fmt.Errorf("count the failed login: %w", err)
		}
		return Session{}, bad
	case user.Disabled:
		return Session{}, workspace.Errorf(workspace.CodeForbidden, "This account is disabled. Ask an administrator.")
	}
	if user.FailedLogins > 0 {
		if err := a.store.ResetLoginFailures(ctx, user.ID); err != nil {
			return Session{}, fmt.Errorf("reset the failed logins: %w", err)
		}
	}
	return a.begin(ctx, a.renew(ctx, user, password), userAgent)
}

// begin makes a session for a user who has proved to be that user, by the
// password of the hash that user has. Its id is always new: one that the
// browser brought along is never taken over. CodeUnauthenticated if the hash is
// another one by now.
func (a *Auth) begin(ctx context.Context, user postgres.User, userAgent string) (Session, error) {
	id := newSessionID()
	hash := hashSecret(id)
	expires := a.now().Add(SessionLifetime).UTC().Truncate(time.Second)
	if err := a.store.CreateSession(ctx, hash[:], user.ID, user.PasswordHash, expires, boundedText(userAgent, 256)); err != nil {
		return Session{}, fmt.Errorf("create the session: %w", err)
	}
	return Session{ID: id, Expires: expires, User: user, Caller: callerOf(user, hash, "")}, nil
}

// Logout ends the session that the caller came with. A caller who came with
// an API token has none; the token is ended by DeleteToken.
func (a *Auth) Logout(ctx context.Context, caller workspace.Caller) error {
	if caller.Token != "" {
		return workspace.Errorf(workspace.CodeInvalid, "An API token cannot log out. Delete it instead.")
	}
	hash, ok := decodeSession(caller.Session)
	if !ok {
		return unauthenticated()
	}
	if err := a.store.DeleteSession(ctx, hash[:]); err != nil {
		return fmt.Errorf("end the session: %w", err)
	}
	a.Invalidate(caller.UserID, caller.Session)
	return nil
}

// CheckUsername says whether a name can be a username: 1–64 letters, digits
// and . _ @ -, beginning with a letter or digit.
func CheckUsername(name string) error {
	bad := workspace.Errorf(workspace.CodeInvalid, "A username has 1 to 64 letters, digits or . _ @ - and starts with a letter or digit.")
	if !utf8.ValidString(name) || name == "" || utf8.RuneCountInString(name) > 64 {
		return bad
	}
	for i, r := range name {
		if unicode.IsLetter(r) || unicode.IsDigit(r) || (i > 0 && strings.ContainsRune("._@-", r)) {
			continue
		}
		return bad
	}
	return nil
}

// boundedText makes what a client sent fit to be stored: at most n bytes of
// valid text without control characters.
func boundedText(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "")
	}
	return s
}
