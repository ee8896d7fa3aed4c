package registry

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
)

const (
	// maxFeature is the largest Feature that is downloaded, also once it is decompressed.
	maxFeature = 32 << 20
	// featureTimeout limits each request for a Feature.
	featureTimeout = 2 * time.Minute
	featureLayer   = "application/vnd.devcontainers.layer.v1+tar"
)

// Feature downloads the Feature of a development container that a reference names. It returns
// the digest of its manifest and its files as a tar without compression. An error is a *Refusal
// unless ctx ended or ref is no reference.
func (c *Client) Feature(ctx context.Context, ref string, login Login) (digest string, archive []byte, err error) {
	slow := http.Client{}
	if c.HTTP != nil {
		slow = *c.HTTP
	}
	slow.Timeout = featureTimeout
	repo, name, err := (&Client{Plain: c.Plain, HTTP: &slow}).repository(ref, login)
	if err != nil {
		return "", nil, err
	}
	refused := func(err error) (string, []byte, error) {
		err = refusal(ctx, ref, login, err)
		if r := new(Refusal); errors.As(err, &r) {
			r.feature = true
		}
		return "", nil, err
	}
	about, text, err := manifest(ctx, repo, name)
	if err != nil {
		return refused(err)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return refused(errNoRegistry)
	}
	at := slices.IndexFunc(m.Layers, func(d ocispec.Descriptor) bool { return strings.HasPrefix(d.MediaType, featureLayer) })
	if at < 0 {
		return refused(errNoFeature)
	}
	if m.Layers[at].Size > maxFeature {
		return refused(errTooLarge)
	}
	archive, err = content.FetchAll(ctx, repo.Blobs(), m.Layers[at])
	if err == nil && bytes.HasPrefix(archive, []byte{0x1f, 0x8b}) { // gzip: the media type does not say
		archive, err = decompress(archive)
	}
	if err != nil {
		return refused(err)
	}
	return about.Digest.String(), archive, nil
}

var (
	errNoFeature = errors.New("not a Feature")
	errTooLarge  = errors.New("larger than the limit")
)

func decompress(archive []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return nil, errNoRegistry
	}
	out, err := io.ReadAll(io.LimitReader(r, maxFeature+1))
	switch {
	case err != nil:
		return nil, errNoRegistry
	case len(out) > maxFeature:
		return nil, errTooLarge
	}
	return out, nil
}
