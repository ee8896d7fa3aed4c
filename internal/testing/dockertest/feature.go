package dockertest

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote"
)

// Tar returns an archive of executable files by their names.
func Tar(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(files[name]))})
		if _, wrote := w.Write([]byte(files[name])); errors.Join(err, wrote) != nil {
			t.Fatal(errors.Join(err, wrote))
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// FileIn returns a file of an archive.
func FileIn(t *testing.T, archive io.Reader, name string) string {
	t.Helper()
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return ""
		}
		if h.Name == name {
			content, err := io.ReadAll(r)
			if err != nil {
				t.Error(err)
			}
			return string(content)
		}
	}
}

// PushFeature pushes a Feature of a development container to a registry without TLS, as its
// authors' tool does, and returns the digest of its manifest.
func PushFeature(t *testing.T, ref string, archive []byte) string {
	t.Helper()
	repo, err := remote.NewRepository(ref)
	if err != nil {
		t.Fatal(err)
	}
	repo.PlainHTTP = true
	push := func(kind string, content []byte) ocispec.Descriptor {
		d := ocispec.Descriptor{MediaType: kind, Digest: digest.FromBytes(content), Size: int64(len(content))}
		if err := repo.Push(t.Context(), d, bytes.NewReader(content)); err != nil {
			t.Fatal(err)
		}
		return d
	}
	text, err := json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: push("application/vnd.devcontainers", []byte("{}")),
		Layers: []ocispec.Descriptor{push("application/vnd.devcontainers.layer.v1+tar", archive)},
	})
	if err != nil {
		t.Fatal(err)
	}
	manifest := push(ocispec.MediaTypeImageManifest, text)
	if err := repo.Tag(t.Context(), manifest, repo.Reference.Reference); err != nil {
		t.Fatal(err)
	}
	return manifest.Digest.String()
}
