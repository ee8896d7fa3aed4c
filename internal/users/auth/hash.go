package auth

import (
	"context"
	"crypto/subtle"
	"errors"
	"strings"

	"golang.org/x/crypto/bcrypt"
	"golang.org/x/text/unicode/norm"

	"codehub/internal/postgres"
)

// maxBcryptCost takes about a second. Hashes with a higher cost could exhaust the
// server's CPU.
const maxBcryptCost = 14

// storedHash reports whether a password matches a stored hash.
type storedHash func(password []byte) bool

// readHash parses a stored hash: argon2id with any parameters, or bcrypt, which
// an import of the first version brings over. Anything else is errHash.
func readHash(s string) (storedHash, error) {
	if strings.HasPrefix(s, "$2a$") || strings.HasPrefix(s, "$2b$") || strings.HasPrefix(s, "$2y$") {
		cost, err := bcrypt.Cost([]byte(s))
		if err != nil || cost > maxBcryptCost || len(s) != 60 {
			return nil, errHash
		}
		return func(p []byte) bool { return bcrypt.CompareHashAndPassword([]byte(s), p) == nil }, nil
	}
	params, salt, want, err := decodeHash(s)
	if err != nil {
		return nil, err
	}
	return func(p []byte) bool { return subtle.ConstantTimeCompare(params.key(p, salt, len(want)), want) == 1 }, nil
}

// forms returns the byte sequences that a password may have been hashed as:
// normalized, as codehub does, and as typed, as other systems do.
func forms(password string) [][]byte {
	f := [][]byte{normal(password)}
	if string(f[0]) != password {
		f = append(f, []byte(password))
	}
	return f
}

// normal normalizes a password to NFC, because operating systems differ in
// composing Hangul and accents.
func normal(password string) []byte { return norm.NFC.Bytes([]byte(password)) }

// Matches reports whether password matches hash; ok is false if the hash is
// invalid. It is for the command line: it does not limit concurrent computations.
func Matches(hash, password string) (matches, ok bool) {
	h, err := readHash(hash)
	if err != nil {
		return false, false
	}
	for _, p := range forms(password) {
		matches = matches || h(p)
	}
	return matches, true
}

// current reports whether hash was made with the current algorithm and parameters.
func (h *hasher) current(hash string) bool {
	p, salt, key, err := decodeHash(hash)
	return err == nil && p == h.params && len(salt) == argonSalt && len(key) == argonKey
}

// renew replaces an outdated hash after its password was verified, and returns the
// updated user. A failure does not prevent the login.
func (a *Auth) renew(ctx context.Context, source string, user postgres.User, password string) postgres.User {
	if a.hasher.current(user.PasswordHash) {
		return user
	}
	hash, err := a.hasher.Hash(ctx, source, password)
	if err == nil {
		err = a.store.RenewPasswordHash(ctx, user.ID, user.PasswordHash, hash)
	}
	if err == nil {
		user.PasswordHash = hash
		return user
	}
	if !errors.Is(err, context.Canceled) {
		a.log.WarnContext(ctx, "renew password hash failed", "user", user.ID, "err", err)
	}
	return user
}
