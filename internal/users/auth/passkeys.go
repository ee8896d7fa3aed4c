package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"

	"github.com/google/uuid"
	"golang.org/x/text/unicode/norm"
)

// A passkey is the second factor of a login with a password. After the password such a login is a
// secret in a cookie, which names a row of the database and is no session: nothing but the
// functions here accepts it. Several servers share the rows.

const (
	pendingCookie = "codehub_passkey"

	// attemptLifetime is how long a login waits for its passkey, and a registration for the
	// new one.
	attemptLifetime = 10 * time.Minute

	recoveryCodes  = 10
	recoveryLetter = 16 // of a code: 80 bits, so that a hash without salt of its own is enough
)

// PasskeysPossible reports whether browsers make passkeys for the address of this server.
func (a *Auth) PasskeysPossible() bool { return a.party != nil }

// PasskeyRequired reports whether every login with a password needs a passkey.
func (a *Auth) PasskeyRequired() bool { return a.requirePasskey }

func passkeyRequired() error {
	return workspace.Errorf(workspace.CodePasskeyRequired,
		"This login needs a passkey, which only a browser can use. Use codehub login --browser, or codehub login --device, instead of a password.")
}

// proceed continues after a right password: with a session, or with a login that waits for
// the passkey. The failed logins are forgotten only with the session, so that a right
// password gives no further guesses of recovery codes. CodePasskeyRequired for a program that
// is no browser.
func (a *Auth) proceed(ctx context.Context, user postgres.User, from Client, browser bool) (Entry, error) {
	second := a.requirePasskey
	if !second {
		var err error
		if second, err = a.store.HasPasskeys(ctx, user.ID); err != nil {
			return Entry{}, err
		}
	}
	if !second {
		if user.FailedLogins > 0 {
			if err := a.store.ResetLoginFailures(ctx, user.ID); err != nil {
				return Entry{}, fmt.Errorf("reset the failed logins: %w", err)
			}
		}
		s, err := a.begin(ctx, user, from)
		return Entry{Session: s}, err
	}
	if !browser {
		return Entry{}, passkeyRequired()
	}
	secret := newSessionID()
	hash := hashSecret(secret)
	err := a.store.BeginPasskey(ctx, postgres.PasskeyAttempt{
		Hash: hash[:], UserID: user.ID, Login: true, Proof: postgres.PasswordProof(user.PasswordHash), Lasts: attemptLifetime,
	})
	return Entry{Pending: secret}, err
}

// PendingCookie returns the cookie for a login that waits for a passkey; an empty secret
// removes it.
func (a *Auth) PendingCookie(secret string) *http.Cookie {
	c := a.hostCookie(pendingCookie, secret, attemptLifetime)
	c.SameSite = http.SameSiteStrictMode // it is of use on one page alone
	if secret == "" {
		c.MaxAge = -1
	}
	return c
}

// pending returns the hash of the login in a request. CodeUnauthenticated if there is none.
func (a *Auth) pending(r *http.Request) ([]byte, error) {
	name := a.hostCookieName(pendingCookie)
	secret, err := sessionCookie(r.CookiesNamed(name), name)
	if err != nil {
		return nil, err
	}
	if secret == "" {
		return nil, unauthenticated()
	}
	hash := hashSecret(secret)
	return hash[:], nil
}

// PendingLogin is a login that waits for a passkey.
type PendingLogin struct {
	Username string
	// Register: the user has no passkey, and has to make one.
	Register bool
	// Usable: the user has a passkey that was made for this server's address. Without one
	// only a recovery code helps.
	Usable bool
}

// PendingLogin returns the login that waits in this browser. CodeUnauthenticated if there is
// none.
func (a *Auth) PendingLogin(r *http.Request) (PendingLogin, error) {
	p, err := a.pendingOf(r)
	if err != nil {
		return PendingLogin{}, err
	}
	return PendingLogin{Username: p.User.Username, Register: len(p.Passkeys) == 0, Usable: len(a.keysOf(p.Passkeys)) > 0}, nil
}

