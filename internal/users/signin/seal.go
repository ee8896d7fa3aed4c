package signin

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
)

// sealer encrypts what only the servers may read, with keys that are derived from the
// client's secrets. The first one encrypts, and all decrypt.
type sealer struct{ aeads []cipher.AEAD }

var errSealed = errors.New("it was not encrypted with a secret of this provider")

// newSealer returns a sealer for one purpose. secrets has at least one.
func newSealer(secrets []string, purpose string) (*sealer, error) {
	s := &sealer{}
	for _, secret := range secrets {
		key, err := hkdf.Key(sha256.New, []byte(secret), []byte("codehub sign-in"), purpose, 32)
		if err != nil {
			return nil, err
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, err
		}
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, err
		}
		s.aeads = append(s.aeads, aead)
	}
	return s, nil
}

// seal encrypts plain; open needs the same context.
func (s *sealer) seal(plain []byte, context string) []byte {
	return s.aeads[0].Seal(nil, nil, plain, []byte(context))
}

func (s *sealer) open(sealed []byte, context string) ([]byte, error) {
	for _, a := range s.aeads {
		if plain, err := a.Open(nil, nil, sealed, []byte(context)); err == nil {
			return plain, nil
		}
	}
	return nil, errSealed
}

// randomText is a random value of 130 bits.
func randomText() string { return rand.Text() }
