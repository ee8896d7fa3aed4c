package cli

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"codehub/client"
	"codehub/internal/cli/terminal"
)

// source is a server with one archive.
type source struct {
	content []byte
	etag    string
	sum     string
	cuts    []int // bytes that each connection delivers, in order; later ones deliver all
	asked   []int64
	err     error
}

func newSource(n int) *source {
	s := &source{content: make([]byte, n)}
	_, _ = rand.NewChaCha8([32]byte{7}).Read(s.content)
	sum := sha256.Sum256(s.content)
	s.sum = hex.EncodeToString(sum[:])
	s.etag = `"` + s.sum + `"`
	return s
}

func (s *source) open(_ context.Context, offset int64, etag string) (*client.Download, error) {
	s.asked = append(s.asked, offset)
	if s.err != nil {
		return nil, s.err
	}
	if etag == "" || etag != s.etag {
		offset = 0
	}
	body := io.Reader(bytes.NewReader(s.content[offset:]))
	if len(s.cuts) > 0 {
		body = io.LimitReader(body, int64(s.cuts[0]))
		s.cuts = s.cuts[1:]
	}
	return &client.Download{Body: io.NopCloser(body), Offset: offset, Size: int64(len(s.content)), ETag: s.etag, SHA256: s.sum}, nil
}

func (s *source) fetch() *fetch {
	return &fetch{open: s.open, meter: &meter{}, info: &client.Download{Size: int64(len(s.content)), ETag: s.etag, SHA256: s.sum}}
}

func TestDownloadGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSource(1000)
		s.cuts = []int{100, 0, 0, 0, 0, 0, 250, 0, 1}
		name := filepath.Join(t.TempDir(), "a.tar.zst")
		f := s.fetch()
		if err := f.toFile(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(name)
		if err != nil || !bytes.Equal(got, s.content) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		if len(s.asked) != 10 || s.asked[1] != 100 || s.asked[9] != 351 {
			t.Errorf("asked at %v", s.asked)
		}
		if left, _ := filepath.Glob(name + "*"); len(left) != 1 {
			t.Errorf("left: %v", left)
		}
	})
}

// A part of an earlier run is continued and checked, and downloaded again if it is
// wrong.
func TestDownloadTakesUpAPart(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		left  func(s *source) []byte
		asked []int64
	}{
		"half of it":   {func(s *source) []byte { return s.content[:500] }, []int64{500}},
		"all of it":    {func(s *source) []byte { return s.content }, nil},
		"nothing":      {func(s *source) []byte { return nil }, []int64{0}},
		"damaged":      {func(s *source) []byte { return bytes.Repeat([]byte("x"), 400) }, []int64{400, 0}},
		"all, damaged": {func(s *source) []byte { return bytes.Repeat([]byte("x"), 1000) }, []int64{0}},
		"too much":     {func(s *source) []byte { return append(bytes.Clone(s.content), 'x') }, []int64{0}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newSource(1000)
			name := filepath.Join(t.TempDir(), "a.tar.zst")
			f := s.fetch()
			if err := os.WriteFile(f.partName(name), c.left(s), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := f.toFile(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, s.content) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			if len(s.asked) != len(c.asked) {
				t.Fatalf("asked at %v, want %v", s.asked, c.asked)
			}
			for i := range c.asked {
				if s.asked[i] != c.asked[i] {
					t.Errorf("asked at %v, want %v", s.asked, c.asked)
				}
			}
		})
	}
}

func TestDownloadFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		left := func() string {
			t.Helper()
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, e := range entries {
				names = append(names, e.Name())
				_ = os.Remove(filepath.Join(dir, e.Name()))
			}
			return strings.Join(names, " ")
		}
		name := filepath.Join(dir, "a.tar.zst")

		// After connections without data the download fails, and the part stays.
		s := newSource(1000)
		s.cuts = []int{300, 0, 0, 0, 0, 0, 0, 0, 0}
		err := s.fetch().toFile(t.Context(), name)
		if err == nil || !strings.Contains(err.Error(), "300 B of 1000 B are in "+name) {
			t.Error(err)
		}
		if got := left(); got != "a.tar.zst."+s.sum[:12]+".part" {
			t.Errorf("left: %s", got)
		}

		// An archive with another digest is refused.
		s = newSource(1000)
		s.content[700]++
		if err := s.fetch().toFile(t.Context(), name); !errors.Is(err, errDamaged) || left() != "" {
			t.Errorf("damaged: %v", err)
		}

		// A part is not continued with another archive.
		s = newSource(1000)
		s.cuts = []int{300}
		f := s.fetch()
		s.etag = `"another"`
		if err := f.toFile(t.Context(), name); !errors.Is(err, errChanged) || left() != "" {
			t.Errorf("replaced: %v", err)
		}

		// A refusal of the server is not retried.
		s = newSource(1000)
		s.err = &client.Error{Status: 403, Message: "no"}
		if err := s.fetch().toFile(t.Context(), name); err == nil || err.Error() != "no" || len(s.asked) != 1 || left() != "" {
			t.Errorf("refused: %v after %v", err, s.asked)
		}
		s = newSource(1000)
		s.err = &client.Error{Status: 503, Message: "later"}
		if err := s.fetch().toFile(t.Context(), name); err == nil || len(s.asked) != fetchTries || left() != "" {
			t.Errorf("unavailable: %v after %v", err, s.asked)
		}

		// An interruption leaves the part.
		s = newSource(1000)
		s.cuts = []int{300, 0}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := s.fetch().toFile(ctx, name); err == nil || !strings.HasPrefix(err.Error(), "interrupted (300 B") || left() == "" {
			t.Errorf("interrupted: %v", err)
		}

		// Without an ETag, a part is not continued.
		s = newSource(1000)
		s.etag, s.sum, s.cuts = "", "", []int{300}
		if err := s.fetch().toFile(t.Context(), name); err == nil || len(s.asked) != 1 || left() != "a.tar.zst.part" {
			t.Errorf("without a name: %v", err)
		}
		s.asked = nil
		if err := s.fetch().toFile(t.Context(), name); err != nil || left() != "a.tar.zst" || s.asked[0] != 0 {
			t.Errorf("without a name: %v at %v", err, s.asked)
		}
	})
}

// A connection without data for a while is replaced by another one.
func TestDownloadThatStalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSource(1000)
		stalls := 0
		f := s.fetch()
		f.open = func(ctx context.Context, offset int64, etag string) (*client.Download, error) {
			d, err := s.open(ctx, offset, etag)
			if stalls++; stalls <= 2 {
				d.Body = io.NopCloser(io.MultiReader(io.LimitReader(d.Body, 200), hang{ctx}))
			}
			return d, err
		}
		var b bytes.Buffer
		start := time.Now()
		if err := f.run(t.Context(), &b); err != nil || !bytes.Equal(b.Bytes(), s.content) {
			t.Errorf("%d bytes, %v", b.Len(), err)
		}
		if took := time.Since(start); took < 2*fetchQuiet || stalls != 3 {
			t.Errorf("%d connections in %v", stalls, took)
		}
	})
}

type hang struct{ ctx context.Context }

func (h hang) Read([]byte) (int, error) {
	<-h.ctx.Done()
	return 0, h.ctx.Err()
}

func TestRate(t *testing.T) {
	t.Parallel()
	var r rate
	at := time.Unix(0, 0)
	if speed, left := r.of(10); speed != 0 || left != 0 {
		t.Errorf("%d, %d before anything", speed, left)
	}
	for i := range 31 {
		r.add(at.Add(time.Duration(i)*100*time.Millisecond), int64(i)*1000)
	}
	if speed, left := r.of(100_000); speed < 9000 || speed > 11000 || left < 10 || left > 12 {
		t.Errorf("%d bytes a second, %d s left", speed, left)
	}
}

func TestAmounts(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 12_345: "12 KiB", 1_240_000_000: "1.2 GiB"} {
		if got := terminal.Size(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
	if got := amount(999, 1000); got != "999 B of 1000 B, 99 %" {
		t.Error(got)
	}
	if amount(0, 0) != "" || pace(0, 0) != "" || joined([]string{"", ""}) != "" {
		t.Error("nothing is something")
	}
}
