package auth

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

// maxPasskeyResponse bounds the response of a browser, in bytes.
const maxPasskeyResponse = 64 << 10

// party verifies passkeys (WebAuthn) for one address. It has no state: what a ceremony has to
// remember is a challenge, which its caller keeps and uses once.
type party struct{ web *webauthn.WebAuthn }

// errPasskeyAddress: browsers make no passkeys for this address. They need a host name, and https
// except on localhost.
var errPasskeyAddress = errors.New("passkeys need an https address with a host name, or localhost")

// newParty returns the party of an origin such as https://codehub.example.com, which must not
// change later: passkeys belong to its host. The error is errPasskeyAddress.
func newParty(origin *url.URL) (*party, error) {
	if !PasskeysPossible(origin) {
		return nil, errPasskeyAddress
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
		return nil, fmt.Errorf("%w (%w)", errPasskeyAddress, err)
	}
	return &party{web}, nil
}

// PasskeysPossible reports whether browsers make passkeys for an origin.
func PasskeysPossible(origin *url.URL) bool {
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
func (p *party) ID() string { return p.web.Config.RPID }

// passkeyKey is a passkey. Record is what its verification needs, in JSON.
type passkeyKey struct {
	ID     []byte
	Record []byte
}

// passkeyUser is the owner of passkeys. ID names the user to authenticators and never changes.
type passkeyUser struct {
	ID   []byte
	Name string
	Keys []passkeyKey
}

// challenge is what a ceremony remembers, in JSON. It is valid for one response.
type challenge []byte

// keyOwner is a passkeyUser as the library needs it.
type keyOwner struct {
	passkeyUser
	credentials []webauthn.Credential
}

func (a keyOwner) WebAuthnID() []byte                         { return a.ID }
func (a keyOwner) WebAuthnName() string                       { return a.Name }
func (a keyOwner) WebAuthnDisplayName() string                { return a.Name }
func (a keyOwner) WebAuthnCredentials() []webauthn.Credential { return a.credentials }

func keyOwnerOf(u passkeyUser) (keyOwner, error) {
	a := keyOwner{passkeyUser: u}
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
func (p *party) BeginRegistration(u passkeyUser) (options []byte, c challenge, err error) {
	a, err := keyOwnerOf(u)
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
func (p *party) BeginLogin(u passkeyUser) (options []byte, c challenge, err error) {
	a, err := keyOwnerOf(u)
	if err != nil {
		return nil, nil, err
	}
	assertion, session, err := p.web.BeginLogin(a)
	if err != nil {
		return nil, nil, fmt.Errorf("begin a login with a passkey: %w", err)
	}
	return encoded(assertion, session)
}

func encoded(options any, session *webauthn.SessionData) ([]byte, challenge, error) {
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

// errPasskeyRefused: the response does not answer the challenge, or not for this user, address and
// key.
var errPasskeyRefused = errors.New("the passkey was not accepted")

func refusedPasskey(err error) error {
	why := err.Error()
	var e *protocol.Error
	if errors.As(err, &e) {
		why = e.Details + " " + e.DevInfo
	}
	return fmt.Errorf("%w: %s", errPasskeyRefused, strings.TrimSpace(why))
}

// FinishRegistration returns the key that a browser has made for a challenge. The error is
// errPasskeyRefused.
func (p *party) FinishRegistration(u passkeyUser, c challenge, response []byte) (passkeyKey, error) {
	a, session, err := p.ceremony(u, c, response)
	if err != nil {
		return passkeyKey{}, err
	}
	parsed, err := protocol.ParseCredentialCreationResponseBytes(response)
	if err != nil {
		return passkeyKey{}, refusedPasskey(err)
	}
	made, err := p.web.CreateCredential(a, session, parsed)
	if err != nil {
		return passkeyKey{}, refusedPasskey(err)
	}
	// No attestation was asked for, so nothing is verified with it later.
	made.Attestation = webauthn.CredentialAttestation{}
	return passkeyOf(made)
}

// passkeyUse is a login with a key.
type passkeyUse struct {
	passkeyKey // with its new record
	// Cloned: the key's counter did not increase, so there may be a copy of the key. The
	// login must not succeed.
	Cloned bool
}

// FinishLogin returns the key that has answered a challenge. The error is errPasskeyRefused.
func (p *party) FinishLogin(u passkeyUser, c challenge, response []byte) (passkeyUse, error) {
	a, session, err := p.ceremony(u, c, response)
	if err != nil {
		return passkeyUse{}, err
	}
	parsed, err := protocol.ParseCredentialRequestResponseBytes(response)
	if err != nil {
		return passkeyUse{}, refusedPasskey(err)
	}
	used, err := p.web.ValidateLogin(a, session, parsed)
	if err != nil {
		return passkeyUse{}, refusedPasskey(err)
	}
	cloned := used.Authenticator.CloneWarning
	used.Authenticator.CloneWarning = false // of this login alone
	k, err := passkeyOf(used)
	return passkeyUse{passkeyKey: k, Cloned: cloned}, err
}

func (p *party) ceremony(u passkeyUser, c challenge, response []byte) (a keyOwner, s webauthn.SessionData, err error) {
	if a, err = keyOwnerOf(u); err != nil {
		return a, s, err
	}
	if err := json.Unmarshal(c, &s); err != nil {
		return a, s, fmt.Errorf("decode the challenge of a passkey: %w", err)
	}
	switch {
	case len(response) > maxPasskeyResponse:
		return a, s, fmt.Errorf("%w: the response is too large", errPasskeyRefused)
	case s.RelyingPartyID != "" && s.RelyingPartyID != p.ID(), !bytes.Equal(s.UserID, u.ID):
		return a, s, fmt.Errorf("%w: the challenge is another one's", errPasskeyRefused)
	}
	return a, s, nil
}

func passkeyOf(c *webauthn.Credential) (passkeyKey, error) {
	record, err := json.Marshal(c)
	if err != nil {
		return passkeyKey{}, fmt.Errorf("encode a passkey: %w", err)
	}
	return passkeyKey{ID: c.ID, Record: record}, nil
}
