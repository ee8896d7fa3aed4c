// Package imagefile reads archives of images, OCI layouts and those of docker save, and writes
// them as docker load of every Docker Engine takes them.
package imagefile

import (
	"archive/tar"
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	maxDocument  = 4 << 20  // of a manifest or a configuration
	maxDocuments = 64 << 20 // of all in a file
	maxNesting   = 4        // of indexes
)

// Names in the archives.
const (
	nameIndex    = "index.json"
	nameManifest = "manifest.json"
	dirBlobs     = "blobs/sha256/"
)

var errIncomplete = errors.New("it is incomplete: copy it again")

// File is an archive of images.
type File struct {
	Images []Image

	path string
	oci  bool
}

// Image is one of the images of a file, for one platform.
type Image struct {
	Names        []string        // that the file gives it
	Digests      []digest.Digest // of its manifest, and of the indexes that lead to it; docker save has none
	ID           digest.Digest   // of its configuration
	Architecture string

	config string // name in the archive
	layers []string
	absent string // a part that is not in the archive
}

// Tagged is an image of a file, and the name that it gets.
type Tagged struct {
	Image
	Name string
}

// savedImage is an image in the manifest.json of docker save.
type savedImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// documents are the JSON files of an archive.
type documents struct {
	text  map[string][]byte
	names map[string]bool // of all files
}

// Open reads the file at the path, which may be compressed with gzip or zstd, and checks the
// digest of everything in it.
func Open(path string) (*File, error) {
	f := &File{path: path}
	d := documents{text: map[string][]byte{}, names: map[string]bool{}}
	if err := f.each(d.add); err != nil {
		return nil, err
	}
	var err error
	switch {
	case d.text[nameIndex] != nil:
		f.oci = true
		f.Images, err = d.layout()
	case d.text[nameManifest] != nil:
		f.Images, err = d.saved()
	}
	if err == nil && len(f.Images) == 0 {
		err = errors.New("it has no image: give an OCI archive, or what docker save writes")
		for name := range d.names {
			if strings.HasPrefix(name, dirBlobs) {
				err = errIncomplete
			}
		}
	}
	if err != nil {
		return nil, f.failed(err)
	}
	return f, nil
}

func (f *File) failed(err error) error { return fmt.Errorf("%s: %w", filepath.Base(f.path), err) }

// each calls do with every entry of the archive.
func (f *File) each(do func(*tar.Header, io.Reader) error) error {
	in, err := os.Open(f.path)
	if err != nil {
		return err
	}
	defer in.Close()
	content, err := decompress(in)
	if err != nil {
		return f.failed(err)
	}
	defer content.Close()
	tr := tar.NewReader(content)
	for begun := false; ; begun = true {
		h, err := tr.Next()
		switch {
		case err == io.EOF:
			return nil
		case errors.Is(err, io.ErrUnexpectedEOF):
			return f.failed(errIncomplete)
		case err != nil && !begun:
			return f.failed(fmt.Errorf("it is no archive of images: give an OCI archive, or what docker save writes (%w)", err))
		case err != nil:
			return f.failed(err)
		}
		h.Name = path.Clean(h.Name)
		if err := do(h, tr); errors.Is(err, io.ErrUnexpectedEOF) {
			return f.failed(errIncomplete)
		} else if err != nil {
			return f.failed(err)
		}
	}
}

