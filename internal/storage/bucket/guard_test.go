package bucket

import (
	"context"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/base/breaker"
	"codehub/internal/storage/store"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/s3test"
)

// TestBreakerOfS3: failures of the bucket open the breaker, refusals of the bucket do not
// count, and the probe closes the breaker.
func TestBreakerOfS3(t *testing.T) {
	t.Parallel()
	server := s3test.Share(t, "the-bucket")
	proxy := newFaults(t, server.Endpoint, false)
	br := breaker.New(breaker.Config{Name: "bucket", FirstPause: 50 * time.Millisecond, MostPause: 200 * time.Millisecond})
	t.Cleanup(br.Close)
	s3, err := store.OpenOver("s3://the-bucket/breaker?path-style=true&region=us-east-1&endpoint="+proxy.URL, br.Transport)
	check(t, err)
	b, err := New(Config{
		Store: s3, Installation: installation, Version: "test", SocketDir: t.TempDir(), HostSocketDir: "/s", Breaker: br,
	})
	check(t, err)
	check(t, b.Check(t.Context(), false))
	row := newRow()
	row.ArchiveKey = b.Key(row.ID, row.OpID)
	f := &fixture{b, server, proxy}
	f.put(t, row.ArchiveKey, []byte("x"))

	proxy.on(func(w http.ResponseWriter, r *http.Request) bool { return answer(w, r, 403, "AccessDenied") })
	for range 10 {
		_, err := b.Stat(t.Context(), row.ArchiveKey)
		wantErr(t, err, store.ErrUnavailable)
	}
	if s := br.State(); s.State != api.BreakerClosed || s.Failures != 0 {
		t.Fatalf("refusals: %+v", s)
	}
	proxy.on(nil)

	proxy.on(func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) })
	harness.Eventually(t, "open", func() bool {
		_, err := b.Stat(t.Context(), row.ArchiveKey)
		wantErr(t, err, store.ErrUnavailable)
		return br.State().State != api.BreakerClosed
	})
	for range 20 {
		_, err := b.Stat(t.Context(), row.ArchiveKey)
		if br.State().State == api.BreakerOpen {
			wantErr(t, err, breaker.ErrOpen)
			wantErr(t, err, store.ErrUnavailable)
		}
	}
	proxy.on(nil)
	harness.Eventually(t, "closed by itself", func() bool { return br.State().State == api.BreakerClosed })
	if _, err := b.Stat(t.Context(), row.ArchiveKey); err != nil {
		t.Fatal(err)
	}
}

// hanging is a folder on a disk that responds, or hangs and ignores the context.
type hanging struct {
	*store.Folder
	disk chan struct{} // closed: it responds
	late chan struct{} // closed after the late file was closed
}

func (h *hanging) Stat(ctx context.Context, key string) (store.Object, error) {
	<-h.disk
	return h.Folder.Stat(ctx, key)
}

func (h *hanging) Get(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	<-h.disk
	r, err := h.Folder.Get(context.WithoutCancel(ctx), key, offset)
	if err != nil {
		return nil, err
	}
	return &closer{r, h.late}, nil
}

type closer struct {
	io.ReadCloser
	closed chan struct{}
}

func (c *closer) Close() error {
	close(c.closed)
	return c.ReadCloser.Close()
}

// TestFolderThatHangs: no call waits forever for the disk, only a few calls hang at a time, and
// a file that an abandoned call opens is closed.
func TestFolderThatHangs(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "archives")
	h := &hanging{Folder: store.NewFolder(dir), disk: make(chan struct{}), late: make(chan struct{})}
	br := breaker.New(breaker.Config{Name: "bucket", Failures: 2, FirstPause: 20 * time.Millisecond, ProbeWithin: 20 * time.Millisecond})
	t.Cleanup(br.Close)
	b, err := New(Config{
		Store: h, Installation: installation, Version: "test", Folder: dir, HostFolder: hostFolder, Breaker: br,
	})
	check(t, err)
	check(t, h.Check(t.Context()))
	_, err = h.Put(t.Context(), b.marker(), &io.LimitedReader{R: zeros{}, N: 10})
	check(t, err)
	g := b.encrypted.Store.(guarded)
	g.within = 50 * time.Millisecond
	b.encrypted.Store = g

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Store.Stat(ctx, b.marker()); !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrUnavailable) {
		t.Errorf("abandoned: %v", err)
	}
	_, err = b.Store.Get(t.Context(), b.marker(), 0)
	wantErr(t, err, store.ErrUnavailable)
	_, err = b.Store.Stat(t.Context(), b.marker())
	wantErr(t, err, store.ErrUnavailable)
	if br.State().State == api.BreakerClosed {
		t.Fatalf("%+v", br.State())
	}
	if _, err := b.Store.Stat(t.Context(), b.marker()); !errors.Is(err, breaker.ErrOpen) || !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("while open: %v", err)
	}
	close(h.disk)
	select {
	case <-h.late:
	case <-time.After(harness.Patience):
		t.Error("a file that was opened too late stays open")
	}
	harness.Eventually(t, "closed by itself", func() bool { return br.State().State == api.BreakerClosed })
	g.within = harness.Patience
	b.encrypted.Store = g
	if _, err := b.Store.Stat(t.Context(), b.marker()); err != nil {
		t.Error(err)
	}
	// ErrNotFound is a response.
	for range 5 {
		_, err := b.Store.Stat(t.Context(), "nothing")
		wantErr(t, err, store.ErrNotFound)
	}
	if s := br.State(); s.State != api.BreakerClosed || s.Failures != 0 {
		t.Errorf("%+v", s)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
