package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/moby/client"

	"codehub/api"
	"codehub/internal/dockertest"
)

// Docker is restarted, by SIGTERM and by SIGKILL, while one home is created and
// another one restored: both operations complete, and no workspace is in ERROR.
func TestDockerRestartDuringOperations(t *testing.T) {
	t.Parallel()
	e := dockertest.Start(t, dockertest.Options{Image: env.testImage, Cleanup: cleanup})
	bucket := folderBucket(t)
	f := startWithFailpoints(t, append(bucket.settings, "DOCKER_HOST="+e.Host)...)
	release := make(chan struct{})
	registry := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select { // this registry never responds
		case <-release:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(registry.Close)
	t.Cleanup(func() { close(release) })
	standby := "STANDBY"
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		name := fmt.Sprint("by ", int(signal))
		restored := f.createStandby(name + " restored")
		f.setDesired(restored, "ARCHIVED")
		f.awaitPhase(restored, "ARCHIVED")
		held := "restore.volume-created@" + restored
		f.arm(held, "hold")
		f.setDesired(restored, "STANDBY")
		f.awaitHeld(held)

		image := strings.TrimPrefix(registry.URL, "http://") + "/slow:" + strconv.Itoa(int(signal))
		made := f.create(api.CreateWorkspace{Name: name + " made", DesiredState: &standby, ImageRef: image})
		f.await(made, "waiting for its image", func(w api.Workspace) bool {
			return w.Progress != nil && w.Progress.Step == "pulling"
		})

		// The attempt after the restart, which may come at once, finds the image.
		if _, err := e.API.ImageTag(t.Context(), client.ImageTagOptions{Source: env.testImage, Target: image}); err != nil {
			t.Fatal(err)
		}
		e.Restart(signal)
		f.disarm(held)
		for _, id := range []string{restored, made} {
			w := f.await(id, "in STANDBY", func(w api.Workspace) bool {
				if w.Phase == "ERROR" {
					t.Fatalf("%s: %s: %s", w.Name, str(w.ErrorReason), str(w.ErrorMessage))
				}
				return w.Phase == "STANDBY" && w.Operation == "NONE"
			})
			if w.ErrorCount != 0 {
				t.Errorf("%s: %d failures, %s", w.Name, w.ErrorCount, str(w.ErrorMessage))
			}
		}
	}
}
