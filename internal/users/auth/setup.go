package auth

import (
	"context"
	"crypto/subtle"
	"encoding/base32"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// AdminUsername is the user that CODEHUB_ADMIN_PASSWORD creates.
const AdminUsername = "admin"

// setupAttempts is the name under which failed setup codes are counted, for each source: a
// visitor must not lock the operator out, and the 80 bits of the code cannot be guessed. It cannot be a
// user name.
const setupAttempts = "\x00setup"

// SetupNeeded reports whether there is no user yet.
func (a *Auth) SetupNeeded(ctx context.Context) (bool, error) {
	if a.hasUsers.Load() {
		return false, nil
	}
	n, err := a.store.UserCount(ctx)
	if err != nil {
		return false, fmt.Errorf("count the users: %w", err)
	}
	if n > 0 {
		a.hasUsers.Store(true)
	}
	return n == 0, nil
}

// SetupCode returns the one-time code for Setup, to be printed for the operator, or "" if
// there are users. All servers of an installation have the same one, so any of them can
// answer the setup page.
func (a *Auth) SetupCode(ctx context.Context) (string, error) {
	needed, err := a.SetupNeeded(ctx)
	if err != nil || !needed {
		return "", err
	}
	key, err := a.store.SetupKey(ctx)
	if err != nil {
		return "", err
	}
	s := base32.StdEncoding.EncodeToString(key) // letters and digits without 0, 1, 8, 9
	return s[0:4] + "-" + s[4:8] + "-" + s[8:12] + "-" + s[12:16], nil
}

// Setup creates the first user, an administrator, and logs in. It requires the code
// from SetupCode; wrong codes are limited like wrong passwords. It is CodeForbidden
// once there is a user.
func (a *Auth) Setup(ctx context.Context, code, username, password string, from Client) (Entry, error) {
	start := time.Now()
	if err := a.checkSetupCode(ctx, code, from.source()); err != nil {
		a.wait(ctx, start)
		return Entry{}, err
	}
	user, err := a.createFirst(ctx, from.source(), from.Address, username, password)
	if err != nil {
		return Entry{}, err
	}
	return a.proceed(ctx, user, from, true)
}

func (a *Auth) checkSetupCode(ctx context.Context, code, source string) error {
	needed, err := a.SetupNeeded(ctx)
	if err != nil {
		return err
	}
	if !needed {
		return setupOver()
	}
	done, err := a.names.take(ctx, setupAttempts, source)
	if err != nil {
		return err
	}
	defer done()
	now, counted := a.now(), setupAttempts+source
	if until := a.attempts.lockedUntil(counted); until != nil && until.After(now) {
		return lockedOut(*until, now)
	}
	want, err := a.SetupCode(ctx)
	if err != nil {
		return err
	}
	if want == "" {
		return setupOver()
	}
	code = strings.ToUpper(strings.TrimSpace(code))
	if subtle.ConstantTimeCompare([]byte(normalizeCode(code)), []byte(normalizeCode(want))) != 1 {
		a.attempts.fail(counted, now)
		return workspace.Errorf(workspace.CodeForbidden, "The setup code is incorrect. Look for it in the server's output.")
	}
	return nil
}

func normalizeCode(s string) string { return strings.NewReplacer("-", "", " ", "").Replace(s) }

func setupOver() error {
	return workspace.Errorf(workspace.CodeForbidden, "codehub is set up already. Log in, or ask an administrator for an account.")
}

// EnsureAdmin creates the user admin with CODEHUB_ADMIN_PASSWORD if there is no
// user, and reports whether it did.
func (a *Auth) EnsureAdmin(ctx context.Context, password string) (bool, error) {
	needed, err := a.SetupNeeded(ctx)
	if err != nil || !needed {
		return false, err
	}
	_, err = a.createFirst(ctx, ownSource, netip.Addr{}, AdminUsername, password)
	if workspace.CodeOf(err) == workspace.CodeForbidden {
		return false, nil // another server has created it
	}
	return err == nil, err
}

func (a *Auth) createFirst(ctx context.Context, source string, from netip.Addr, username, password string) (postgres.User, error) {
	u, err := a.newUser(ctx, source, username, password)
	if err != nil {
		return postgres.User{}, err
	}
	u.Admin = true
	created, err := a.store.CreateFirstUser(ctx, from, u)
	if workspace.CodeOf(err) == workspace.CodeForbidden {
		a.hasUsers.Store(true)
		return postgres.User{}, setupOver()
	}
	if err != nil {
		return postgres.User{}, err
	}
	a.hasUsers.Store(true)
	return created, nil
}

// CreateUser creates a user with a password.
func (a *Auth) CreateUser(ctx context.Context, username, password string, admin bool) (postgres.User, error) {
	u, err := a.newUser(ctx, ownSource, username, password)
	if err != nil {
		return postgres.User{}, err
	}
	u.Admin = admin
	return a.store.CreateUser(ctx, u)
}

// NewUser validates a user name and a password that the caller chose, and returns a
// user to be stored.
func (a *Auth) NewUser(ctx context.Context, caller workspace.Caller, username, password string) (postgres.User, error) {
	return a.newUser(ctx, sourceOf(caller), username, password)
}

func (a *Auth) newUser(ctx context.Context, source, username, password string) (postgres.User, error) {
	username, err := a.NewName(username)
	if err != nil {
		return postgres.User{}, err
	}
	hash, err := a.checkedHash(ctx, source, username, password)
	if err != nil {
		return postgres.User{}, err
	}
	return postgres.User{Username: username, PasswordHash: hash}, nil
}

// CheckedHash validates a password that the caller chose for a user, and returns its
// hash.
func (a *Auth) CheckedHash(ctx context.Context, caller workspace.Caller, username, password string) (string, error) {
	return a.checkedHash(ctx, sourceOf(caller), username, password)
}

func (a *Auth) checkedHash(ctx context.Context, source, username, password string) (string, error) {
	if err := CheckPassword(username, password); err != nil {
		return "", err
	}
	return a.hasher.Hash(ctx, source, password)
}
