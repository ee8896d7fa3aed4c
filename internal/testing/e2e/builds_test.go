package e2e

import (
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/testing/buildtest"
	"codehub/internal/testing/harness"
)

// The server serves while it makes the images. A workspace that is created meanwhile waits for the
// slim image and starts by itself; the default image, which is made again after a failure, is then
// offered to it.
func TestServesWhileImagesAreBuilt(t *testing.T) {
	t.Parallel()
	slim, full := buildtest.Ref(t, "slim"), buildtest.Ref(t, "full")
	program := buildtest.New(t,
		buildtest.Image{Name: "slim", Ref: slim, From: env.testImage},
		buildtest.Image{Name: "full", Ref: full, From: buildtest.Variant(t, env.testImage)})
	s := startQuick(t, "CODEHUB_BUILD_IMAGES="+program.Path, "CODEHUB_DEFAULT_IMAGE="+full, "CODEHUB_DELETE_GRACE=0s")
	id := s.create(api.CreateWorkspace{Name: "one"})
	s.await(id, "waiting for the slim image", func(w api.Workspace) bool {
		return w.Progress != nil && w.Progress.Step == "waiting-build" && w.Progress.Detail == slim+", step 1 of 2: fetch the parts of slim"
	})
	program.Fail("slim")
	image := func(name string) api.ImageBuild {
		t.Helper()
		status, err := s.api.AdminStatus(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range status.Images {
			if i.Name == name {
				return i
			}
		}
		t.Fatalf("the images are %+v", status.Images)
		return api.ImageBuild{}
	}
	harness.Eventually(t, "the slim image fails", func() bool { return image("slim").State == "failed" })
	program.Fail("full")
	w := s.await(id, "waiting for a retry", func(w api.Workspace) bool {
		return w.Progress != nil && w.Progress.Step == "build-failed"
	})
	if w.ErrorReason != nil || w.Phase == "ERROR" {
		t.Errorf("%+v", w)
	}
	if _, err := s.api.RetryImage(t.Context(), "slim"); err != nil {
		t.Fatal(err)
	}
	program.Finish("slim")
	harness.Eventually(t, "the slim image is ready", func() bool { return image("slim").State == "ready" })
	ready := time.Now()
	w = s.awaitPhase(id, "RUNNING")
	t.Logf("it ran %s after the image was ready", time.Since(ready).Round(10*time.Millisecond))
	w = s.await(id, "pinned", func(w api.Workspace) bool { return w.ImageID != nil })
	if str(w.ImageNotice) != "interim" || w.ImageRef != full || w.ImageUpdateAvailable {
		t.Errorf("%+v", w)
	}
	first := *w.ImageID

	program.Finish("full")
	if _, err := s.api.RetryImage(t.Context(), "full"); err != nil {
		t.Fatal(err)
	}
	s.await(id, "the default image is offered", func(w api.Workspace) bool { return w.ImageUpdateAvailable })
	if _, err := s.api.Do(t.Context(), id, "update-image"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.api.Restart(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	s.await(id, "updated", func(w api.Workspace) bool {
		return w.Phase == "RUNNING" && w.ImageID != nil && *w.ImageID != first && w.ImageNotice == nil && !w.ImageUpdateAvailable
	})
	s.remove(id)
}
