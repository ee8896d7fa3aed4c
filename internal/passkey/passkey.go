// Package passkey verifies passkeys (WebAuthn) for one address. It has no state: what a
// ceremony has to remember is a Challenge, which its caller keeps and uses once.
package passkey

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/go-webauthn/webauthn/protocol"
	"github.com/go-webauthn/webauthn/webauthn"
)

// MaxResponse bounds the response of a browser, in bytes.
const MaxResponse = 64 << 10

// Party is the address for which passkeys are made.
type Party struct{ web *webauthn.WebAuthn }

// ErrAddress: browsers make no passkeys for this address. They need a host name, and https
// except on localhost.
var ErrAddress = errors.New("passkeys need an https address with a host name, or localhost")

// New returns the party of an origin such as https://codehub.example.com, which must not
// change later: passkeys belong to its host. The error is ErrAddress.
func New(origin *url.URL) (*Party, error) {
	if !Possible(origin) {
		return nil, ErrAddress
	}
	web, err := webauthn.New(&webauthn.Config{
		RPID: origin.Hostname(), RPDisplayName: "codehub", RPOrigins: []string{origin.Scheme + "://" + origin.Host},
		AttestationPreference: protocol.PreferNoAttestation,
		AuthenticatorSelection: protocol.AuthenticatorSelection{
			// A second factor: the password was verified, so a key without PIN is sufficient.
			UserVerification: protocol.VerificationPreferred,
			ResidentKey:      protocol.ResidentKeyRequirementPreferred,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", ErrAddress, err)
	}
	return &Party{web}, nil
}

// Possible reports whether browsers make passkeys for an origin.
func Possible(origin *url.URL) bool {
	if origin == nil {
		return false
	}
	host := origin.Hostname()
	if host == "" || net.ParseIP(host) != nil {
		return false
	}
	return origin.Scheme == "https" || host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// ID is the host whose passkeys the party accepts.
func (p *Party) ID() string { return p.web.Config.RPID }

// Key is a passkey. Record is what its verification needs, in JSON.
type Key struct {
	ID     []byte
	Record []byte
}

// User is the owner of passkeys. ID names the user to authenticators and never changes.
type User struct {
	ID   []byte
	Name string
	Keys []Key
}

// Challenge is what a ceremony remembers, in JSON. It is valid for one response.
type Challenge []byte

// account is a User as the library needs it.
type account struct {
	User
	credentials []webauthn.Credential
}

func (a account) WebAuthnID() []byte                         { return a.ID }
func (a account) WebAuthnName() string                       { return a.Name }
func (a account) WebAuthnDisplayName() string                { return a.Name }
func (a account) WebAuthnCredentials() []webauthn.Credential { return a.credentials }

func accountOf(u User) (account, error) {
	a := account{User: u}
	for _, k := range u.Keys {
		var c webauthn.Credential
		if err := json.Unmarshal(k.Record, &c); err != nil {
			return a, fmt.Errorf("decode a passkey: %w", err)
		}
		a.credentials = append(a.credentials, c)
	}
	return a, nil
}

// BeginRegistration returns the options for navigator.credentials.create, in JSON. A device
// that has one of the user's keys makes no second one.
func (p *Party) BeginRegistration(u User) (options []byte, c Challenge, err error) {
	a, err := accountOf(u)
	if err != nil {
		return nil, nil, err
	}
	exclude := make([]protocol.CredentialDescriptor, len(a.credentials))
	for i := range a.credentials {
		exclude[i] = a.credentials[i].Descriptor()
	}
	creation, session, err := p.web.BeginRegistration(a, webauthn.WithExclusions(exclude))
	if err != nil {
		return nil, nil, fmt.Errorf("begin the registration of a passkey: %w", err)
	}
	return encoded(creation, session)
}

// BeginLogin returns the options for navigator.credentials.get, in JSON. The user must have
// a key.
func (p *Party) BeginLogin(u User) (options []byte, c Challenge, err error) {
	a, err := accountOf(u)
	if err != nil {
		return nil, nil, err
	}
	assertion, session, err := p.web.BeginLogin(a)
	if err != nil {
		return nil, nil, fmt.Errorf("begin a login with a passkey: %w", err)
	}
	return encoded(assertion, session)
}

func encoded(options any, session *webauthn.SessionData) ([]byte, Challenge, error) {
	out, err := json.Marshal(options)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the options of a passkey: %w", err)
	}
	c, err := json.Marshal(session)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the challenge of a passkey: %w", err)
	}
	return out, c, nil
}

// ErrRefused: the response does not answer the challenge, or not for this user, address and
// key.
var ErrRefused = errors.New("the passkey was not accepted")

func refused(err error) error {
	why := err.Error()
	var e *protocol.Error
	if errors.As(err, &e) {
		why = e.Details + " " + e.DevInfo
	}
	return fmt.Errorf("%w: %s", ErrRefused, strings.TrimSpace(why))
}

// FinishRegistration returns the key that a browser has made for a challenge. The error is
// ErrRefused.
func (p *Party) FinishRegistration(u User, c Challenge, response []byte) (Key, error) {
	a, session, err := p.ceremony(u, c, response)
	if err != nil {
		return Key{}, err
	}
	parsed, err := protocol.ParseCredentialCreationResponseBytes(response)
	if err != nil {
		return Key{}, refused(err)
	}
	made, err := p.web.CreateCredential(a, session, parsed)
	if err != nil {
		return Key{}, refused(err)
	}
	// No attestation was asked for, so nothing is verified with it later.
	made.Attestation = webauthn.CredentialAttestation{}
	return keyOf(made)
}

// Use is a login with a key.
type Use struct {
	Key // with its new record
	// Cloned: the key's counter did not increase, so there may be a copy of the key. The
	// login must not succeed.
	Cloned bool
}

// FinishLogin returns the key that has answered a challenge. The error is ErrRefused.
func (p *Party) FinishLogin(u User, c Challenge, response []byte) (Use, error) {
	a, session, err := p.ceremony(u, c, response)
	if err != nil {
		return Use{}, err
	}
	parsed, err := protocol.ParseCredentialRequestResponseBytes(response)
	if err != nil {
		return Use{}, refused(err)
	}
	used, err := p.web.ValidateLogin(a, session, parsed)
	if err != nil {
		return Use{}, refused(err)
	}
	cloned := used.Authenticator.CloneWarning
	used.Authenticator.CloneWarning = false // of this login alone
	k, err := keyOf(used)
	return Use{Key: k, Cloned: cloned}, err
}

func (p *Party) ceremony(u User, c Challenge, response []byte) (a account, s webauthn.SessionData, err error) {
	if a, err = accountOf(u); err != nil {
		return a, s, err
	}
	if err := json.Unmarshal(c, &s); err != nil {
		return a, s, fmt.Errorf("decode the challenge of a passkey: %w", err)
	}
	switch {
	case len(response) > MaxResponse:
		return a, s, fmt.Errorf("%w: the response is too large", ErrRefused)
	case s.RelyingPartyID != "" && s.RelyingPartyID != p.ID(), !bytes.Equal(s.UserID, u.ID):
		return a, s, fmt.Errorf("%w: the challenge is another one's", ErrRefused)
	}
	return a, s, nil
}

func keyOf(c *webauthn.Credential) (Key, error) {
	record, err := json.Marshal(c)
	if err != nil {
		return Key{}, fmt.Errorf("encode a passkey: %w", err)
	}
	return Key{ID: c.ID, Record: record}, nil
}
