// Package encryption encrypts the objects of a bucket with age (https://age-encryption.org/v1), and reads those that
// are encrypted as well as those that are not: an object is encrypted if it begins with age's mark.
package encryption

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"filippo.io/age"
)

// maxKeyFile is the largest file of keys that is read.
const maxKeyFile = 1 << 20

// KeyFile are the keys of an installation, by which the keys of its workspaces are encrypted.
type KeyFile struct {
	identities []age.Identity
	recipients []age.Recipient
	names      []string // of the recipients, sorted
}

// ReadKeyFile reads a file with an age identity in each line, as age-keygen writes it, and recipients of further keys
// that are kept elsewhere.
func ReadKeyFile(path string) (*KeyFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	if err != nil {
		return nil, err
	}
	k, err := ParseKeyFile(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return k, nil
}

// ParseKeyFile parses the content of a file of keys. Errors do not repeat it.
func ParseKeyFile(content []byte) (*KeyFile, error) {
	k := &KeyFile{}
	number := 0
	for line := range strings.Lines(string(content)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := k.add(line); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
	}
	if len(k.identities) == 0 {
		return nil, errors.New("no secret key (AGE-SECRET-KEY-…): with recipients alone nothing could be restored")
	}
	slices.Sort(k.names)
	k.names = slices.Compact(k.names)
	// Keys of several kinds cannot be mixed.
	if _, err := k.Encrypt(bytes.NewReader(nil)); err != nil {
		return nil, err
	}
	return k, nil
}

func (k *KeyFile) add(line string) error {
	var identity age.Identity
	var recipient age.Recipient
	var err error
	switch {
	case strings.HasPrefix(line, "AGE-SECRET-KEY-1"):
		var x *age.X25519Identity
		if x, err = age.ParseX25519Identity(line); err == nil {
			identity, recipient = x, x.Recipient()
		}
	case strings.HasPrefix(line, "AGE-SECRET-KEY-PQ-1"):
		var h *age.HybridIdentity
		if h, err = age.ParseHybridIdentity(line); err == nil {
			identity, recipient = h, h.Recipient()
		}
	case strings.HasPrefix(line, "age1pq1"):
		recipient, err = age.ParseHybridRecipient(line)
	case strings.HasPrefix(line, "age1"):
		recipient, err = age.ParseX25519Recipient(line)
	default:
		err = errors.New("neither a secret key (AGE-SECRET-KEY-…) nor a recipient (age1…)")
	}
	if err != nil {
		return err
	}
	if identity != nil {
		k.identities = append(k.identities, identity)
	}
	if name := fmt.Sprint(recipient); !slices.Contains(k.names, name) {
		k.recipients, k.names = append(k.recipients, recipient), append(k.names, name)
	}
	return nil
}

// Recipients returns the recipients of everything that Encrypt encrypts, sorted; of nil none.
func (k *KeyFile) Recipients() []string {
	if k == nil {
		return nil
	}
	return slices.Clone(k.names)
}

// Identities returns the secret keys.
func (k *KeyFile) Identities() []age.Identity { return slices.Clone(k.identities) }

// Encrypt encrypts content for all recipients.
func (k *KeyFile) Encrypt(content io.Reader) (io.Reader, error) {
	return age.EncryptReader(content, k.recipients...)
}

// Key is the key of a workspace.
type Key struct{ identity *age.X25519Identity }

// NewKey makes a key.
func NewKey() (Key, error) {
	identity, err := age.GenerateX25519Identity()
	return Key{identity}, err
}

// ParseKey parses what String returns.
func ParseKey(text string) (Key, error) {
	identity, err := age.ParseX25519Identity(strings.TrimSpace(text))
	return Key{identity}, err
}

// String returns the secret key.
func (k Key) String() string { return k.identity.String() }

// Identity returns the secret key.
func (k Key) Identity() age.Identity { return k.identity }

// Recipient returns the public key, of letters and digits.
func (k Key) Recipient() string { return k.identity.Recipient().String() }

// EncryptFor encrypts content for the recipient of a Key. An empty recipient leaves it as it is.
func EncryptFor(recipient string, content io.Reader) (io.Reader, error) {
	if recipient == "" {
		return content, nil
	}
	to, err := age.ParseX25519Recipient(recipient)
	if err != nil {
		return nil, err
	}
	return age.EncryptReader(content, to)
}

// EncryptBytes is EncryptFor for content in memory.
func EncryptBytes(recipient string, content []byte) ([]byte, error) {
	if recipient == "" {
		return content, nil
	}
	r, err := EncryptFor(recipient, bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	out := bytes.NewBuffer(make([]byte, 0, Size(int64(len(content)))+bytes.MinRead))
	_, err = out.ReadFrom(r)
	return out.Bytes(), err
}

// Put stores an object of any length as a whole, and returns the length.
type Put func(ctx context.Context, content io.Reader) (int64, error)

// Encrypting returns a Put that encrypts what put stores by encrypt. It returns the length of the content, and not of
// the object.
func Encrypting(encrypt func(io.Reader) (io.Reader, error), put Put) Put {
	return func(ctx context.Context, content io.Reader) (int64, error) {
		counted := &counted{r: content}
		r, err := encrypt(counted)
		if err != nil {
			return 0, err
		}
		stored, err := put(ctx, r)
		if err != nil {
			return 0, err
		}
		if stored < Size(counted.n) {
			return 0, fmt.Errorf("%w: %d bytes were stored, want %d", io.ErrShortWrite, stored, Size(counted.n))
		}
		return counted.n, nil
	}
}

type counted struct {
	r io.Reader
	n int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}
