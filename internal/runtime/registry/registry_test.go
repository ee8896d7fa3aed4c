package registry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote"

	"codehub/internal/runtime/registry"
	"codehub/internal/testing/dockertest"
)

// The real registry: an image for two processors, and one of a single manifest.
func TestReadImages(t *testing.T) {
	t.Parallel()
	host := dockertest.Distribution(t)
	repo, err := remote.NewRepository(host + "/team/tool")
	if err != nil {
		t.Fatal(err)
	}
	repo.PlainHTTP = true
	push := func(kind string, v any, tag string) ocispec.Descriptor {
		t.Helper()
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		d := ocispec.Descriptor{MediaType: kind, Digest: digest.FromBytes(text), Size: int64(len(text))}
		if err := repo.Push(t.Context(), d, bytes.NewReader(text)); err != nil {
			t.Fatal(err)
		}
		if tag != "" {
			if err := repo.Tag(t.Context(), d, tag); err != nil {
				t.Fatal(err)
			}
		}
		return d
	}
	image := func(processor, tag string) ocispec.Descriptor {
		platform := ocispec.Platform{OS: "linux", Architecture: processor}
		config := push(ocispec.MediaTypeImageConfig, ocispec.Image{Platform: platform, Config: ocispec.ImageConfig{
			Env: []string{"FOR=" + processor}, Entrypoint: []string{"/tool"}, Cmd: []string{"serve"}, Labels: map[string]string{"codehub.ide": "included"},
		}}, "")
		m := push(ocispec.MediaTypeImageManifest, ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: config, Layers: []ocispec.Descriptor{}}, tag)
		m.Platform = &platform
		return m
	}
	arm := image("arm64", "arm")
	list := push(ocispec.MediaTypeImageIndex, ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{arm, image("amd64", "")},
	}, "latest")
	c := registry.Client{}
	for ref, want := range map[string]registry.Image{
		host + "/team/tool":                             {Digest: list.Digest.String(), Platforms: []string{"amd64", "arm64"}, Env: []string{"FOR=amd64"}},
		host + "/team/tool:arm":                         {Digest: arm.Digest.String(), Platforms: []string{"arm64"}, Env: []string{"FOR=arm64"}},
		host + "/team/tool:arm@" + list.Digest.String(): {Digest: list.Digest.String(), Platforms: []string{"amd64", "arm64"}, Env: []string{"FOR=amd64"}},
	} {
		if found, err := c.Resolve(t.Context(), ref, registry.Login{}); err != nil || found != want.Digest {
			t.Errorf("%s is %s (%v), want %s", ref, found, err, want.Digest)
		}
		got, err := c.Read(t.Context(), ref, registry.Login{})
		if err != nil || got.Digest != want.Digest || !slices.Equal(got.Platforms, want.Platforms) || !slices.Equal(got.Env, want.Env) ||
			!slices.Equal(append(got.Entrypoint, got.Cmd...), []string{"/tool", "serve"}) || got.Labels["codehub.ide"] != "included" {
			t.Errorf("%s: %+v (%v), want %+v", ref, got, err, want)
		}
	}
	for _, ref := range []string{host + "/team/tool:none", host + "/team/none:1", host + "/team/tool@sha256:" + strings.Repeat("0", 64)} {
		if _, err := c.Resolve(t.Context(), ref, registry.Login{}); registry.KindOf(err) != registry.Missing {
			t.Errorf("%s: %v", ref, err)
		}
		if _, err := c.Read(t.Context(), ref, registry.Login{}); registry.KindOf(err) != registry.Missing {
			t.Errorf("read %s: %v", ref, err)
		}
	}
}

func TestLogins(t *testing.T) {
	t.Parallel()
	r, foreign := dockertest.NewRegistry(t), dockertest.NewRegistry(t)
	r.SetLogin("ann", "hunter2")
	ref, other := r.Add("private", dockertest.Layers(1, 10, 0)), foreign.Add("open", dockertest.Layers(1, 10, 0))
	c := registry.Client{}
	for _, test := range []struct {
		login registry.Login
		want  registry.Kind
	}{
		{registry.Login{}, registry.LoginNeeded},
		{registry.Login{Username: "ann", Password: "hunter3"}, registry.LoginRefused},
	} {
		_, err := c.Resolve(t.Context(), ref, test.login)
		if registry.KindOf(err) != test.want || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%+v: %v", test.login, err)
		}
	}
	if digest, err := c.Resolve(t.Context(), ref, registry.Login{Username: "ann", Password: "hunter2"}); err != nil || !strings.HasPrefix(digest, "sha256:") {
		t.Errorf("%s, %v", digest, err)
	}
	if _, err := c.Resolve(t.Context(), other, registry.Login{Username: "ann", Password: "hunter2"}); err != nil || len(foreign.Logins()) > 0 {
		t.Errorf("a registry that wants no login: %v, it got %q", err, foreign.Logins())
	}
}

// Servers that are no registries: users choose them by the names of images.
func TestHostileServers(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := l.Addr().String()
	l.Close()
	endless := strings.Repeat("secret ", 4<<20)
	asked := 0
	inner := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	t.Cleanup(inner.Close)
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		want    registry.Kind
	}{
		"text":    {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("secret")) }, registry.Other},
		"endless": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(endless)) }, registry.Other},
		"broken":  {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "secret", http.StatusBadGateway) }, registry.Unreachable},
		"realm": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+strings.Replace(inner.URL, "127.0.0.1", "localhost", 1)+`/secret"`)
			w.WriteHeader(http.StatusUnauthorized)
		}, registry.Other},
	} {
		srv := httptest.NewServer(test.handler)
		t.Cleanup(srv.Close)
		_, err := (&registry.Client{}).Read(t.Context(), strings.TrimPrefix(srv.URL, "http://")+"/a:1", registry.Login{})
		if err == nil || registry.KindOf(err) != test.want || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if asked > 0 {
		t.Error("a registry made this server ask another one on this machine")
	}
	if _, err := (&registry.Client{}).Resolve(t.Context(), closed+"/a:1", registry.Login{}); registry.KindOf(err) != registry.Unreachable {
		t.Errorf("a closed port: %v", err)
	}
	if _, err := (&registry.Client{}).Resolve(t.Context(), "Not A Reference", registry.Login{}); err == nil || !strings.Contains(err.Error(), "reference") {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (&registry.Client{}).Resolve(ctx, closed+"/a:1", registry.Login{}); !errors.Is(err, context.Canceled) {
		t.Errorf("after a cancellation: %v", err)
	}
}
