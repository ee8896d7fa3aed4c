package e2e

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/moby/moby/client"

	"codehub/api"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace/imageref"
)

// A server whose default image is named by its digest, on a machine without a registry: the page says
// that it is missing and how to bring it, and once it is loaded from a release's file, workspaces run.
func TestImageFromFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "image.oci.tar")
	digest, err := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", `source ../../../scripts/oci.sh; oci_layers=$1; archived_image "$2" codehub/test:0.1.0 "$3"`,
		"-", t.TempDir(), file, env.testImage).Output()
	if err != nil {
		t.Fatal(err)
	}
	ref := "127.0.0.1:1/" + uuid.NewString() + "@" + strings.TrimSpace(string(digest))
	cleanup(t, func() {
		_, _ = env.docker.ImageRemove(context.Background(), imageref.Loaded(ref), client.ImageRemoveOptions{})
	})
	s := startQuick(t, "CODEHUB_DEFAULT_IMAGE="+ref, "CODEHUB_DELETE_GRACE=0s", "COORDINATOR_IDLE_INTERVAL=1s")
	cookie := s.loginCookie("admin")
	list := func() string {
		_, page := s.ask("GET", "/", "", "Cookie", cookie)
		return page
	}
	harness.Eventually(t, "the page says that the image is missing", func() bool {
		page := list()
		return strings.Contains(page, "An image is missing") && strings.Contains(page, "codehub images load FILE")
	})
	id := s.create(api.CreateWorkspace{Name: "early"})
	w := s.awaitPhase(id, "ERROR")
	if w.ErrorMessage == nil || !strings.Contains(*w.ErrorMessage, "could not download the image "+ref) {
		t.Errorf("the error of a start: %+v", w)
	}

	load := exec.CommandContext(t.Context(), env.binary, "images", "load", file)
	load.Env = append(load.Environ(), "CODEHUB_DEFAULT_IMAGE="+ref, "CODEHUB_DATA_DIR="+t.TempDir())
	if out, err := load.CombinedOutput(); err != nil || !strings.Contains(string(out), "Its digest matches.") {
		t.Fatalf("%v\n%s", err, out)
	}
	harness.Eventually(t, "the page says nothing of images", func() bool { return !strings.Contains(list(), "An image is missing") })
	other := s.create(api.CreateWorkspace{Name: "later"})
	if w := s.awaitPhase(other, "RUNNING"); w.ImageDigest == nil || *w.ImageDigest != imageref.Digest(ref) {
		t.Errorf("the workspace's image: %+v", w)
	}
	s.remove(other)
	s.remove(id)
}
