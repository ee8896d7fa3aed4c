package image

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/moby/moby/client"
	"github.com/opencontainers/go-digest"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/imagefile"
	"codehub/internal/testing/dockertest"
	"codehub/internal/workspace/imageref"
)

// An image from a file is the one that a name with its digest names, without a registry.
func TestLoadedImageHasDigest(t *testing.T) {
	t.Parallel()
	r := newImages(t, engine.Config{Log: slog.New(slog.DiscardHandler)}, Config{})
	path, digests := dockertest.OCIArchive(t, dockertest.Archived{Content: uuid.NewString()})
	f, err := imagefile.Open(path)
	check(t, err)
	ref := "registry.invalid/test/" + uuid.NewString() + "@" + digests[0].String()
	name := imageref.Loaded(ref)
	t.Cleanup(func() {
		_, _ = r.API.ImageRemove(context.Background(), name, client.ImageRemoveOptions{Force: true})
	})
	if got, err := r.Local(t.Context(), ref); err != nil || got != (Local{}) {
		t.Fatalf("before: %+v, %v", got, err)
	}
	var sent int64
	check(t, r.Load(t.Context(), f, []imagefile.Tagged{{Image: f.Images[0], Name: name}}, func(n int64) { sent = n }))
	if sent < 1024 {
		t.Errorf("progress ends at %d bytes", sent)
	}
	want := runtime.Image{ID: f.Images[0].ID.String(), Digest: digests[0].String()}
	if got, err := r.Here(t.Context(), ref); err != nil || got != want {
		t.Errorf("here: %+v, %v; want %+v", got, err, want)
	}
	if got, err := r.Newest(t.Context(), ref, true); err != nil || got != want {
		t.Errorf("newest: %+v, %v; want %+v", got, err, want)
	}
	chosen, err := r.Choose(t.Context(), ref, "ann", runtime.ImageChoice{}, nil)
	if err != nil || chosen.ID != want.ID || chosen.digest != want.Digest {
		t.Errorf("chosen: %+v, %v", chosen, err)
	}
	other := strings.Replace(ref, "sha256:", "sha256:00", 1)[:len(ref)]
	if got, err := r.Here(t.Context(), other); err != nil || got.ID != "" {
		t.Errorf("another digest: %+v, %v", got, err)
	}
}

// Without a registry, the error says how the image comes to the machine; that of a user's image does
// not.
func TestUnreachableDefaultImage(t *testing.T) {
	t.Parallel()
	ref := "127.0.0.1:1/test@" + digest.FromString("none").String()
	r := newImages(t, engine.Config{Log: slog.New(slog.DiscardHandler)}, Config{DefaultImage: ref})
	for image, want := range map[string]bool{ref: true, "127.0.0.1:1/other:1": false} {
		var refused *runtime.PullError
		err := r.pull(t.Context(), image, "ann", nil)
		if !errors.As(err, &refused) || strings.HasPrefix(refused.Message, fmt.Sprintf(runtime.MsgNotPulled, image)) != want {
			t.Errorf("%s: %v", image, err)
		}
	}
}

// An image that was built from a devcontainer.json is in no registry, whatever its name has.
func TestBuiltImageIsNotPulled(t *testing.T) {
	t.Parallel()
	r := newImages(t, engine.Config{Log: slog.New(slog.DiscardHandler)}, Config{})
	for _, ref := range []string{imageref.BuiltPrefix + "ann:1", imageref.BuiltPrefix + "ann@" + digest.FromString("none").String()} {
		_, err := r.Choose(t.Context(), ref, "ann", runtime.ImageChoice{Pull: true}, nil)
		var refused *runtime.PullError
		if !errors.As(err, &refused) || refused.Message != fmt.Sprintf(runtime.MsgBuiltGone, ref) {
			t.Errorf("%s: %v", ref, err)
		}
		if newest, err := r.Newest(t.Context(), ref, true); err != nil || newest != (runtime.Image{}) {
			t.Errorf("%s: %+v, %v", ref, newest, err)
		}
	}
}