func (a *Auth) pendingOf(r *http.Request) (postgres.PendingPasskey, error) {
	hash, err := a.pending(r)
	if err != nil {
		return postgres.PendingPasskey{}, err
	}
	p, err := a.store.PendingPasskey(r.Context(), hash, true)
	if err == nil && !a.mayGoOn(p) {
		err = unauthenticated()
	}
	return p, err
}

// mayGoOn reports whether a login still needs a second factor. Otherwise, after an
// administrator has removed the passkeys, it begins again.
func (a *Auth) mayGoOn(p postgres.PendingPasskey) bool {
	return len(p.Passkeys) > 0 || a.requirePasskey
}

// keysOf returns the passkeys that this server can verify.
func (a *Auth) keysOf(list []postgres.Passkey) []passkeyKey {
	var keys []passkeyKey
	for _, k := range list {
		if a.party != nil && k.Party == a.party.ID() {
			keys = append(keys, passkeyKey{ID: k.Credential, Record: k.Record})
		}
	}
	return keys
}

// owner is the user as the passkeys know it.
func (a *Auth) owner(p postgres.PendingPasskey) (passkeyUser, error) {
	id, err := uuid.Parse(p.User.ID)
	return passkeyUser{ID: id[:], Name: p.User.Username, Keys: a.keysOf(p.Passkeys)}, err
}

// LoginOptions returns what the browser needs for the passkey of the login that waits, in
// JSON, with a new challenge. name is that of a new passkey, for a user who has none. Errors:
// CodeUnauthenticated; CodeNotSupported if no passkey can be used here; CodeLockedOut.
func (a *Auth) LoginOptions(r *http.Request, name string) ([]byte, error) {
	p, err := a.pendingOf(r)
	if err != nil {
		return nil, err
	}
	if until, now := p.User.LockedUntil, a.now(); until != nil && until.After(now) {
		return nil, lockedOut(*until, now)
	}
	if len(p.Passkeys) == 0 {
		if name, err = PasskeyName(name); err != nil {
			return nil, err
		}
	}
	return a.options(r.Context(), p, len(p.Passkeys) == 0, name)
}

// options stores a new challenge of an attempt.
func (a *Auth) options(ctx context.Context, p postgres.PendingPasskey, register bool, name string) ([]byte, error) {
	owner, err := a.owner(p)
	switch {
	case err != nil:
		return nil, err
	case a.party == nil, !register && len(owner.Keys) == 0:
		return nil, noPasskeys()
	}
	begin := a.party.BeginLogin
	if register {
		begin = a.party.BeginRegistration
	}
	options, challenge, err := begin(owner)
	if err != nil {
		return nil, err
	}
	return options, a.store.ChallengePasskey(ctx, p.Hash, p.Login, challenge, name)
}

func noPasskeys() error {
	return workspace.Errorf(workspace.CodeNotSupported, "Passkeys need an https address with a host name, or localhost, and work only at the address that they were made for.")
}

// maxPasskeyName is in characters.
const maxPasskeyName = 100

// PasskeyName checks the name of a passkey.
func PasskeyName(name string) (string, error) {
	name = norm.NFC.String(boundedText(strings.TrimSpace(name), 4*maxPasskeyName))
	switch {
	case name == "" || !workspace.Visible(name) || len([]rune(name)) > maxPasskeyName:
		return "", workspace.Errorf(workspace.CodeInvalid, "The name of a passkey must have 1 to %d visible characters.", maxPasskeyName)
	case strings.ContainsFunc(name, turnsText):
		return "", workspace.Errorf(workspace.CodeInvalid, "The name of a passkey must not contain line breaks or characters that change the direction of text.")
	}
	return name, nil
}

// errStale: there is no challenge, since it was used or another page has replaced it.
func errStale() error {
	return workspace.Errorf(workspace.CodeBadCredentials, "The passkey was not accepted. Try again.")
}

