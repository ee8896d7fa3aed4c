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

	"codehub/internal/storage/transfer"
)

// The kinds of failure that callers tell apart with errors.Is.
var (
	// ErrNotFound: the bucket responded, and it has no such object.
	ErrNotFound = transfer.ErrNotFound
	// ErrUnavailable: the bucket did not respond properly: it is down, full,
	// removed, or denies access. Nothing can be concluded about its objects.
	ErrUnavailable = transfer.ErrUnavailable
)

// Store is a bucket: objects by key. A key consists of components of letters,
// digits, ".", "_" and "-", joined by "/", none of which begins with a dot.
//
// Errors other than the end of the context are of two kinds: ErrNotFound if the
// bucket responds and the object is missing, and ErrUnavailable, from which nothing
// can be concluded about any object.
type Store interface {
	// Put stores the content of r, of any length, and returns the length. When
	// it returns nil, the object is durable and has replaced an earlier one;
	// otherwise nothing of it ever becomes visible. An error of r is returned
	// unchanged.
	Put(ctx context.Context, key string, r io.Reader) (int64, error)
	// Get reads an object from an offset; at or past its end the reader is
	// empty. It resumes after a broken connection.
	Get(ctx context.Context, key string, offset int64) (io.ReadCloser, error)
	// GetRange is Get with a number of bytes. The object may end before it.
	GetRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error)
	Stat(ctx context.Context, key string) (Object, error)
	// Delete removes an object. A missing object is not an error.
	Delete(ctx context.Context, key string) error
	// List yields the objects whose keys begin with prefix, sorted by key. It
	// ends after the first error.
	List(ctx context.Context, prefix string) iter.Seq2[Object, error]
	// AbortIncomplete removes interrupted uploads to keys that begin with
	// prefix, if they are older than age, and returns their number. Uploads to
	// keys for which keep (if not nil) returns true remain.
	AbortIncomplete(ctx context.Context, prefix string, age time.Duration, keep func(key string) bool) (int, error)
	// Check tests the bucket by using it. Its error says in one line what to
	// do.
	Check(ctx context.Context) error
}

// Object describes an object in a bucket.
type Object struct {
	Key      string
	Size     int64
	Modified time.Time
}

// Open returns the store of a URL: file:///folder or
// s3://bucket/prefix?endpoint=…&region=…&path-style=…. It does not access the
// bucket; Check does.
func Open(rawURL string) (Store, error) { return OpenOver(rawURL, nil) }

// OpenOver is Open with over applied to every transport to the bucket; nil:
// none. A folder has no transport.
func OpenOver(rawURL string, over func(http.RoundTripper) http.RoundTripper) (Store, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, errors.New("the archive URL cannot be parsed; give one like file:///folder or s3://bucket/prefix?region=…")
	}
	switch u.Scheme {
	case "file":
		if u.Host != "" || u.RawQuery != "" || !strings.HasPrefix(u.Path, "/") {
			return nil, fmt.Errorf("archive URL %q: a folder is file:// followed by its absolute path", u.Redacted())
		}
		return NewFolder(u.Path), nil
	case "s3":
		return openS3(u, over)
	}
	return nil, fmt.Errorf("archive URL %q: the scheme must be file or s3", u.Redacted())
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

// checkPrefix accepts the beginning of a key, or the empty string.
func checkPrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	if err := checkKey(strings.TrimSuffix(prefix, "/")); err != nil {
		return fmt.Errorf("bad prefix %.100q", prefix)
	}
	return nil
}

// unavailable wraps an error of the bucket, unless the caller's context ended.
func unavailable(ctx context.Context, doing string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", doing, context.Cause(ctx))
	}
	return fmt.Errorf("%s: %w: %w", doing, ErrUnavailable, err)
}
