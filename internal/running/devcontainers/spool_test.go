package devcontainers

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"testing"

	"codehub/internal/workspace"
)

// sparse is a tar with one file of nearly no bytes that reads as this many.
func sparse(t *testing.T, size int64) []byte {
	t.Helper()
	record := func(name, value string) string {
		text := fmt.Sprintf(" %s=%s\n", name, value)
		return fmt.Sprint(len(text)+2) + text // two digits
	}
	records := record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0") + record("GNU.sparse.name", "f") + record("GNU.sparse.realsize", fmt.Sprint(size))
	fragments := fmt.Sprintf("1\n%d\n0\n", size)
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range []struct {
		kind    byte
		content string
	}{{tar.TypeReg, records}, {tar.TypeReg, fragments + strings.Repeat("\x00", 512-len(fragments))}} {
		if err := w.WriteHeader(&tar.Header{Typeflag: f.kind, Name: "f", Mode: 0o644, Size: int64(len(f.content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	archive := out.Bytes() // the writer writes no such header
	archive[156] = tar.TypeXHeader
	sum := 0
	for i, b := range archive[:512] {
		if i >= 148 && i < 156 {
			b = ' '
		}
		sum += int(b)
	}
	copy(archive[148:], fmt.Sprintf("%06o\x00 ", sum))
	return archive
}

// A Feature takes no more of the disk than its archive has.
func TestSparseFeature(t *testing.T) {
	t.Parallel()
	for _, size := range []int64{100 << 20, math.MaxInt64 - 1} {
		archive := sparse(t, size)
		if h, err := tar.NewReader(bytes.NewReader(archive)).Next(); err != nil || h.Size != size {
			t.Fatalf("%+v, %v", h, err)
		}
		s := &spool{dir: t.TempDir()}
		if err := s.keep("a", archive); err != nil {
			t.Fatal(err)
		}
		if err := s.add("feature-0", "a"); err == nil {
			t.Errorf("a file of %d bytes is taken", size)
		}
		if info, err := os.Stat(s.path("feature-0")); err != nil || info.Size() > int64(len(archive)) {
			t.Errorf("%+v, %v", info, err)
		}
	}
}

// All Features of a build have a limit while they are fetched, not only afterwards.
func TestFeaturesInMemory(t *testing.T) {
	t.Parallel()
	s := &spool{dir: t.TempDir()}
	half := make([]byte, maxFeatures/2)
	for _, digest := range []string{"a", "b", "a"} { // one that is there takes nothing
		if err := s.keep(digest, half); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.keep("c", half[:1]); workspace.CodeOf(err) != workspace.CodeInvalid || len(s.archives) != 2 {
		t.Errorf("%d Features, %v", len(s.archives), err)
	}
}

// contexts streams this many bytes.
type contexts int64

func (c contexts) BuildContext(context.Context, workspace.ID, string, string, string) (io.ReadCloser, error) {
	return io.NopCloser(io.LimitReader(zeros{}, int64(c))), nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// A Feature of the repository is read up to its limit.
func TestFeatureOfRepositoryIsBounded(t *testing.T) {
	t.Parallel()
	if _, content, err := readFeature(t.Context(), contexts(maxFeature), job{}, "f"); err != nil || len(content) != maxFeature {
		t.Errorf("%d bytes, %v", len(content), err)
	}
	if _, _, err := readFeature(t.Context(), contexts(maxFeature+1), job{}, "f"); workspace.CodeOf(err) != workspace.CodeInvalid {
		t.Errorf("one byte more: %v", err)
	}
}
