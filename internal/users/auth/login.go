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

	"golang.org/x/text/unicode/norm"
)

// Session is a new session. ID is the secret for the cookie, which is not stored.
type Session struct {
	ID      string
	Expires time.Time
	User    postgres.User
	Caller  workspace.Caller
}

// Entry is what a right password leads to: a session, or a login that waits for a passkey.
type Entry struct {
	Session Session
	// Pending is the secret of the login for PendingCookie; empty: Session has begun.
	Pending string
}

// Login verifies a password and creates a session, for programs: CodePasskeyRequired if the
// login needs a passkey as well. The other errors are those of BeginLogin.
func (a *Auth) Login(ctx context.Context, username, password string, from Client) (Session, error) {
	e, err := a.enter(ctx, username, password, from, false)
	return e.Session, err
}

// BeginLogin verifies a password, for browsers. Errors: CodeBadCredentials;
// CodeLockedOut with the remaining time in its details; CodeForbidden for a
// disabled account and CodeSuspended for a suspended one, if the password was right; CodeTooManyAttempts if too many logins
// from the client's address wait. A name that does not exist gets the same messages, lockout and
// response time as one that does.
func (a *Auth) BeginLogin(ctx context.Context, username, password string, from Client) (Entry, error) {
	return a.enter(ctx, username, password, from, true)
}

func (a *Auth) enter(ctx context.Context, username, password string, from Client, browser bool) (Entry, error) {
	start := time.Now()
	s, err := a.login(ctx, username, password, from, browser)
	if workspace.CodeOf(err) == workspace.CodeUnauthenticated {
		// The password's hash was replaced in the meantime: by its renewal, or by a
		// new password.
		s, err = a.login(ctx, username, password, from, browser)
	}
	if err != nil {
		a.wait(ctx, start)
	}
	return s, err
}

func (a *Auth) login(ctx context.Context, username, password string, from Client, browser bool) (Entry, error) {
	username = norm.NFC.String(strings.TrimSpace(username))
	bad := workspace.Errorf(workspace.CodeBadCredentials, "The username or password is incorrect.")
	if a.noPasswords {
		bad = workspace.Errorf(workspace.CodeBadCredentials, "Log in with your identity provider; password logins are turned off on this server.")
	}
	if !wellFormed(username) || password == "" || len(password) > MaxPassword {
		return Entry{}, bad
	}
	source := from.source()
	if a.hasher.queue.full(source) {
		return Entry{}, tooManyAttempts() // without a query
	}
	done, err := a.names.take(ctx, postgres.UsernameKey(username), source)
	if err != nil {
		return Entry{}, err
	}
	defer done()

	user, err := a.store.UserByName(ctx, username)
	// A user who cannot log in with a password is like a name that does not exist.
	known := err == nil && a.hasPassword(user)
	if err != nil && workspace.CodeOf(err) != workspace.CodeNotFound {
		return Entry{}, fmt.Errorf("look up the user: %w", err)
	}
	// Also for a known name, which must not take less time.
	unknownUntil, err := a.store.NameLockedUntil(ctx, username)
	if err != nil {
		return Entry{}, fmt.Errorf("look up the lockout: %w", err)
	}
	until, hash := user.LockedUntil, user.PasswordHash
	if !known {
		until, hash = unknownUntil, a.hasher.dummy
	}
	if now := a.now(); until != nil && until.After(now) {
		return Entry{}, lockedOut(*until, now)
	}
	ok, err := a.hasher.Verify(ctx, source, hash, password)
	if errors.Is(err, errHash) {
		a.log.WarnContext(ctx, "password hash is invalid; the user needs a new password", "user", user.ID)
	} else if err != nil {
		return Entry{}, fmt.Errorf("verify the password: %w", err)
	}
	switch {
	case !known || !ok:
		if known {
			err = a.store.RecordLoginFailure(ctx, user.ID, lockedUntil)
		} else {
			err = a.store.RecordNameFailure(ctx, username, lockedUntil)
		}
		if err != nil {
			return Entry{}, fmt.Errorf("count the failed login: %w", err)
		}
		return Entry{}, bad
	case user.Disabled:
		return Entry{}, workspace.Errorf(workspace.CodeForbidden, "This account is disabled. Ask an administrator.")
	case user.Suspended != "":
		return Entry{}, workspace.Errorf(workspace.CodeSuspended, "This account is suspended until its identity provider confirms it. Log in with the provider, or ask an administrator.")
	}
	return a.proceed(ctx, a.renew(ctx, source, user, password), from, browser)
}

// hasPassword reports whether the user may log in with a password.
func (a *Auth) hasPassword(u postgres.User) bool {
	return u.PasswordHash != "" && (!a.noPasswords || u.PasswordLoginUntil != nil && u.PasswordLoginUntil.After(a.now()))
}

// PasswordLogin reports whether users log in with passwords; see Settings.NoPasswordLogin.
func (a *Auth) PasswordLogin() bool { return !a.noPasswords }

// begin creates a session for a user whose password was verified with the hash in
// user. The ID is always new, never one that the browser sent. CodeUnauthenticated
// if the hash has changed in the meantime.
func (a *Auth) begin(ctx context.Context, user postgres.User, from Client) (Session, error) {
	expires := a.now().Add(SessionLifetime).UTC().Truncate(time.Second)
	id := newSessionID()
	hash := hashSecret(id)
	if err := a.store.CreateSession(ctx, hash[:], user.ID, user.PasswordHash, expires, from.stored()); err != nil {
		return Session{}, fmt.Errorf("create the session: %w", err)
	}
	return Session{ID: id, Expires: expires, User: user, Caller: callerOf(user, hash, "")}, nil
}

// Logout ends the caller's session. A caller with an API token has none;
// DeleteToken ends the token.
func (a *Auth) Logout(ctx context.Context, caller workspace.Caller) error {
	if caller.Token != "" {
		return workspace.Errorf(workspace.CodeInvalid, "An API token cannot log out. Delete it instead.")
	}
	hash, ok := decodeSession(caller.Session)
	if !ok {
		return unauthenticated()
	}
	if err := a.store.DeleteSession(ctx, hash[:], caller.Address); err != nil {
		return fmt.Errorf("end the session: %w", err)
	}
	a.Invalidate(caller.UserID, caller.Session)
	return nil
}

// CheckUsername checks a new user name: 1–64 letters, digits and . _ @ -, beginning
// with a letter or digit, and none of them invisible, so that no two names look the same
// because of one.
func CheckUsername(name string) error {
	switch {
	case !wellFormed(name):
		return workspace.Errorf(workspace.CodeInvalid, "A username has 1 to 64 letters, digits or . _ @ - and starts with a letter or digit.")
	case strings.ContainsFunc(name, workspace.Invisible):
		return workspace.Errorf(workspace.CodeInvalid, "A username must not contain invisible characters.")
	}
	return nil
}

// wellFormed reports whether there can be a user with this name. Earlier versions
// accepted fillers, which are invisible and count as letters.
func wellFormed(name string) bool {
	if !utf8.ValidString(name) || name == "" || utf8.RuneCountInString(name) > 64 {
		return false
	}
	for i, r := range name {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && (i == 0 || !strings.ContainsRune("._@-", r)) {
			return false
		}
	}
	return true
}

// boundedText makes a client's text safe to store: at most n bytes of valid UTF-8
// without control characters.
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
