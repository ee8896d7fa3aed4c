package auth

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"unicode/utf8"

	"codehub/internal/workspace"

	"golang.org/x/crypto/argon2"
)

// argonDefault takes about 45 ms on two cores.
var argonDefault = argonParams{time: 2, memory: 64 << 10, threads: 2}

// argonCheap is for tests.
var argonCheap = argonParams{time: 1, memory: 64, threads: 1}

func argonOf(cfg Config) argonParams {
	if cfg.CheapHashes {
		return argonCheap
	}
	return argonDefault
}

const (
	argonKey  = 32
	argonSalt = 16

	// Limits of a stored hash's parameters, so that a bad row cannot exhaust the
	// server's memory.
	maxArgonTime   = 16
	maxArgonMemory = 256 << 10

	// Limits of concurrent and of all waiting computations, so that a flood of logins
	// causes delays and not memory exhaustion.
	maxHashing     = 2
	maxHashWaiting = 512
)

// Limits of a password: MinPassword in characters, MaxPassword in bytes.
const (
	MinPassword = 8
	MaxPassword = 1024
)

// CheckPassword reports whether a user may choose this password.
func CheckPassword(username, password string) error {
	switch {
	case len(password) > MaxPassword:
		return workspace.Errorf(workspace.CodeInvalid, "The password is too long: at most %d bytes.", MaxPassword)
	case !utf8.ValidString(password):
		return workspace.Errorf(workspace.CodeInvalid, "The password is not valid UTF-8.")
	case ShortPassword(password):
		return workspace.Errorf(workspace.CodeInvalid, "The password is too short: at least %d characters.", MinPassword)
	case strings.EqualFold(username, password):
		return workspace.Errorf(workspace.CodeInvalid, "The password must not be the username.")
	}
	return nil
}

// ShortPassword reports whether a password has too few characters. Composed and
// decomposed characters count the same.
func ShortPassword(password string) bool {
	return utf8.RuneCount(normal(password)) < MinPassword
}

var errHash = errors.New("the stored password hash is invalid")

// hasher computes argon2id hashes, with limited concurrency. Each computation has a
// source, and the sources take turns.
type hasher struct {
	params argonParams // of new hashes
	queue  *queue
	// dummy is verified for names that do not exist, so that they take as long as
	// those that do.
	dummy string
}

func newHasher(p argonParams, s Settings) *hasher {
	s = s.withDefaults()
	h := &hasher{params: p, queue: newQueue(maxHashing, s.LoginQueue, maxHashWaiting, s.LoginWait)}
	// Random and not computed from a password, so no password matches it.
	h.dummy = encodeHash(p, random(argonSalt), random(argonKey))
	return h
}

func (h *hasher) release() {
	// Each hash leaves 64 MiB of garbage, which would accumulate in a flood of
	// logins, and stay for minutes in an idle server, until the garbage collector
	// runs by itself.
	switch {
	case h.params.memory < argonDefault.memory: // little garbage
	case h.queue.idle():
		debug.FreeOSMemory()
	default:
		runtime.GC()
	}
	h.queue.release()
}

// Hash returns the PHC string of a password.
func (h *hasher) Hash(ctx context.Context, source, password string) (string, error) {
	if err := h.queue.take(ctx, source); err != nil {
		return "", err
	}
	defer h.release()
	salt := random(argonSalt)
	return encodeHash(h.params, salt, h.params.key(normal(password), salt, argonKey)), nil
}

// Verify reports whether password matches hash, and returns errHash if hash is
// invalid.
func (h *hasher) Verify(ctx context.Context, source, hash, password string) (bool, error) {
	matches, err := readHash(hash)
	if err != nil {
		return false, err
	}
	if err := h.queue.take(ctx, source); err != nil {
		return false, err
	}
	defer h.release()
	return slices.ContainsFunc(forms(password), matches), nil
}

type argonParams struct {
	time    uint32
	memory  uint32 // KiB
	threads uint8
}

func (p argonParams) key(password, salt []byte, n int) []byte {
	return argon2.IDKey(password, salt, p.time, p.memory, p.threads, uint32(n))
}

func encodeHash(p argonParams, salt, key []byte) string {
	b := base64.RawStdEncoding
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, p.memory, p.time, p.threads,
		b.EncodeToString(salt), b.EncodeToString(key))
}

func decodeHash(s string) (p argonParams, salt, key []byte, err error) {
	parts := strings.Split(s, "$")
	if len(parts) != 6 || parts[0] != "" || parts[1] != "argon2id" || parts[2] != fmt.Sprintf("v=%d", argon2.Version) {
		return p, nil, nil, errHash
	}
	if n, err := fmt.Sscanf(parts[3], "m=%d,t=%d,p=%d", &p.memory, &p.time, &p.threads); err != nil || n != 3 {
		return p, nil, nil, errHash
	}
	if p.time < 1 || p.time > maxArgonTime || p.threads < 1 || p.memory < 8*uint32(p.threads) || p.memory > maxArgonMemory {
		return p, nil, nil, errHash
	}
	if salt, err = base64.RawStdEncoding.DecodeString(parts[4]); err != nil || len(salt) < 8 || len(salt) > 64 {
		return p, nil, nil, errHash
	}
	if key, err = base64.RawStdEncoding.DecodeString(parts[5]); err != nil || len(key) < 16 || len(key) > 64 {
		return p, nil, nil, errHash
	}
	return p, salt, key, nil
}

func random(n int) []byte {
	b := make([]byte, n)
	rand.Read(b) // never fails: the program crashes instead
	return b
}
