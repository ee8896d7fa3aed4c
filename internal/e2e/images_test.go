package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"codehub/api"
	codehub "codehub/client"
	"codehub/internal/dockertest"
	"codehub/internal/harness"
)

// The journey of an image from a private registry: what is not allowed is refused, the
// server logs in, the workspace keeps the image that it was started with, and its owner
// updates it.
func TestImageOfPrivateRegistry(t *testing.T) {
	t.Parallel()
	saved, err := exec.CommandContext(t.Context(), "docker", "save", env.testImage).Output()
	if err != nil {
		t.Fatal(err)
	}
	registry := dockertest.NewRegistry(t)
	registry.SetLogin("codehub", "hunter2")
	ref, first := registry.AddSaved("team/tool", saved, "first")
	file := filepath.Join(scratch(t), "auth.json")
	login := func(password string) {
		t.Helper()
		text := fmt.Sprintf(`{"auths": {%q: {"username": "codehub", "password": %q}}}`, registry.Host(), password)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	login("outdated")
	s := startQuick(t, "CODEHUB_ALLOWED_IMAGES=python:3.*,"+registry.Host()+"/team/*", "CODEHUB_REGISTRY_AUTH_FILE="+file,
		"CODEHUB_IMAGE_CHECK_INTERVAL=500ms", "CODEHUB_DELETE_GRACE=0s")
	images := map[string]bool{}
	cleanup(t, func() {
		for id := range images {
			_, _ = s.docker.ImageRemove(context.Background(), id, client.ImageRemoveOptions{Force: true})
		}
	})
	for _, image := range []string{"golang", "PYTHON", "docker.io/team/tool", registry.Host() + "/other/tool"} {
		_, err := s.api.Create(t.Context(), api.CreateWorkspace{Name: "no", ImageRef: image})
		var e *codehub.Error
		if !errors.As(err, &e) || image != "PYTHON" && (e.Status != http.StatusForbidden || e.Code != "image_not_allowed" || !strings.Contains(e.Message, "/team/*")) {
			t.Errorf("%s: %v", image, err)
		}
	}

	id := s.create(api.CreateWorkspace{Name: "one", ImageRef: ref})
	w := s.await(id, "ERROR", func(w api.Workspace) bool { return w.Phase == "ERROR" })
	if str(w.ErrorReason) != "ImagePullFailed" || !strings.Contains(str(w.ErrorMessage), registry.Host()) || !strings.Contains(str(w.ErrorMessage), "CODEHUB_REGISTRY_AUTH_FILE") {
		t.Errorf("%s: %s", str(w.ErrorReason), str(w.ErrorMessage))
	}
	login("hunter2")
	s.recover(id, api.Recover{Action: "afresh"})
	w = s.awaitPhase(id, "RUNNING")
	w = s.await(id, "pinned", func(w api.Workspace) bool { return w.ImageID != nil })
	images[*w.ImageID] = true
	if str(w.ImageDigest) != first || w.ImageUpdateAvailable || w.ImageNotice != nil {
		t.Errorf("%+v", w)
	}

	_, second := registry.AddSaved("team/tool", saved, "second")
	s.await(id, "out of date", func(w api.Workspace) bool { return w.ImageUpdateAvailable })
	s.setDesired(id, "STANDBY")
	s.awaitPhase(id, "STANDBY")
	// A prune takes the image away: it comes back by its digest.
	if _, err := s.docker.ImageRemove(t.Context(), *w.ImageID, client.ImageRemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	s.setDesired(id, "RUNNING")
	s.awaitPhase(id, "RUNNING")
	if got, err := s.api.Get(t.Context(), id); err != nil || str(got.ImageDigest) != first || str(got.ImageID) != *w.ImageID || got.ImageNotice != nil {
		t.Errorf("after a prune: %+v (%v)", got, err)
	}
	if w, err = s.api.UpdateImage(t.Context(), id); err != nil || !w.ImageUpdateRequested || str(w.ImageDigest) != first {
		t.Fatalf("%+v (%v)", w, err)
	}
	if _, err := s.api.Restart(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	w = s.await(id, "updated", func(w api.Workspace) bool { return w.Phase == "RUNNING" && str(w.ImageDigest) == second })
	images[*w.ImageID] = true
	if w.ImageUpdateRequested || w.ImageUpdateAvailable {
		t.Errorf("%+v", w)
	}
	if strings.Contains(s.Log(), "hunter2") {
		t.Error("the log has the password")
	}
	harness.Eventually(t, "the registry is asked with the login", func() bool { return len(registry.Logins()) > 0 })
	s.remove(id)
}
