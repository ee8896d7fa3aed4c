package registry_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"codehub/internal/runtime/registry"
	"codehub/internal/testing/dockertest"
)

func TestFeature(t *testing.T) {
	t.Parallel()
	host := dockertest.Distribution(t)
	files := dockertest.Tar(t, map[string]string{"install.sh": "echo it", "devcontainer-feature.json": "{}"})
	plain := dockertest.PushFeature(t, host+"/features/plain:1", files)
	latest := dockertest.PushFeature(t, host+"/features/plain:latest", dockertest.Tar(t, map[string]string{"install.sh": "echo latest"}))
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	if _, err := w.Write(files); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	compressed := dockertest.PushFeature(t, host+"/features/gzip:1.2.3", zipped.Bytes())
	zipped.Reset()
	w = gzip.NewWriter(&zipped)
	if _, err := w.Write(make([]byte, 40<<20)); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	bomb := dockertest.PushFeature(t, host+"/features/bomb:1", zipped.Bytes())

	c := registry.Client{}
	for ref, want := range map[string]struct{ digest, script string }{
		host + "/features/plain:1":          {plain, "echo it"},
		host + "/features/plain":            {latest, "echo latest"},
		host + "/features/plain@" + plain:   {plain, "echo it"},
		host + "/features/gzip:1.2.3":       {compressed, "echo it"},
		host + "/features/plain:1@" + plain: {plain, "echo it"},
	} {
		sum, archive, err := c.Feature(t.Context(), ref, registry.Login{})
		if err != nil || sum != want.digest || dockertest.FileIn(t, bytes.NewReader(archive), "install.sh") != want.script {
			t.Errorf("%s: %s, %d bytes, %v", ref, sum, len(archive), err)
		}
	}
	for ref, want := range map[string]struct {
		kind registry.Kind
		says string
	}{
		host + "/features/none:1":       {registry.Missing, "no such Feature"},
		host + "/features/bomb@" + bomb: {registry.TooLarge, "larger than 32 MiB"},
		"10.1.2.3/features/none:1":      {registry.Private, "CODEHUB_PRIVATE_REGISTRIES"},
	} {
		asked := &c
		if want.kind == registry.Private {
			asked = &registry.Client{HTTP: registry.Public(nil)}
		}
		_, _, err := asked.Feature(t.Context(), ref, registry.Login{})
		if registry.KindOf(err) != want.kind || !strings.Contains(err.Error(), want.says) {
			t.Errorf("%s: %v", ref, err)
		}
	}
}

// Users choose the server by the name of a Feature, so it may send anything.
func TestHostileFeatures(t *testing.T) {
	t.Parallel()
	files := dockertest.Tar(t, map[string]string{"install.sh": "secret"})
	layer := ocispec.Descriptor{MediaType: "application/vnd.devcontainers.layer.v1+tar", Digest: digest.FromBytes(files), Size: int64(len(files))}
	other, large, image := layer, layer, layer
	other.Digest, large.Size, image.MediaType = digest.FromString("another"), 1<<40, ocispec.MediaTypeImageLayer
	for name, test := range map[string]struct {
		layer ocispec.Descriptor
		want  registry.Kind
	}{"another digest": {other, registry.Other}, "too large": {large, registry.TooLarge}, "an image": {image, registry.NoFeature}} {
		text, err := json.Marshal(ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Layers: []ocispec.Descriptor{test.layer}})
		if err != nil {
			t.Fatal(err)
		}
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/blobs/") {
				_, _ = w.Write(files)
				return
			}
			w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
			_, _ = w.Write(text)
		}))
		t.Cleanup(srv.Close)
		_, archive, err := (&registry.Client{}).Feature(t.Context(), strings.TrimPrefix(srv.URL, "http://")+"/a:1", registry.Login{})
		if err == nil || archive != nil || registry.KindOf(err) != test.want || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
