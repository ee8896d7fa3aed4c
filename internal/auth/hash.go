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

// maxBcryptCost is about a second of work: beyond it one bad row could take
// the server's time.
const maxBcryptCost = 14

// storedHash tells whether a password is the one that a stored hash was made
// of.
type storedHash func(password []byte) bool

// readHash reads what the store keeps of a password: argon2id, of whatever
// cost, or bcrypt, which came over from another system (design §5: import-m1).
// All else is errHash.
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

// forms are the bytes that a password may have been hashed as: the one form
// that hashes are made of here, and as it was typed, which is what other
// systems hash.
func forms(password string) [][]byte {
	f := [][]byte{normal(password)}
	if string(f[0]) != password {
		f = append(f, []byte(password))
	}
	return f
}

// normal brings a password to one form: the same Hangul or accents are typed
// composed on one system and decomposed on another.
func normal(password string) []byte { return norm.NFC.Bytes([]byte(password)) }

// Matches reports whether password is the one that hash was made of; ok is
// false for a hash that cannot be read and that nobody can log in with. It is
// for the command line: nothing bounds how many compute at once.
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

// current reports whether hash is of the kind that hashes are made of today.
func (h *hasher) current(hash string) bool {
	p, salt, key, err := decodeHash(hash)
	return err == nil && p == h.params && len(salt) == argonSalt && len(key) == argonKey
}

// renew replaces a hash that was made in another way, once its password is
// known, and returns the user with it. That it fails is no reason to keep
// anybody out.
func (a *Auth) renew(ctx context.Context, user postgres.User, password string) postgres.User {
	if a.hasher.current(user.PasswordHash) {
		return user
	}
	hash, err := a.hasher.Hash(ctx, password)
	if err == nil {
		err = a.store.RenewPasswordHash(ctx, user.ID, user.PasswordHash, hash)
	}
	if err == nil {
		user.PasswordHash = hash
		return user
	}
	if !errors.Is(err, context.Canceled) {
		a.log.WarnContext(ctx, "password hash not renewed", "user", user.ID, "err", err)
	}
	return user
}