// FinishLogin verifies the passkey of the login that waits, or adds the user's first one, and
// begins the session. codes are new recovery codes, if any, which are never shown again. Refused
// passkeys count as failed logins. Errors: CodeUnauthenticated if no login waits;
// CodeBadCredentials; CodeLockedOut.
func (a *Auth) FinishLogin(r *http.Request, response []byte) (s Session, codes []string, err error) {
	s, err = a.finish(r, func(p postgres.PendingPasskey, challenge []byte) (v postgres.PasskeyVerdict, guess bool, err error) {
		if challenge == nil {
			return v, false, errStale()
		}
		if len(p.Passkeys) > 0 {
			v, err = a.judgeUse(p, challenge, response)
			return v, true, err
		}
		codes, v.Codes = newRecoveryCodes(p.UserID)
		v.Add, err = a.judgeAdd(p, challenge, response)
		return v, false, err
	})
	if err != nil {
		return Session{}, nil, err
	}
	return s, codes, nil
}

// Recover begins the session of the login that waits with a recovery code, which ends. The
// errors are those of FinishLogin.
func (a *Auth) Recover(r *http.Request, code string) (Session, error) {
	return a.finish(r, func(p postgres.PendingPasskey, _ []byte) (v postgres.PasskeyVerdict, guess bool, err error) {
		hash := recoveryHash(p.UserID, code)
		if !slices.ContainsFunc(p.Codes, func(h []byte) bool { return string(h) == string(hash) }) {
			return v, true, workspace.Errorf(workspace.CodeBadCredentials, "The recovery code is incorrect, or was used already.")
		}
		v.Code = hash
		return v, true, nil
	})
}

// judge decides about the answer to a login, and reports whether a wrong one is a guess, which
// counts as a failed login.
type judge func(p postgres.PendingPasskey, challenge []byte) (v postgres.PasskeyVerdict, guess bool, err error)

// finish ends the login that waits.
func (a *Auth) finish(r *http.Request, j judge) (Session, error) {
	start := time.Now()
	s, err := a.answer(r, j)
	if workspace.CodeOf(err) == workspace.CodeBadCredentials {
		a.wait(r.Context(), start)
	}
	return s, err
}

func (a *Auth) answer(r *http.Request, j judge) (Session, error) {
	ctx, from := r.Context(), ClientOf(r)
	p, err := a.pendingOf(r)
	if err != nil {
		return Session{}, err
	}
	done, err := a.names.take(ctx, postgres.UsernameKey(p.User.Username), from.source())
	if err != nil {
		return Session{}, err
	}
	defer done()
	guessed := false
	id := newSessionID()
	hash := hashSecret(id)
	expires := a.now().Add(SessionLifetime).UTC().Truncate(time.Second)
	user, v, err := a.store.AnswerPasskey(ctx, postgres.PasskeyAnswer{
		Hash: p.Hash, Login: true, Session: hash[:], Expires: expires, From: from.stored(),
		Judge: func(p postgres.PendingPasskey, challenge []byte) (v postgres.PasskeyVerdict, err error) {
			if until, now := p.User.LockedUntil, a.now(); until != nil && until.After(now) {
				return v, lockedOut(*until, now)
			}
			if !a.mayGoOn(p) {
				return v, unauthenticated()
			}
			v, guessed, err = j(p, challenge)
			return v, err
		},
	})
	if err == nil && v.Cloned {
		a.log.WarnContext(ctx, "the counter of a passkey did not increase; its login was refused", "user", user.ID, "passkey", v.Use.ID)
		err, guessed = errStale(), true
	}
	if guessed && workspace.CodeOf(err) == workspace.CodeBadCredentials {
		if err := a.store.RecordLoginFailure(ctx, user.ID, lockedUntil); err != nil {
			return Session{}, fmt.Errorf("count the failed login: %w", err)
		}
	}
	if err != nil {
		return Session{}, err
	}
	return Session{ID: id, Expires: expires, User: user, Caller: callerOf(user, hash, "")}, nil
}

