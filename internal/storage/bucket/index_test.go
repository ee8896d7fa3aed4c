package bucket

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"codehub/internal/archive"
	"codehub/internal/storage/store"
	"codehub/internal/testing/s3test"
)

// requests counts requests to a bucket, and the bytes of the responses.
type requests struct {
	http.RoundTripper
	count, bytes atomic.Int64
}

func (r *requests) RoundTrip(req *http.Request) (*http.Response, error) {
	r.count.Add(1)
	res, err := r.RoundTripper.RoundTrip(req)
	if err == nil {
		r.bytes.Add(max(0, res.ContentLength))
	}
	return res, err
}

// One file of an archive on a real S3 server takes two requests: one for the index, one for the
// frames that the file is in.
func TestFileOfArchiveOnS3(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	for i := range 64 {
		check(t, os.WriteFile(filepath.Join(home, fmt.Sprintf("file-%02d", i)), randomBytes(1<<20+i<<8), 0o600))
	}
	counted := &requests{}
	server := s3test.Share(t, "the-bucket")
	s, err := store.OpenOver("s3://the-bucket/index/"+newID()+"?path-style=true&region=us-east-1&endpoint="+server.Endpoint, func(t http.RoundTripper) http.RoundTripper {
		counted.RoundTripper = t
		return counted
	})
	check(t, err)
	b, err := New(Config{Store: s, Installation: installation, Version: "test"})
	check(t, err)
	check(t, b.Check(t.Context(), false))
	key := b.Key(newRow().ID, newID())
	stats, err := archive.PackTo(t.Context(), home, archive.PackOptions{}, func(ctx context.Context, r io.Reader) (int64, error) {
		return b.Store.Put(ctx, key, r)
	})
	check(t, err)

	counted.count.Store(0)
	counted.bytes.Store(0)
	x, err := b.Index(t.Context(), key, stats.Size)
	check(t, err)
	n := int64(0)
	for _, err := range x.Entries(t.Context()) {
		check(t, err)
		n++
	}
	if n != stats.Entries || counted.count.Load() != 1 {
		t.Errorf("a list of %d entries took %d requests", n, counted.count.Load())
	}
	r, _, err := x.Open(t.Context(), "file-31")
	check(t, err)
	defer r.Close()
	got, err := io.ReadAll(r)
	check(t, err)
	want, err := os.ReadFile(filepath.Join(home, "file-31"))
	check(t, err)
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes that are not those of the file", len(got))
	}
	t.Logf("%d requests with %d bytes for a file of %d bytes in an archive of %d", counted.count.Load(), counted.bytes.Load(), len(want), stats.Size)
	if counted.count.Load() != 2 || counted.bytes.Load() > 10<<20 {
		t.Errorf("%d requests with %d bytes", counted.count.Load(), counted.bytes.Load())
	}
}
