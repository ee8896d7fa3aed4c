package dockertest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Archived is an image in an OCI archive.
type Archived struct {
	Name         string // as containerd writes it; empty: none
	Architecture string // empty: that of this machine
	Content      string // of its only file
	Under        bool   // an index of its own leads to it
}

// OCIArchive writes an OCI archive with these images, and returns its path and the digests of their
// manifests, or of the indexes that lead to them.
func OCIArchive(t testing.TB, images ...Archived) (path string, digests []digest.Digest) {
	t.Helper()
	blobs := map[string][]byte{}
	add := func(kind string, content []byte) ocispec.Descriptor {
		d := ocispec.Descriptor{MediaType: kind, Digest: digest.FromBytes(content), Size: int64(len(content))}
		blobs["blobs/sha256/"+d.Digest.Encoded()] = content
		return d
	}
	document := func(kind string, v any) ocispec.Descriptor {
		content, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return add(kind, content)
	}
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	for _, i := range images {
		layer := tarOf(t, "content", []byte(i.Content))
		var zipped bytes.Buffer
		gz := gzip.NewWriter(&zipped)
		_, err := gz.Write(layer)
		if err == nil {
			err = gz.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		platform := ocispec.Platform{OS: "linux", Architecture: i.Architecture}
		if platform.Architecture == "" {
			platform.Architecture = runtime.GOARCH
		}
		m := document(ocispec.MediaTypeImageManifest, ocispec.Manifest{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
			Config: document(ocispec.MediaTypeImageConfig, ocispec.Image{
				Platform: platform, Config: ocispec.ImageConfig{Cmd: []string{"/content"}},
				RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(layer)}},
			}),
			Layers: []ocispec.Descriptor{add(ocispec.MediaTypeImageLayerGzip, zipped.Bytes())},
		})
		m.Platform = &platform
		if i.Under {
			m = document(ocispec.MediaTypeImageIndex, ocispec.Index{Versioned: index.Versioned, MediaType: index.MediaType, Manifests: []ocispec.Descriptor{m}})
		}
		if i.Name != "" {
			m.Annotations = map[string]string{"io.containerd.image.name": i.Name}
		}
		index.Manifests, digests = append(index.Manifests, m), append(digests, m.Digest)
	}
	content, err := json.Marshal(index)
	if err != nil {
		t.Fatal(err)
	}
	blobs["index.json"], blobs["oci-layout"] = content, []byte(`{"imageLayoutVersion":"1.0.0"}`)
	path = filepath.Join(t.TempDir(), "image.oci.tar")
	var names []string
	for name := range blobs {
		names = append(names, name)
	}
	slices.Sort(names)
	var files []any
	for _, name := range names {
		files = append(files, name, blobs[name])
	}
	if err := os.WriteFile(path, tarOf(t, files...), 0o644); err != nil {
		t.Fatal(err)
	}
	return path, digests
}

// tarOf returns an archive of files, each a name and its content.
func tarOf(t testing.TB, files ...any) []byte {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		name, content := files[i].(string), files[i+1].([]byte)
		err := tw.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))})
		if err == nil {
			_, err = tw.Write(content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
