package auth

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"math/big"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"codehub/internal/postgres"
	"codehub/internal/workspace"

	"golang.org/x/text/unicode/norm"
)

// The command line logs in without seeing a password: a user who is logged in to the
// dashboard allows it, either in a browser on the same machine, which brings the program a
// code, or by typing in a code that the program shows.

const (
	// browserCodeLifetime is how long a program may take to redeem its code.
	browserCodeLifetime = 2 * time.Minute
	// DeviceLifetime is how long a user may take to type in a code.
	DeviceLifetime = 10 * time.Minute
	// MaxProgramLogin is the longest time for which a program's token is valid, and the
	// default.
	MaxProgramLogin = 90 * 24 * time.Hour

	userCodeLetters = "BCDFGHJKLMNPQRSTVWXZ" // no vowels: no words
	userCodeLength  = 8
	maxProgramName  = 100 // characters
	// mistypedAge is how long a user's wrong codes count.
	mistypedAge = time.Hour

	minVerifier = 43 // as in RFC 7636
	maxVerifier = 128
)

// DeviceLogin is a login that waits for a user to type in UserCode.
type DeviceLogin struct {
	DeviceCode string // with which the program asks for the answer
	UserCode   string // such as BCDF-GHJK
	Expires    time.Time
	Interval   time.Duration // between two questions
}

// ProgramExpiry returns until when the token of a program is valid that asks for lasts now; 0:
// MaxProgramLogin.
func (a *Auth) ProgramExpiry(lasts time.Duration) time.Time {
	if lasts <= 0 || lasts > MaxProgramLogin {
		lasts = MaxProgramLogin
	}
	return a.now().Add(lasts).UTC().Truncate(time.Second)
}

// BeginDevice begins a login by code for a program, whose token lasts as ProgramExpiry says.
// name is that of its machine. username is the account that alone can allow it, whether or not
// there is one of that name; empty: any.
func (a *Auth) BeginDevice(ctx context.Context, name, username string, lasts time.Duration, from Client) (DeviceLogin, error) {
	name, err := programName(name)
	if err != nil {
		return DeviceLogin{}, err
	}
	if username = norm.NFC.String(strings.TrimSpace(username)); username != "" && !wellFormed(username) {
		return DeviceLogin{}, workspace.Errorf(workspace.CodeInvalid, "No account has this username.")
	}
	d := DeviceLogin{DeviceCode: newSessionID(), UserCode: newUserCode(), Expires: a.now().Add(DeviceLifetime).UTC().Truncate(time.Second), Interval: postgres.PollInterval}
	hash := hashSecret(d.DeviceCode)
	err = a.store.BeginDeviceLogin(ctx, postgres.ProgramLogin{
		Hash: hash[:], UserCode: normalUserCode(d.UserCode), Username: username, Name: name, Address: from.source(), Lasts: DeviceLifetime, TokenExpires: a.ProgramExpiry(lasts),
	})
	return d, err
}

func programName(name string) (string, error) {
	name = boundedText(strings.TrimSpace(name), 4*maxProgramName)
	switch {
	case name == "" || !workspace.Visible(name) || utf8.RuneCountInString(name) > maxProgramName:
		return "", workspace.Errorf(workspace.CodeInvalid, "The name of the machine must have 1 to 100 visible characters.")
	case strings.ContainsFunc(name, turnsText):
		return "", workspace.Errorf(workspace.CodeInvalid, "The name of the machine must not contain line breaks or characters that change the direction of text.")
	}
	return name, nil
}

// turnsText reports whether a character breaks the line, or changes the direction of the text
// around it, so that a page would show another name or address than that of the program.
func turnsText(r rune) bool {
	return r == '\u2028' || r == '\u2029' || unicode.Is(unicode.Bidi_Control, r)
}

func newUserCode() string {
	var b strings.Builder
	for i := range userCodeLength {
		if i == userCodeLength/2 {
			b.WriteByte('-')
		}
		n, err := rand.Int(rand.Reader, big.NewInt(int64(len(userCodeLetters))))
		if err != nil {
			panic(err) // crypto/rand does not fail
		}
		b.WriteByte(userCodeLetters[n.Int64()])
	}
	return b.String()
}

// normalUserCode is a user code as it is stored, however the user types it.
func normalUserCode(s string) string { return normalizeCode(strings.ToUpper(strings.TrimSpace(s))) }

