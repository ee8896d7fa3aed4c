package imagefile_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"

	"codehub/internal/runtime/docker/imagefile"
	"codehub/internal/testing/dockertest"
)

func open(t *testing.T, path string) *imagefile.File {
	t.Helper()
	f, err := imagefile.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// written writes an image of a file as docker load takes it.
func written(t *testing.T, f *imagefile.File, images ...imagefile.Tagged) (path string, names []string) {
	t.Helper()
	var b bytes.Buffer
	if err := f.WriteTo(&b, images...); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "saved.tar")
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	for tr := tar.NewReader(&b); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return path, names
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
}

func TestOCIArchiveBecomesDockerArchive(t *testing.T) {
	t.Parallel()
	const name = "docker.io/codehub/ide:1"
	path, digests := dockertest.OCIArchive(t, dockertest.Archived{Name: name, Content: "one"}, dockertest.Archived{Architecture: "riscv64", Content: "two", Under: true})
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for kind, compress := range map[string]func(io.Writer) io.WriteCloser{
		"plain": func(w io.Writer) io.WriteCloser { return nopCloser{w} },
		"gzip":  func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
		"zstd":  func(w io.Writer) io.WriteCloser { z, _ := zstd.NewWriter(w); return z },
	} {
		var b bytes.Buffer
		w := compress(&b)
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), kind)
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		f := open(t, path)
		if len(f.Images) != 2 {
			t.Fatalf("%s: %d images", kind, len(f.Images))
		}
		one, two := f.Images[0], f.Images[1]
		if !slices.Equal(one.Names, []string{name}) || !slices.Equal(one.Digests, digests[:1]) || one.Architecture != runtime.GOARCH {
			t.Errorf("%s: %+v", kind, one)
		}
		if len(two.Digests) != 2 || two.Digests[0] != digests[1] || two.Architecture != "riscv64" || len(two.Names) > 0 {
			t.Errorf("%s: %+v", kind, two)
		}
		saved, names := written(t, f, imagefile.Tagged{Image: one, Name: "local:1"})
		if len(names) != 3 || names[0] != "manifest.json" { // and the configuration and the layer of the one
			t.Errorf("%s: docker load gets %v", kind, names)
		}
		again := open(t, saved)
		if len(again.Images) != 1 || again.Images[0].ID != one.ID || !slices.Equal(again.Images[0].Names, []string{"local:1"}) || len(again.Images[0].Digests) > 0 {
			t.Errorf("%s: read again: %+v", kind, again.Images)
		}
		if saved, _ = written(t, again, imagefile.Tagged{Image: again.Images[0], Name: "local:2"}); open(t, saved).Images[0].Names[0] != "local:2" {
			t.Errorf("%s: an image of docker save does not get another name", kind)
		}
	}
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func TestWrongFilesAreNamed(t *testing.T) {
	t.Parallel()
	path, _ := dockertest.OCIArchive(t, dockertest.Archived{Content: strings.Repeat("content", 1000)})
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damaged := slices.Clone(content)
	damaged[bytes.Index(damaged, []byte{0x1f, 0x8b})+30]++
	var empty bytes.Buffer
	_ = tar.NewWriter(&empty).Close()
	for says, content := range map[string][]byte{
		"it is damaged":             damaged,
		"it is incomplete":          content[:len(content)/2],
		"it is incomplete: copy it": content[:bytes.Index(content, []byte{0x1f, 0x8b})+10],
		"it is no archive of image": []byte("#!/bin/sh\n" + strings.Repeat("echo no\n", 100)),
		"it has no image":           empty.Bytes(),
	} {
		path := filepath.Join(t.TempDir(), "file.tar")
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := imagefile.Open(path); err == nil || !strings.Contains(err.Error(), "file.tar: "+says) {
			t.Errorf("error = %v, want one that says %q", err, says)
		}
	}
}

// An archive whose index names a layer that it does not have: as docker save of one platform.
func TestMissingLayerIsNamed(t *testing.T) {
	t.Parallel()
	path, _ := dockertest.OCIArchive(t, dockertest.Archived{Content: "one"})
	f := open(t, path)
	saved, _ := written(t, f, imagefile.Tagged{Image: f.Images[0], Name: "local:1"})
	content, err := os.ReadFile(saved)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	gone := ""
	for tr := tar.NewReader(bytes.NewReader(content)); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		text, _ := io.ReadAll(tr)
		if !json.Valid(text) {
			gone = h.Name
			continue
		}
		_ = tw.WriteHeader(h)
		_, _ = tw.Write(text)
	}
	_ = tw.Close()
	if err := os.WriteFile(saved, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	f = open(t, saved)
	if err := f.WriteTo(io.Discard, imagefile.Tagged{Image: f.Images[0]}); err == nil || !strings.Contains(err.Error(), "incomplete: "+gone) {
		t.Errorf("error = %v, want one that names %s", err, gone)
	}
	if f.Images[0].ID != digest.Digest("") {
		t.Error("an incomplete image has an id")
	}
}
