package sshgate

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"strings"

	"golang.org/x/crypto/ssh"

	"codehub/internal/workspace"
)

// PublicKey is a user's public key, as it is registered.
type PublicKey struct {
	Line    string // as in authorized_keys, without a comment
	Comment string // empty: none
	Hash    []byte // SHA-256 of the key in SSH's own form
}

const (
	maxKeyText = 16 << 10 // bytes
	minRSA     = 2048     // bits
)

// algorithms are the kinds of public keys that users can register, with those that a
// client proves them by.
var algorithms = map[string][]string{
	ssh.KeyAlgoED25519:    {ssh.KeyAlgoED25519},
	ssh.KeyAlgoSKED25519:  {ssh.KeyAlgoSKED25519},
	ssh.KeyAlgoECDSA256:   {ssh.KeyAlgoECDSA256},
	ssh.KeyAlgoECDSA384:   {ssh.KeyAlgoECDSA384},
	ssh.KeyAlgoECDSA521:   {ssh.KeyAlgoECDSA521},
	ssh.KeyAlgoSKECDSA256: {ssh.KeyAlgoSKECDSA256},
	ssh.KeyAlgoRSA:        {ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSASHA512},
}

// ParseKey reads a public key as ssh-keygen writes it, in one line. CodeInvalid.
func ParseKey(text string) (PublicKey, error) {
	text = strings.TrimSpace(text)
	switch {
	case text == "":
		return PublicKey{}, invalidKey("The public key is missing.")
	case IsPrivateKey(text):
		return PublicKey{}, invalidKey("This is a private key, which must stay secret. Give the public key, from the file that ends with .pub.")
	case len(text) > maxKeyText:
		return PublicKey{}, invalidKey("The public key is too long.")
	}
	key, comment, options, rest, err := ssh.ParseAuthorizedKey([]byte(text))
	switch {
	case err != nil:
		return PublicKey{}, invalidKey("This is not a public key. It is one line that begins with ssh-ed25519, ecdsa-sha2 or ssh-rsa, from a file that ends with .pub.")
	case len(options) > 0:
		return PublicKey{}, invalidKey("The key has options, which codehub does not support. Give the key without them.")
	case len(bytes.TrimSpace(rest)) > 0:
		return PublicKey{}, invalidKey("Give one key at a time.")
	}
	if err := checkKey(key); err != nil {
		return PublicKey{}, err
	}
	return PublicKey{
		Line: strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))), Comment: strings.TrimSpace(comment), Hash: hashOf(key),
	}, nil
}

func checkKey(key ssh.PublicKey) error {
	if algorithms[key.Type()] == nil {
		return invalidKey("Keys of the type " + key.Type() + " are not supported. Use an Ed25519 key: ssh-keygen -t ed25519.")
	}
	public, ok := key.(ssh.CryptoPublicKey)
	if !ok {
		return nil
	}
	switch k := public.CryptoPublicKey().(type) {
	case *rsa.PublicKey:
		if k.N.BitLen() < minRSA {
			return invalidKey("The RSA key is too short: at least 2048 bits are needed. An Ed25519 key is better: ssh-keygen -t ed25519.")
		}
	case *ecdsa.PublicKey: // its curve is one of the supported types
	}
	return nil
}

func invalidKey(message string) error {
	e := workspace.Errorf(workspace.CodeInvalid, "%s", message)
	e.Details = map[string]any{"field": "public_key"}
	return e
}

func hashOf(key ssh.PublicKey) []byte {
	h := sha256.Sum256(key.Marshal())
	return h[:]
}

// Fingerprint shows the hash of a key as OpenSSH does.
func Fingerprint(hash []byte) string {
	return "SHA256:" + base64.RawStdEncoding.EncodeToString(hash)
}

// DefaultName is the name of a key that its user gives none.
func (k PublicKey) DefaultName() string {
	if name := plain(k.Comment); name != "" && len(name) <= maxDefaultName {
		return name
	}
	kind, _, _ := strings.Cut(k.Line, " ")
	return kind
}

const maxDefaultName = 100 // bytes

// IsPrivateKey reports whether text is that of a private key, which a user may have
// taken for the public one.
func IsPrivateKey(text string) bool { return strings.Contains(text, "PRIVATE KEY") }