func (a *Auth) judgeUse(p postgres.PendingPasskey, challenge, response []byte) (v postgres.PasskeyVerdict, err error) {
	owner, err := a.owner(p)
	if err != nil {
		return v, err
	}
	if a.party == nil || len(owner.Keys) == 0 {
		return v, noPasskeys()
	}
	use, err := a.party.FinishLogin(owner, challenge, response)
	if err != nil {
		return v, a.refused(p, err)
	}
	for _, k := range p.Passkeys {
		if string(k.Credential) == string(use.ID) {
			k.Record = use.Record
			v.Use, v.Cloned = &k, use.Cloned
		}
	}
	return v, nil
}

func (a *Auth) judgeAdd(p postgres.PendingPasskey, challenge, response []byte) (*postgres.Passkey, error) {
	owner, err := a.owner(p)
	if err != nil {
		return nil, err
	}
	if a.party == nil {
		return nil, noPasskeys()
	}
	k, err := a.party.FinishRegistration(owner, challenge, response)
	if err != nil {
		return nil, a.refused(p, err)
	}
	return &postgres.Passkey{Credential: k.ID, Record: k.Record, Party: a.party.ID(), Name: p.Name}, nil
}

// refused is the error for a response that was refused; the log has the reason.
func (a *Auth) refused(p postgres.PendingPasskey, err error) error {
	if !errors.Is(err, errPasskeyRefused) {
		return err
	}
	a.log.Info("a passkey was refused", "user", p.UserID, "err", err)
	return errStale()
}

// CancelLogin ends the login that waits in this browser, if any.
func (a *Auth) CancelLogin(r *http.Request) error {
	hash, err := a.pending(r)
	if workspace.CodeOf(err) == workspace.CodeUnauthenticated {
		return nil
	}
	if err != nil {
		return err
	}
	return a.store.CancelPasskey(r.Context(), hash)
}

// Passkeys are a user's, for display to the user.
type Passkeys struct {
	List []postgres.Passkey
	// Codes are the recovery codes that are left.
	Codes int
	// Elsewhere lists those that were made for another address of the server, and are of no
	// use at this one.
	Elsewhere map[string]bool // by id
}

// Passkeys lists the caller's passkeys.
func (a *Auth) Passkeys(ctx context.Context, caller workspace.Caller) (p Passkeys, err error) {
	p.List, p.Codes, err = a.store.Passkeys(ctx, caller)
	p.Elsewhere = map[string]bool{}
	for _, k := range p.List {
		p.Elsewhere[k.ID] = a.party == nil || k.Party != a.party.ID()
	}
	return p, err
}

// BeginPasskey begins the registration of a passkey in the caller's session. proof is that
// of VerifyPassword. Errors: CodeUnauthenticated; CodeNotSupported if no passkey can be made
// here.
func (a *Auth) BeginPasskey(ctx context.Context, caller workspace.Caller, proof, name string) error {
	hash, err := sessionOf(caller)
	if err != nil {
		return err
	}
	if a.party == nil {
		return noPasskeys()
	}
	if name, err = PasskeyName(name); err != nil {
		return err
	}
	return a.store.BeginPasskey(ctx, postgres.PasskeyAttempt{Hash: hash, UserID: caller.UserID, Proof: proof, Name: name, Lasts: attemptLifetime})
}

// sessionOf returns the hash of the caller's session. CodeForbidden for a caller with a
// token.
func sessionOf(caller workspace.Caller) ([]byte, error) {
	hash, ok := decodeSession(caller.Session)
	if !ok || caller.Token != "" {
		return nil, workspace.Errorf(workspace.CodeForbidden, "An API token cannot change passkeys and recovery codes.")
	}
	return hash[:], nil
}

