package encryption

import (
	"bufio"
	"bytes"
	"context"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"

	"filippo.io/age"
	"golang.org/x/crypto/chacha20poly1305"

	"codehub/internal/archive"
	"codehub/internal/storage/transfer"
)

// mark begins an encrypted object, and no other: those of codehub begin with the marks of zstd.
const mark = "age-encryption.org/v1\n"

const (
	chunkSize = 64 << 10 // of the content
	overhead  = chacha20poly1305.Overhead
	nonceSize = 16
	// headerSize is that of a header for one X25519 recipient, with the nonce.
	headerSize = len(mark) + len("-> X25519 \n") + 43 + 43 + 1 + len("--- \n") + 43 + nonceSize
	// maxHeader is how many bytes are read to find a header.
	maxHeader = 4 << 10
)

// ErrKey means that none of the known keys opens an object. It is store.ErrUnavailable too, since nothing can be
// concluded about the object.
var ErrKey = fmt.Errorf("%w: no known key opens the object", transfer.ErrUnavailable)

// Size returns the size of an object whose content of so many bytes is encrypted for one recipient.
func Size(content int64) int64 {
	return int64(headerSize) + content + max((content+chunkSize-1)/chunkSize, 1)*overhead
}

// Fits reports whether an object of the size stored, encrypted or not, has content of this size.
func Fits(stored, content int64) bool { return stored == content || stored == Size(content) }

// Identities returns the keys that open an object. It is called only for encrypted ones.
type Identities func(ctx context.Context, name string) ([]age.Identity, error)

// Source reads objects, encrypted or not, by ranges of their content. What is wrong with the content of an encrypted
// object is archive.ErrCorrupted. It may be used concurrently. An object that was replaced is read once with that error.
type Source struct {
	get        archive.GetRange
	identities Identities

	mu      sync.Mutex
	objects map[string]*object
}

// maxObjects is how many objects a Source remembers.
const maxObjects = 1 << 14

// Forget forgets the objects whose names begin with prefix.
func (s *Source) Forget(prefix string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.objects, func(name string, _ *object) bool { return strings.HasPrefix(name, prefix) })
}

// NewSource returns a Source. get reads what is stored; a length of -1 means to the end.
func NewSource(get archive.GetRange, identities Identities) *Source {
	return &Source{get: get, identities: identities, objects: map[string]*object{}}
}

// Open reads an object to its end.
func (s *Source) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	r, err := s.get(ctx, name, 0, -1)
	if err != nil {
		return nil, err
	}
	return Open(ctx, r, name, s.identities)
}

// Open returns the content of r, an object that is read from its beginning. Closing it closes r.
func Open(ctx context.Context, r io.ReadCloser, name string, identities Identities) (io.ReadCloser, error) {
	src := &tracked{r: r}
	b := bufio.NewReaderSize(src, chunkSize+overhead)
	head, err := b.Peek(len(mark))
	if err != nil && src.err != nil {
		_ = r.Close()
		return nil, src.err
	}
	if string(head) != mark {
		return reader{b, r}, nil
	}
	keys, err := identities(ctx, name)
	if err == nil {
		var content io.Reader
		if content, err = age.Decrypt(b, keys...); err == nil {
			return reader{&checked{content, src, name}, r}, nil
		}
		err = src.explain(name, err)
	}
	_ = r.Close()
	return nil, err
}

// Range reads length bytes of an object's content from an offset; -1: to the end. The object may end before.
func (s *Source) Range(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if offset == 0 && length < 0 {
		return s.Open(ctx, name)
	}
	o, err := s.object(ctx, name)
	if err != nil {
		return nil, err
	}
	if o.aead == nil || length == 0 {
		return s.get(ctx, name, offset, length)
	}
	first := offset / chunkSize
	stored := int64(-1)
	if length > 0 {
		stored = ((offset+length-1)/chunkSize - first + 1) * (chunkSize + overhead)
	}
	r, err := s.get(ctx, name, o.header+first*(chunkSize+overhead), stored)
	if err != nil {
		return nil, err
	}
	src := &tracked{r: r}
	return reader{&chunks{s: s, o: o, src: src, name: name, number: first, skip: int(offset % chunkSize), left: length}, r}, nil
}

// ContentSize returns the size of the content of an object of the size stored.
func (s *Source) ContentSize(ctx context.Context, name string, stored int64) (int64, error) {
	o, err := s.object(ctx, name)
	if err != nil || o.aead == nil {
		return stored, err
	}
	payload := stored - o.header
	chunks := (payload + chunkSize + overhead - 1) / (chunkSize + overhead)
	if payload < overhead {
		return 0, corrupted(name, io.ErrUnexpectedEOF)
	}
	return payload - chunks*overhead, nil
}

