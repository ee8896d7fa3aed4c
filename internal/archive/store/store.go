package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"

	"codehub/internal/archive/transfer"
)

// The kinds of failure that callers tell apart with errors.Is.
var (
	// ErrNotFound: the bucket responded, and it has no such object.
	ErrNotFound = transfer.ErrNotFound
	// ErrUnavailable: the bucket did not respond as a bucket should: it is down,
	// full, removed, or denies access. Nothing follows about what it holds.
	ErrUnavailable = transfer.ErrUnavailable
)

// Store is a bucket: objects by key. A key is components of letters, digits,
// ".", "_" and "-", joined by "/", none of which begins with a dot.
//
// Errors are of two kinds beside the end of the context: ErrNotFound, when the
// bucket is there and the object is not, and ErrUnavailable, from which nothing
// follows about any object.
type Store interface {
	// Put stores what r yields, of whatever length, and returns the length. The
	// object appears as a whole, durable, when Put returns nil, in place of an
	// earlier one; else nothing of it is to be seen, then or later. An error of
	// r is returned as it is.
	Put(ctx context.Context, key string, r io.Reader) (int64, error)
	// Get reads an object from an offset; at or past its end there is nothing.
	// It goes on by itself where a connection broke.
	Get(ctx context.Context, key string, offset int64) (io.ReadCloser, error)
	Stat(ctx context.Context, key string) (Object, error)
	// Delete removes an object. It is no error if there is none.
	Delete(ctx context.Context, key string) error
	// List yields the objects whose keys begin with prefix, sorted by key. It
	// ends after the first error.
	List(ctx context.Context, prefix string) iter.Seq2[Object, error]
	// AbortIncomplete removes what broken uploads to keys that begin with
	// prefix left behind, if it is older than age, and says how many those were.
	// Uploads to keys that keep (if not nil) is true for stay.
	AbortIncomplete(ctx context.Context, prefix string, age time.Duration, keep func(key string) bool) (int, error)
	// Check finds out whether the bucket can be worked with, by doing so. Its
	// error says what to do about it, in one line.
	Check(ctx context.Context) error
}

// Object is what a bucket tells of an object.
type Object struct {
	Key      string
	Size     int64
	Modified time.Time
}

// Open makes the store that a URL speaks of: file:///folder or
// s3://bucket/prefix?endpoint=…&region=…&path-style=…. It does not look whether
// the bucket is there: Check does.
func Open(rawURL string) (Store, error) { return OpenOver(rawURL, nil) }

// OpenOver is Open, with over around every transport that speaks to the bucket
// on this process's behalf; nil: nothing. A folder has none.
func OpenOver(rawURL string, over func(http.RoundTripper) http.RoundTripper) (Store, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, errors.New("archive URL cannot be parsed: it looks like file:///folder or s3://bucket/prefix?region=…")
	}
	switch u.Scheme {
	case "file":
		if u.Host != "" || u.RawQuery != "" || !strings.HasPrefix(u.Path, "/") {
			return nil, fmt.Errorf("archive URL %q: a folder is file:// and its absolute path", u.Redacted())
		}
		return NewFolder(u.Path), nil
	case "s3":
		return openS3(u, over)
	}
	return nil, fmt.Errorf("archive URL %q: the scheme is none of file and s3", u.Redacted())
}

const (
	maxKey  = 800 // S3 allows 1024 with the prefix
	maxName = 255 // the limit of the kernel
)

func checkKey(key string) error {
	ok := len(key) <= maxKey
	for part := range strings.SplitSeq(key, "/") {
		ok = ok && part != "" && part[0] != '.' && len(part) <= maxName-tempExtra
		for _, c := range []byte(part) {
			ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-')
		}
	}
	if !ok {
		return fmt.Errorf("bad key %.100q", key)
	}
	return nil
}

// checkPrefix: a prefix is the beginning of a key, or nothing.
func checkPrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	if err := checkKey(strings.TrimSuffix(prefix, "/")); err != nil {
		return fmt.Errorf("bad prefix %.100q", prefix)
	}
	return nil
}

// unavailable marks an error of the bucket, unless it is the caller's own end.
func unavailable(ctx context.Context, doing string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", doing, context.Cause(ctx))
	}
	return fmt.Errorf("%s: %w: %w", doing, ErrUnavailable, err)
}
