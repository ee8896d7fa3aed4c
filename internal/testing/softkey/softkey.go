// Package softkey is an authenticator for tests: it makes passkeys and signs with them, as a
// browser and a security key do together.
package softkey

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"testing"

	"github.com/fxamacker/cbor/v2"
)

// Key is one passkey. Count is its counter, which each signature increases by one; a key
// that starts below zero has none.
type Key struct {
	ID     []byte
	Count  int
	Origin string // of the page, as a browser would report it
	RPID   string // for which it signs
	Handle []byte // of the user; nil: it reports none

	private *ecdsa.PrivateKey
	t       testing.TB
}

// New makes a key for pages of an origin, whose host is rpID.
func New(t testing.TB, origin, rpID string) *Key {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	id := make([]byte, 32)
	_, _ = rand.Read(id)
	return &Key{ID: id, Origin: origin, RPID: rpID, private: private, t: t}
}

// challengeOf reads the challenge in the options of a ceremony.
func challengeOf(t testing.TB, options []byte) string {
	t.Helper()
	var o struct {
		PublicKey struct {
			Challenge string `json:"challenge"`
		} `json:"publicKey"`
	}
	if err := json.Unmarshal(options, &o); err != nil || o.PublicKey.Challenge == "" {
		t.Fatalf("no challenge in %s: %v", options, err)
	}
	return o.PublicKey.Challenge
}

// Create answers the options of a registration.
func (k *Key) Create(options []byte) []byte {
	k.t.Helper()
	client := k.client("webauthn.create", challengeOf(k.t, options))
	public, err := k.private.PublicKey.ECDH()
	if err != nil {
		k.t.Fatal(err)
	}
	point := public.Bytes() // 4, x, y
	cose := k.cbor(map[int]any{1: 2, 3: -7, -1: 1, -2: point[1:33], -3: point[33:]})
	data := k.authenticatorData(0x45) // user present and verified, with a key
	data = append(data, make([]byte, 16)...)
	data = binary.BigEndian.AppendUint16(data, uint16(len(k.ID)))
	data = append(append(data, k.ID...), cose...)
	object := k.cbor(map[string]any{"fmt": "none", "attStmt": map[string]any{}, "authData": data})
	return k.response(map[string]any{"clientDataJSON": encode(client), "attestationObject": encode(object), "transports": []string{"internal"}})
}

// Sign answers the options of a login.
func (k *Key) Sign(options []byte) []byte {
	k.t.Helper()
	client := k.client("webauthn.get", challengeOf(k.t, options))
	if k.Count >= 0 {
		k.Count++
	}
	data := k.authenticatorData(0x05)
	hash := sha256.Sum256(client)
	signed := sha256.Sum256(append(append([]byte{}, data...), hash[:]...))
	signature, err := ecdsa.SignASN1(rand.Reader, k.private, signed[:])
	if err != nil {
		k.t.Fatal(err)
	}
	r := map[string]any{"clientDataJSON": encode(client), "authenticatorData": encode(data), "signature": encode(signature)}
	if k.Handle != nil {
		r["userHandle"] = encode(k.Handle)
	}
	return k.response(r)
}

func (k *Key) client(kind, challenge string) []byte {
	b, err := json.Marshal(map[string]any{"type": kind, "challenge": challenge, "origin": k.Origin, "crossOrigin": false})
	if err != nil {
		k.t.Fatal(err)
	}
	return b
}

func (k *Key) authenticatorData(flags byte) []byte {
	hash := sha256.Sum256([]byte(k.RPID))
	return binary.BigEndian.AppendUint32(append(hash[:], flags), uint32(max(k.Count, 0)))
}

func (k *Key) cbor(v any) []byte {
	b, err := cbor.Marshal(v)
	if err != nil {
		k.t.Fatal(err)
	}
	return b
}

func (k *Key) response(r map[string]any) []byte {
	b, err := json.Marshal(map[string]any{
		"id": encode(k.ID), "rawId": encode(k.ID), "type": "public-key", "response": r, "clientExtensionResults": map[string]any{},
	})
	if err != nil {
		k.t.Fatal(err)
	}
	return b
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