// object returns an object whose header was read.
func (s *Source) object(ctx context.Context, name string) (*object, error) {
	s.mu.Lock()
	o := s.objects[name]
	if o == nil {
		if len(s.objects) == maxObjects {
			clear(s.objects)
		}
		o = &object{}
		s.objects[name] = o
	}
	s.mu.Unlock()
	return o, o.open(ctx, s, name)
}

// object is what is known of an object. aead is nil if it is not encrypted.
type object struct {
	mu     sync.Mutex
	known  bool
	header int64
	aead   cipher.AEAD
}

// open reads the header.
func (o *object) open(ctx context.Context, s *Source, name string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.known {
		return nil
	}
	r, err := s.get(ctx, name, 0, maxHeader)
	if err != nil {
		return err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, maxHeader))
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(b, []byte(mark)) {
		o.known = true
		return nil
	}
	header, err := age.ExtractHeader(bytes.NewReader(b))
	if err == nil && len(b) < len(header)+nonceSize {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return corrupted(name, err)
	}
	keys, err := s.identities(ctx, name)
	if err != nil {
		return err
	}
	fileKey, err := age.DecryptHeader(header, keys...)
	if err != nil {
		return (&tracked{}).explain(name, err)
	}
	key, err := hkdf.Key(sha256.New, fileKey, b[len(header):][:nonceSize], "payload", chacha20poly1305.KeySize)
	if err != nil {
		return err
	}
	if o.aead, err = chacha20poly1305.New(key); err != nil {
		return err
	}
	o.known, o.header = true, int64(len(header)+nonceSize)
	return nil
}

// chunks decrypts chunks of the payload of an age file, from any of them: age's own reader for ranges needs the
// size of the object and its last chunk first, which are two requests more.
type chunks struct {
	s      *Source
	o      *object
	src    *tracked
	name   string
	number int64
	skip   int
	left   int64 // -1: all
	buf    []byte
	unread []byte
	began  bool
	last   bool
}

func (c *chunks) Read(p []byte) (int, error) {
	for len(c.unread) == 0 {
		if c.left == 0 || c.last {
			return 0, io.EOF
		}
		if err := c.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, c.unread)
	c.unread = c.unread[n:]
	return n, nil
}

func (c *chunks) next() error {
	if c.buf == nil {
		c.buf = make([]byte, chunkSize+overhead)
	}
	n, err := io.ReadFull(c.src, c.buf)
	switch {
	case c.src.err != nil:
		return c.src.err
	case n == 0 && !c.began: // the range begins at or after the end
		c.last = true
		return nil
	case n == 0:
		return corrupted(c.name, io.ErrUnexpectedEOF)
	}
	c.began = true
	content, err := c.open(n, err != nil)
	if err != nil {
		c.s.Forget(c.name) // it may have been replaced
		return corrupted(c.name, err)
	}
	c.number++
	content = content[min(c.skip, len(content)):]
	c.skip = 0
	if c.left >= 0 {
		content = content[:min(c.left, int64(len(content)))]
		c.left -= int64(len(content))
	}
	c.unread = content
	return nil
}

// open decrypts a chunk of n bytes. A full one may be the last one too.
func (c *chunks) open(n int, short bool) ([]byte, error) {
	var nonce [chacha20poly1305.NonceSize]byte
	binary.BigEndian.PutUint64(nonce[3:], uint64(c.number))
	if !short {
		if content, err := c.o.aead.Open(nil, nonce[:], c.buf[:n], nil); err == nil {
			return content, nil
		}
	}
	c.last = true
	nonce[len(nonce)-1] = 1
	return c.o.aead.Open(nil, nonce[:], c.buf[:n], nil)
}

func corrupted(name string, err error) error {
	return fmt.Errorf("decrypt %s: %w: %w", name, archive.ErrCorrupted, err)
}

// tracked keeps the error of a reader, which is not one of the content.
type tracked struct {
	r   io.Reader
	err error
}

func (t *tracked) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	if err != nil && err != io.EOF {
		t.err = err
	}
	return n, err
}

// explain returns why an object could not be decrypted.
func (t *tracked) explain(name string, err error) error {
	var none *age.NoIdentityMatchError
	switch {
	case t.err != nil:
		return t.err
	case errors.As(err, &none):
		return fmt.Errorf("decrypt %s: %w", name, ErrKey)
	}
	return corrupted(name, err)
}

// checked tells errors of the content from those of the source.
type checked struct {
	io.Reader
	src  *tracked
	name string
}

func (c *checked) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if err != nil && err != io.EOF {
		err = c.src.explain(c.name, err)
	}
	return n, err
}

type reader struct {
	io.Reader
	io.Closer
}