func decompress(in io.Reader) (io.ReadCloser, error) {
	buf := bufio.NewReaderSize(in, 256<<10)
	head, _ := buf.Peek(4) // a shorter file is no archive either
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return gzip.NewReader(buf)
	case bytes.Equal(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		d, err := zstd.NewReader(buf)
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
	return io.NopCloser(buf), nil
}

// add takes an entry of the archive.
func (d documents) add(h *tar.Header, r io.Reader) error {
	d.names[h.Name] = true
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	sum := sha256.New()
	r = io.TeeReader(r, sum)
	if h.Size <= maxDocument {
		text, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if len(text) > 0 && (text[0] == '{' || text[0] == '[') {
			d.text[h.Name] = text
		}
		size := 0
		for t := range maps.Values(d.text) {
			size += len(t)
		}
		if size > maxDocuments {
			return errors.New("its manifests are too large")
		}
	} else if _, err := io.Copy(io.Discard, r); err != nil {
		return err
	}
	if want, blob := strings.CutPrefix(h.Name, dirBlobs); blob && want != hex.EncodeToString(sum.Sum(nil)) {
		return fmt.Errorf("it is damaged: the content of %s has another digest", h.Name)
	}
	return nil
}

// read decodes a document.
func (d documents) read(name string, v any) error {
	if err := json.Unmarshal(d.text[name], v); err != nil {
		return fmt.Errorf("it is damaged: %s: %w", name, err)
	}
	return nil
}

func blob(d digest.Digest) string { return dirBlobs + strings.TrimPrefix(d.String(), "sha256:") }

// layout lists the images of an OCI layout.
func (d documents) layout() ([]Image, error) {
	var index ocispec.Index
	if err := d.read(nameIndex, &index); err != nil {
		return nil, err
	}
	var out []Image
	for _, m := range index.Manifests {
		var names []string
		for _, key := range []string{"io.containerd.image.name", ocispec.AnnotationRefName} {
			if name := m.Annotations[key]; name != "" {
				names = append(names, name)
			}
		}
		images, err := d.described(m, nil, names)
		if err != nil {
			return nil, err
		}
		out = append(out, images...)
	}
	return out, nil
}

// described lists the images that a descriptor leads to. Without its document there are none:
// docker save leaves out those of other platforms.
func (d documents) described(m ocispec.Descriptor, from []digest.Digest, names []string) ([]Image, error) {
	name := blob(m.Digest)
	if d.text[name] == nil {
		return nil, nil
	}
	digests := append(slices.Clone(from), m.Digest)
	if len(digests) > maxNesting {
		return nil, errors.New("its indexes are nested too deeply")
	}
	var content struct { // of an index or a manifest
		Manifests []ocispec.Descriptor
		Config    ocispec.Descriptor
		Layers    []ocispec.Descriptor
	}
	if err := d.read(name, &content); err != nil {
		return nil, err
	}
	var out []Image
	for _, child := range content.Manifests {
		images, err := d.described(child, digests, names)
		if err != nil {
			return nil, err
		}
		out = append(out, images...)
	}
	if content.Config.Digest == "" || !strings.Contains(content.Config.MediaType, "image") || m.Annotations["vnd.docker.reference.type"] != "" {
		return out, nil // an index, or what is attached to an image
	}
	image := Image{Names: names, Digests: digests, config: blob(content.Config.Digest)}
	for _, l := range content.Layers {
		image.layers = append(image.layers, blob(l.Digest))
	}
	image, err := d.whole(image)
	return append(out, image), err
}

// saved lists the images of docker save.
func (d documents) saved() ([]Image, error) {
	var list []savedImage
	if err := d.read(nameManifest, &list); err != nil {
		return nil, err
	}
	var out []Image
	for _, s := range list {
		image := Image{Names: s.RepoTags, config: path.Clean(s.Config)}
		for _, l := range s.Layers {
			image.layers = append(image.layers, path.Clean(l))
		}
		image, err := d.whole(image)
		if err != nil {
			return nil, err
		}
		out = append(out, image)
	}
	return out, nil
}

// whole adds what the configuration says, and which part is missing.
func (d documents) whole(image Image) (Image, error) {
	for _, name := range append([]string{image.config}, image.layers...) {
		if !d.names[name] {
			image.absent = name
			return image, nil
		}
	}
	var config ocispec.Image
	if err := d.read(image.config, &config); err != nil {
		return image, err
	}
	image.ID, image.Architecture = digest.FromBytes(d.text[image.config]), config.Architecture
	return image, nil
}

// WriteTo writes some images of the file as docker load takes them.
func (f *File) WriteTo(w io.Writer, images ...Tagged) error {
	var list []savedImage
	needed := map[string]bool{}
	for _, i := range images {
		if i.absent != "" {
			return f.failed(fmt.Errorf("it is incomplete: %s is missing", i.absent))
		}
		list = append(list, savedImage{Config: i.config, RepoTags: []string{i.Name}, Layers: i.layers})
		for _, name := range append(i.layers, i.config) {
			needed[name] = true
		}
	}
	manifest, err := json.Marshal(list)
	if err != nil {
		return err
	}
	tw := tar.NewWriter(w)
	if err := tw.WriteHeader(&tar.Header{Name: nameManifest, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(manifest))}); err != nil {
		return err
	}
	if _, err := tw.Write(manifest); err != nil {
		return err
	}
	err = f.each(func(h *tar.Header, r io.Reader) error {
		switch {
		case f.oci && !needed[h.Name], h.Name == nameManifest, h.Name == "repositories": // layers of docker save may be links to others
			return nil
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		_, err := io.Copy(tw, r)
		return err
	})
	return errors.Join(err, tw.Close())
}
