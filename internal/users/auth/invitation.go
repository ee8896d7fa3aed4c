package auth

import (
	"context"
	"encoding/base32"
	"strings"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"

	"golang.org/x/text/unicode/norm"
)

// invitationTurn is the name under which the requests of a source take turns. It cannot be a user
// name.
const invitationTurn = "\x00invitation"

// NewInvitation returns a secret for a link with which a user sets a password, and its hash.
// CodeNotSupported if users do not log in with passwords.
func (a *Auth) NewInvitation() (secret string, hash []byte, err error) {
	if a.noPasswords {
		return "", nil, noInvitations()
	}
	secret = strings.ToLower(base32.StdEncoding.EncodeToString(random(20))) // 160 bits, without padding
	sum := hashSecret(secret)
	return secret, sum[:], nil
}

func noInvitations() error {
	return workspace.Errorf(workspace.CodeNotSupported, "Password logins are turned off on this server, so there are no invitations. Users log in with an identity provider.")
}

// NewName checks the name of a new user, and returns it as it is stored.
func (a *Auth) NewName(username string) (string, error) {
	username = norm.NFC.String(strings.TrimSpace(username))
	return username, CheckUsername(username)
}

// Invited returns the name of the user of an invitation, which stays valid. Errors:
// CodeNotFound; CodeTooManyAttempts; CodeNotSupported as for NewInvitation.
func (a *Auth) Invited(ctx context.Context, secret string, from Client) (username string, err error) {
	u, _, err := a.invited(ctx, secret, from)
	return u.Username, err
}

// AcceptInvitation sets the password of an invitation's user and logs in, which ends the
// invitation. Errors are those of Invited; CodeInvalid for an unacceptable password.
func (a *Auth) AcceptInvitation(ctx context.Context, secret, password string, from Client) (Entry, error) {
	u, hash, err := a.invited(ctx, secret, from)
	if err != nil {
		return Entry{}, err
	}
	checked, err := a.checkedHash(ctx, from.source(), u.Username, password)
	if err != nil {
		return Entry{}, err
	}
	u, err = a.store.AcceptInvitation(ctx, workspace.Caller{Address: from.Address}, hash, checked)
	if err != nil {
		return Entry{}, err
	}
	a.Invalidate(u.ID, "")
	return a.proceed(ctx, u, from, true)
}

// invited lets one request of a source through at a time and delays refusals, so that wrong
// secrets are few. It locks nobody out: a secret cannot be guessed, and users behind one address
// open links that have expired.
func (a *Auth) invited(ctx context.Context, secret string, from Client) (postgres.User, []byte, error) {
	if a.noPasswords {
		return postgres.User{}, nil, noInvitations()
	}
	start, source := time.Now(), from.source()
	done, err := a.names.take(ctx, invitationTurn+source, source)
	if err != nil {
		return postgres.User{}, nil, err
	}
	defer done()
	sum := hashSecret(strings.ToLower(strings.TrimSpace(secret)))
	u, err := a.store.InvitedUser(ctx, sum[:])
	if workspace.CodeOf(err) == workspace.CodeNotFound {
		a.wait(ctx, start)
	}
	return u, sum[:], err
}
