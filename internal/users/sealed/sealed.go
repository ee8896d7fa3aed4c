// Package sealed encrypts values that only the servers may read, such as secrets and Git tokens,
// so that the database and its dumps have no plain text of them.
package sealed

import (
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/chacha20poly1305"

	"codehub/internal/workspace"
)

const (
	format  = 1 // first byte of a sealed value
	maxID   = 64
	maxFile = 1 << 16
)

// Ring is the keys of a file, of which the first encrypts and all decrypt. It reads the file again
// once the file has changed, so that a key that is added counts without a restart. It is safe for
// concurrent use.
type Ring struct {
	file string // empty: none is set

	mu    sync.Mutex
	keys  []key
	state fileState // of the file as read
}

type key struct {
	id   string
	line string
	aead cipher.AEAD
}

type fileState struct {
	modified time.Time
	size     int64
}

// Open reads the key file. An empty name is a ring without keys, which refuses to seal and to open.
func Open(file string) (*Ring, error) {
	r := &Ring{file: file}
	if file == "" {
		return r, nil
	}
	return r, r.refresh()
}

// Seal encrypts plain for an owner: text that names what the value belongs to, which Open needs as
// well. CodeNotSupported if no key file is set.
func (r *Ring) Seal(plain []byte, owner string) ([]byte, error) {
	if r.file == "" {
		return nil, noFile()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.refresh(); err != nil {
		return nil, fmt.Errorf("read the key file: %w", err)
	}
	return r.keys[0].seal(plain, owner), nil
}

func (k key) seal(plain []byte, owner string) []byte {
	header := append([]byte{format, byte(len(k.id))}, k.id...)
	nonce := make([]byte, k.aead.NonceSize())
	_, _ = rand.Read(nonce) // never fails
	out := make([]byte, 0, len(header)+len(nonce)+len(plain)+k.aead.Overhead())
	out = append(append(out, header...), nonce...)
	return k.aead.Seal(out, nonce, plain, append(header, owner...))
}

// Open decrypts what Seal has returned for the same owner. The caller may clear the result once it
// is no longer needed. CodeNotSupported if no key file is set.
func (r *Ring) Open(value []byte, owner string) ([]byte, error) {
	if r.file == "" {
		return nil, noFile()
	}
	id, header, rest, ok := split(value)
	if !ok {
		return nil, errors.New("the value is not a sealed one")
	}
	k, err := r.key(id)
	if err != nil {
		return nil, err
	}
	if len(rest) < k.aead.NonceSize() {
		return nil, errors.New("the sealed value is too short")
	}
	nonce, text := rest[:k.aead.NonceSize()], rest[k.aead.NonceSize():]
	plain, err := k.aead.Open(nil, nonce, text, append(slices.Clone(header), owner...))
	if err != nil {
		return nil, errors.New("the sealed value was changed, or belongs to another owner")
	}
	return plain, nil
}

// key finds a key. A file that has changed is read first.
func (r *Ring) key(id string) (key, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	find := func() int { return slices.IndexFunc(r.keys, func(k key) bool { return k.id == id }) }
	i := find()
	if i < 0 {
		if err := r.refresh(); err != nil {
			return key{}, fmt.Errorf("read the key file: %w", err)
		}
		if i = find(); i < 0 {
			return key{}, fmt.Errorf("the key %q is not in %s", id, r.file)
		}
	}
	return r.keys[i], nil
}

// KeyOf returns the id of the key that a value is sealed with; empty if it is no sealed value.
func KeyOf(value []byte) string {
	id, _, _, _ := split(value)
	return id
}

func split(value []byte) (id string, header, rest []byte, ok bool) {
	if len(value) < 2 || value[0] != format {
		return "", nil, nil, false
	}
	n := 2 + int(value[1])
	if n == 2 || len(value) < n {
		return "", nil, nil, false
	}
	return string(value[2:n]), value[:n], value[n:], true
}

// Keys returns the ids of the keys, the one that encrypts first.
func (r *Ring) Keys() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ids []string
	for _, k := range r.keys {
		ids = append(ids, k.id)
	}
	return ids
}

// File is the name of the key file; empty if none is set.
func (r *Ring) File() string { return r.file }

func noFile() error {
	return workspace.Errorf(workspace.CodeNotSupported, "The server has no key for this. An administrator has to set CODEHUB_SECRET_KEY_FILE.")
}

// refresh reads the file if it has changed. The keys stay if it cannot be read.
func (r *Ring) refresh() error {
	info, err := os.Stat(r.file)
	if err != nil {
		return err
	}
	state := fileState{info.ModTime(), info.Size()}
	if r.keys != nil && state == r.state {
		return nil
	}
	if state.size > maxFile {
		return fmt.Errorf("%s is too large", r.file)
	}
	text, err := os.ReadFile(r.file)
	if err != nil {
		return err
	}
	defer clear(text)
	keys, err := parse(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", r.file, err)
	}
	r.keys, r.state = keys, state
	return nil
}

// parse reads lines ID:BASE64. Empty lines, and those that begin with #, count for nothing. Errors
// contain no key.
func parse(text string) ([]key, error) {
	var keys []key
	number := 0
	for line := range strings.Lines(text) {
		number++
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		id, encoded, found := strings.Cut(line, ":")
		b, err := base64.StdEncoding.DecodeString(encoded)
		switch {
		case !found || !validID(id):
			return nil, fmt.Errorf("line %d does not begin with an id of 1 to %d letters, digits and hyphens, and a colon", number, maxID)
		case err != nil || len(b) != chacha20poly1305.KeySize:
			return nil, fmt.Errorf("line %d has no base64 of %d bytes behind the colon", number, chacha20poly1305.KeySize)
		case slices.ContainsFunc(keys, func(k key) bool { return k.id == id }):
			return nil, fmt.Errorf("line %d has the id %q of another key", number, id)
		}
		aead, err := chacha20poly1305.NewX(b)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key{id: id, line: line, aead: aead})
	}
	if keys == nil {
		return nil, errors.New("it has no key")
	}
	return keys, nil
}

func validID(id string) bool {
	return id != "" && len(id) <= maxID && !strings.ContainsFunc(id, func(r rune) bool {
		return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}

// NewKey returns a line for the key file with a new key, without a newline.
func NewKey() (id, line string) {
	b := make([]byte, chacha20poly1305.KeySize)
	_, _ = rand.Read(b) // never fails
	id = time.Now().UTC().Format("20060102") + "-" + strings.ToLower(rand.Text()[:6])
	return id, id + ":" + base64.StdEncoding.EncodeToString(b)
}