// NewPasskey returns the name of the passkey that the caller is about to register.
// CodeUnauthenticated if there is none.
func (a *Auth) NewPasskey(ctx context.Context, caller workspace.Caller) (string, error) {
	hash, err := sessionOf(caller)
	if err != nil {
		return "", err
	}
	p, err := a.store.PendingPasskey(ctx, hash, false)
	return p.Name, err
}

// PasskeyOptions returns what the browser needs to make the caller's new passkey, in JSON,
// with a new challenge. CodeUnauthenticated without BeginPasskey.
func (a *Auth) PasskeyOptions(ctx context.Context, caller workspace.Caller) ([]byte, error) {
	hash, err := sessionOf(caller)
	if err != nil {
		return nil, err
	}
	p, err := a.store.PendingPasskey(ctx, hash, false)
	if err != nil {
		return nil, err
	}
	return a.options(ctx, p, true, "")
}

// AddPasskey adds the passkey that the browser has made. codes are recovery codes, which come
// with the first passkey and are never shown again. Errors: CodeUnauthenticated without
// BeginPasskey; CodeBadCredentials for a response that is not accepted; CodeKeyTaken;
// CodeQuotaExceeded.
func (a *Auth) AddPasskey(ctx context.Context, caller workspace.Caller, response []byte) (codes []string, err error) {
	hash, err := sessionOf(caller)
	if err != nil {
		return nil, err
	}
	_, _, err = a.store.AnswerPasskey(ctx, postgres.PasskeyAnswer{
		Hash: hash, From: postgres.Client{Address: caller.Address},
		Judge: func(p postgres.PendingPasskey, challenge []byte) (v postgres.PasskeyVerdict, err error) {
			if challenge == nil {
				return v, errStale()
			}
			if len(p.Passkeys) == 0 {
				codes, v.Codes = newRecoveryCodes(p.UserID)
			}
			v.Add, err = a.judgeAdd(p, challenge, response)
			return v, err
		},
	})
	if err != nil {
		return nil, err
	}
	return codes, nil
}

// RenamePasskey renames a passkey of the caller.
func (a *Auth) RenamePasskey(ctx context.Context, caller workspace.Caller, id, name string) error {
	name, err := PasskeyName(name)
	if err != nil {
		return err
	}
	return a.store.RenamePasskey(ctx, caller, id, name)
}

// RemovePasskey removes a passkey of the caller. proof is that of VerifyPassword.
// CodeForbidden for a caller with a token; CodeNotSupported for the last one if the server
// requires one.
func (a *Auth) RemovePasskey(ctx context.Context, caller workspace.Caller, proof, id string) error {
	if _, err := sessionOf(caller); err != nil {
		return err
	}
	return a.store.RemovePasskey(ctx, caller, proof, id, a.requirePasskey)
}

// NewRecoveryCodes returns new recovery codes of the caller; the former ones end.
// CodeForbidden for a caller with a token; CodeNotFound for a user without a passkey.
func (a *Auth) NewRecoveryCodes(ctx context.Context, caller workspace.Caller, proof string) ([]string, error) {
	if _, err := sessionOf(caller); err != nil {
		return nil, err
	}
	codes, hashes := newRecoveryCodes(caller.UserID)
	return codes, a.store.ReplaceRecoveryCodes(ctx, caller, proof, hashes)
}

func newRecoveryCodes(user string) (codes []string, hashes [][]byte) {
	for range recoveryCodes {
		s := rand.Text()[:recoveryLetter] // letters and digits without 0, 1, 8, 9
		codes = append(codes, s[0:4]+"-"+s[4:8]+"-"+s[8:12]+"-"+s[12:])
		hashes = append(hashes, recoveryHash(user, s))
	}
	return codes, hashes
}

// recoveryHash is the hash of a recovery code, however the user types it.
func recoveryHash(user, code string) []byte {
	sum := sha256.Sum256([]byte("recovery\x00" + user + "\x00" + normalizeCode(strings.ToUpper(strings.TrimSpace(code)))))
	return sum[:]
}