// PendingDevice is a login by code that waits for a user's answer.
type PendingDevice struct {
	Name      string // of the machine, as the program says
	Address   string
	CreatedAt time.Time
	Expires   time.Time // of the program's token
}

// Device returns the login that waits for the caller with this user code. Wrong codes are limited like
// wrong passwords. Errors: CodeNotFound, CodeLockedOut; CodeForbidden for a caller with a token.
func (a *Auth) Device(ctx context.Context, caller workspace.Caller, userCode string) (PendingDevice, error) {
	if caller.Token != "" {
		return PendingDevice{}, workspace.Errorf(workspace.CodeForbidden, "An API token cannot allow logins.")
	}
	name := "\x00device " + caller.UserID // cannot be a user name
	done, err := a.names.take(ctx, name, sourceOf(caller))
	if err != nil {
		return PendingDevice{}, err
	}
	defer done()
	now := a.now()
	// A right code forgives nothing: everyone can begin a login and type in its code.
	a.attempts.forget(name, now.Add(-mistypedAge))
	if until := a.attempts.lockedUntil(name); until != nil && until.After(now) {
		return PendingDevice{}, lockedOut(*until, now)
	}
	l, err := a.store.DeviceLogin(ctx, caller, normalUserCode(userCode))
	if workspace.CodeOf(err) == workspace.CodeNotFound {
		a.attempts.fail(name, now)
	}
	return PendingDevice{Name: l.Name, Address: l.Address, CreatedAt: l.CreatedAt, Expires: l.TokenExpires}, err
}

// AnswerDevice allows the login with this user code for the caller, or refuses it. The
// errors are those of Device, and CodeUnauthenticated if the session has ended.
func (a *Auth) AnswerDevice(ctx context.Context, caller workspace.Caller, userCode string, allow bool) error {
	if _, err := a.Device(ctx, caller, userCode); err != nil {
		return err
	}
	return a.store.AnswerDeviceLogin(ctx, caller, normalUserCode(userCode), allow)
}

// AllowBrowser returns the code by which the program that knows the secret of challenge
// logs in as the caller, until expires, which ProgramExpiry bounds. challenge is the secret's SHA-256 in base64url, as in RFC 7636.
func (a *Auth) AllowBrowser(ctx context.Context, caller workspace.Caller, challenge, name string, expires time.Time) (code string, err error) {
	if caller.Token != "" {
		return "", workspace.Errorf(workspace.CodeForbidden, "An API token cannot allow logins.")
	}
	sum, err := base64.RawURLEncoding.DecodeString(challenge)
	if err != nil || len(sum) != len(secretHash{}) {
		return "", workspace.Errorf(workspace.CodeInvalid, "The challenge is not a SHA-256 in base64url.")
	}
	if name, err = programName(name); err != nil {
		return "", err
	}
	if most := a.ProgramExpiry(0); expires.After(most) {
		expires = most
	}
	code = newSessionID()
	hash := hashSecret(code)
	err = a.store.AllowBrowserLogin(ctx, caller, postgres.ProgramLogin{Hash: hash[:], Challenge: sum, Name: name, Lasts: browserCodeLifetime, TokenExpires: expires})
	return code, err
}

// RedeemLogin creates the API token of a login that a user has allowed, and returns it with
// its secret. code is the browser's code or the device code; verifier is the secret of
// AllowBrowser's challenge, empty for a device code. expires can make the token end earlier than
// the user has seen; from is the program. See postgres.DB.RedeemProgramLogin for the errors.
func (a *Auth) RedeemLogin(ctx context.Context, code, verifier string, expires *time.Time, from Client) (postgres.Token, string, workspace.Caller, error) {
	var proof []byte
	if verifier != "" {
		if len(verifier) < minVerifier || len(verifier) > maxVerifier {
			return postgres.Token{}, "", workspace.Caller{}, workspace.Errorf(workspace.CodeInvalid, "The verifier must have 43 to 128 characters.")
		}
		sum := hashSecret(verifier)
		proof = sum[:]
	}
	hash := hashSecret(code)
	caller, name, most, err := a.store.RedeemProgramLogin(ctx, hash[:], proof)
	if err != nil {
		return postgres.Token{}, "", caller, err
	}
	caller.Address = from.Address
	if expires == nil || expires.After(most) {
		expires = &most
	}
	t, secret, err := a.CreateToken(ctx, Identity{Caller: caller}, "codehub login on "+name, expires, TokenLimits{})
	return t, secret, caller, err
}
