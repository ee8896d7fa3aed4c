package encryption

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"

	"codehub/internal/archive"
	"codehub/internal/storage/transfer"
)

// objects are stored objects, and the number of requests for them.
type objects struct {
	stored   map[string][]byte
	requests int
	fails    error
}

func (o *objects) get(_ context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	o.requests++
	b, ok := o.stored[name]
	if !ok {
		return nil, transfer.ErrNotFound
	}
	b = b[min(offset, int64(len(b))):]
	if length >= 0 {
		b = b[:min(length, int64(len(b)))]
	}
	if o.fails != nil {
		return io.NopCloser(io.MultiReader(bytes.NewReader(b[:len(b)/2]), failing{o.fails})), nil
	}
	return io.NopCloser(bytes.NewReader(b)), nil
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func newKey(t *testing.T) Key {
	t.Helper()
	k, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func opens(keys ...Key) Identities {
	return func(context.Context, string) (ids []age.Identity, err error) {
		for _, k := range keys {
			ids = append(ids, k.Identity())
		}
		return ids, nil
	}
}

func content(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	return b
}

func read(s *Source, name string, offset, length int64) ([]byte, error) {
	r, err := s.Range(context.Background(), name, offset, length)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// Ranges of encrypted and of plain objects are those of the content, and age reads what is encrypted.
func TestRanges(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	for _, size := range []int{0, 1, 1000, chunkSize - 1, chunkSize, chunkSize + 1, 2 * chunkSize, 5*chunkSize + 77} {
		want := content(size)
		sealed, err := EncryptBytes(key.Recipient(), want)
		if err != nil {
			t.Fatal(err)
		}
		if int64(len(sealed)) != Size(int64(size)) || !Fits(int64(len(sealed)), int64(size)) || !Fits(int64(size), int64(size)) || Fits(int64(len(sealed))-1, int64(size)) {
			t.Errorf("%d bytes are %d encrypted, want %d", size, len(sealed), Size(int64(size)))
		}
		r, err := age.Decrypt(bytes.NewReader(sealed), key.Identity())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, want) {
			t.Errorf("age reads %d bytes, %v", len(got), err)
		}
		o := &objects{stored: map[string][]byte{"sealed": sealed, "plain": want}}
		s := NewSource(o.get, opens(newKey(t), key))
		for name := range o.stored {
			if n, err := s.ContentSize(t.Context(), name, int64(len(o.stored[name]))); n != int64(size) || err != nil {
				t.Errorf("%s of %d bytes has content of %d, %v", name, size, n, err)
			}
			for _, at := range []int{0, 1, size / 3, chunkSize - 1, chunkSize, size - 1, size, size + 3*chunkSize} {
				for _, n := range []int{-1, 0, 1, 100, chunkSize, chunkSize + 1, size} {
					if at < 0 || name == "plain" && n == 0 {
						continue
					}
					from := min(at, size)
					to := size
					if n >= 0 {
						to = min(from+n, size)
					}
					if got, err := read(s, name, int64(at), int64(n)); err != nil || !bytes.Equal(got, want[from:to]) {
						t.Errorf("%s of %d bytes: %d bytes from %d are %d bytes, %v", name, size, n, at, len(got), err)
					}
				}
			}
		}
	}
}

// The header of an object is read once.
func TestRequests(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	sealed, err := EncryptBytes(key.Recipient(), content(10*chunkSize))
	if err != nil {
		t.Fatal(err)
	}
	o := &objects{stored: map[string][]byte{"x": sealed}}
	s := NewSource(o.get, opens(key))
	for i := range int64(5) {
		if _, err := read(s, "x", i*chunkSize+5, 2*chunkSize); err != nil {
			t.Fatal(err)
		}
	}
	if o.requests != 6 {
		t.Errorf("%d requests", o.requests)
	}
	// A replaced object is read with the header of the one before once.
	if o.stored["x"], err = EncryptBytes(key.Recipient(), content(10*chunkSize)); err != nil {
		t.Fatal(err)
	}
	if _, err := read(s, "x", 5, 10); !errors.Is(err, archive.ErrCorrupted) {
		t.Errorf("replaced: %v", err)
	}
	if _, err := read(s, "x", 5, 10); err != nil {
		t.Errorf("replaced, again: %v", err)
	}
}

// Damage of an object, a failing bucket and a missing key are different errors.
func TestErrors(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	want := content(3 * chunkSize)
	sealed, err := EncryptBytes(key.Recipient(), want)
	if err != nil {
		t.Fatal(err)
	}
	tampered := func(at int) []byte {
		b := bytes.Clone(sealed)
		b[at] ^= 1
		return b
	}
	o := &objects{stored: map[string][]byte{
		"sealed": sealed, "header": tampered(len(mark) + 20), "mac": tampered(headerSize - nonceSize - 3), "nonce": tampered(headerSize - 1),
		"first": tampered(headerSize), "last": tampered(len(sealed) - 1), "cut": sealed[:len(sealed)-1], "chunk": sealed[:headerSize+chunkSize+overhead],
		"swapped": bytes.Join([][]byte{sealed[:headerSize], sealed[headerSize+chunkSize+overhead:][:chunkSize+overhead], sealed[headerSize:][:chunkSize+overhead], sealed[headerSize+2*(chunkSize+overhead):]}, nil),
	}}
	for name := range o.stored {
		for _, from := range []int64{0, 2*chunkSize - 5} {
			got, err := read(NewSource(o.get, opens(key)), name, from, -1)
			if name == "chunk" && from > 0 { // it begins after the end of this object: sizes and digests tell
				continue
			}
			if name == "sealed" || name == "first" && from > 0 || name == "swapped" && from > 2*chunkSize {
				if err != nil || !bytes.Equal(got, want[from:]) {
					t.Errorf("%s from %d: %v", name, from, err)
				}
				continue
			}
			if !errors.Is(err, archive.ErrCorrupted) && !(name == "header" && errors.Is(err, ErrKey)) || errors.Is(err, archive.ErrCorrupted) && errors.Is(err, transfer.ErrUnavailable) {
				t.Errorf("%s from %d: %d bytes, %v", name, from, len(got), err)
			}
		}
	}
	for _, from := range []int64{0, 100} {
		if _, err := read(NewSource(o.get, opens(newKey(t))), "sealed", from, -1); !errors.Is(err, ErrKey) || !errors.Is(err, transfer.ErrUnavailable) || errors.Is(err, archive.ErrCorrupted) {
			t.Errorf("another key: %v", err)
		}
		if _, err := read(NewSource(o.get, opens(key)), "missing", from, -1); !errors.Is(err, transfer.ErrNotFound) {
			t.Errorf("missing: %v", err)
		}
		failing := &objects{stored: o.stored, fails: transfer.ErrUnavailable}
		if _, err := read(NewSource(failing.get, opens(key)), "sealed", from, -1); !errors.Is(err, transfer.ErrUnavailable) || errors.Is(err, archive.ErrCorrupted) {
			t.Errorf("a failing bucket: %v", err)
		}
	}
}

// A Put returns the length of the content, and detects that the object is not complete.
func TestEncrypting(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	encrypt := func(r io.Reader) (io.Reader, error) { return EncryptFor(key.Recipient(), r) }
	lost := int64(0)
	put := Encrypting(encrypt, func(_ context.Context, r io.Reader) (int64, error) {
		n, err := io.Copy(io.Discard, r)
		return n - lost, err
	})
	if n, err := put(t.Context(), bytes.NewReader(content(100_000))); n != 100_000 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	lost = 1
	if _, err := put(t.Context(), bytes.NewReader(content(100_000))); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("a byte was lost: %v", err)
	}
	failed := errors.New("failed")
	if _, err := put(t.Context(), failing{failed}); !errors.Is(err, failed) {
		t.Errorf("the content failed: %v", err)
	}
}

func TestKeyFile(t *testing.T) {
	t.Parallel()
	a, b := newKey(t), newKey(t)
	hybrid, err := age.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text       string
		recipients int // 0: refused
		problem    string
	}{
		{"# created: today\n# public key: x\n" + a.String() + "\n", 1, ""},
		{a.String() + "\r\n\n" + b.Recipient() + "\n" + a.Recipient(), 2, ""},
		{hybrid.String(), 1, ""},
		{"", 0, "no secret key"},
		{b.Recipient(), 0, "no secret key"},
		{a.String() + "\n" + hybrid.Recipient().String(), 0, "can't mix"},
		{"\n" + a.String()[:50], 0, "line 2"},
		{"ssh-ed25519 secret", 0, "neither a secret key"},
	} {
		k, err := ParseKeyFile([]byte(c.text))
		if c.recipients == 0 {
			if err == nil || !strings.Contains(err.Error(), c.problem) || strings.Contains(err.Error(), a.String()[20:40]) || strings.Contains(err.Error(), "ssh-ed25519") {
				t.Errorf("%q: %v", c.text, err)
			}
			continue
		}
		if err != nil || len(k.Recipients()) != c.recipients {
			t.Errorf("%q: %+v, %v", c.text, k, err)
			continue
		}
		r, err := k.Encrypt(strings.NewReader("content"))
		if err != nil {
			t.Fatal(err)
		}
		if r, err = age.Decrypt(r, k.Identities()...); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(r); string(got) != "content" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	}
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, fmt.Append(nil, a.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if k, err := ReadKeyFile(file); err != nil || k.Recipients()[0] != a.Recipient() {
		t.Errorf("%v, %v", k, err)
	}
	if _, err := ReadKeyFile(file + "-none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if k, err := ParseKey(a.String() + "\n"); err != nil || k.Recipient() != a.Recipient() {
		t.Errorf("%v, %v", k, err)
	}
}
