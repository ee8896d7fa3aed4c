package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/api"
	"codehub/internal/harness"
)

// runHomeContainer runs a command in a container that mounts a workspace's home
// at /h, as a user might do. remove removes the container.
func (s *server) runHomeContainer(id, name, command string, readOnly bool) (remove func()) {
	s.Helper()
	m := mount.Mount{Type: mount.TypeVolume, Source: "ws-" + id + "-home", Target: "/h", ReadOnly: readOnly}
	if local := filepath.Join(s.home, "homes", id, "home"); s.homeFolder(id) == local {
		m.Type, m.Source = mount.TypeBind, local
	}
	made, err := s.docker.ContainerCreate(s.Context(), client.ContainerCreateOptions{
		Name:       name,
		Config:     &container.Config{Image: env.workspaceImage, Entrypoint: []string{"sh", "-c", command}, User: "0:0"},
		HostConfig: &container.HostConfig{NetworkMode: "none", Mounts: []mount.Mount{m}},
	})
	if err == nil {
		_, err = s.docker.ContainerStart(s.Context(), made.ID, client.ContainerStartOptions{})
	}
	if err != nil {
		s.Fatal(err)
	}
	remove = sync.OnceFunc(func() {
		_, err := s.docker.ContainerRemove(context.Background(), made.ID, client.ContainerRemoveOptions{Force: true})
		if err != nil {
			s.Error(err)
		}
	})
	s.Cleanup(remove)
	return remove
}

// runInHome runs a command in such a container and waits for its end.
func (s *server) runInHome(id, command string) {
	s.Helper()
	name := fmt.Sprintf("writer-%s", id)
	remove := s.runHomeContainer(id, name, command, false)
	wait := s.docker.ContainerWait(s.Context(), name, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	select {
	case end := <-wait.Result:
		if end.StatusCode != 0 {
			s.Errorf("%s: exit code %d", command, end.StatusCode)
		}
	case err := <-wait.Error:
		s.Fatal(err)
	}
	remove()
}

// awaitInUse waits until the workspace's progress names the container that it
// waits for.
func (s *server) awaitInUse(id, name string) api.Workspace {
	s.Helper()
	return s.await(id, "waiting for "+name, func(w api.Workspace) bool {
		return w.Progress != nil && w.Progress.Step == "waiting-in-use" && w.Progress.Detail == name
	})
}

// A container that reads a home, as docs/troubleshooting.md describes, delays its
// archive until the container ends. The progress says so, and the workspace can
// be used.
func TestArchiveWaitsForReader(t *testing.T) {
	t.Parallel()
	for _, storage := range []string{"docker-volume", "local-dir"} {
		t.Run(storage, func(t *testing.T) {
			t.Parallel()
			b, rng := folderBucket(t), newRand(t, 12)
			s := startQuick(t, append(b.settings, "CODEHUB_DELETE_GRACE=0s", "CODEHUB_STORAGE="+storage)...)
			id, home := s.createFilled("one", rng)
			reader := "reader-" + id
			remove := s.runHomeContainer(id, reader, "exec tail -f /dev/null", true)
			s.setDesired(id, "ARCHIVED")
			s.awaitInUse(id, reader)
			s.setDesired(id, "STANDBY")
			s.awaitPhase(id, "STANDBY")

			s.setDesired(id, "ARCHIVED")
			w := s.awaitInUse(id, reader)
			if w.Operation != "ARCHIVING" || w.ErrorReason != nil {
				t.Errorf("operation %s, error %q %q, want ARCHIVING without an error", w.Operation, str(w.ErrorReason), str(w.ErrorMessage))
			}
			remove()
			s.awaitArchived(b, id, home)
			s.setDesired(id, "STANDBY")
			s.awaitRestored(id, home)

			// A deletion waits as well.
			remove = s.runHomeContainer(id, reader, "exec tail -f /dev/null", true)
			if _, err := s.api.Delete(s.Context(), id, true); err != nil {
				t.Fatal(err)
			}
			s.awaitInUse(id, reader)
			remove()
			s.awaitRemoved(id, "")
		})
	}
}

// Files that a container writes after the home was packed are not lost, whether
// it ends before the archive is recorded or still runs then.
func TestWrittenAfterPackingIsNotLost(t *testing.T) {
	t.Parallel()
	for _, storage := range []string{"docker-volume", "local-dir"} {
		t.Run(storage, func(t *testing.T) {
			t.Parallel()
			b, rng := folderBucket(t), newRand(t, 13)
			f := startWithFailpoints(t, append(b.settings, "CODEHUB_DELETE_GRACE=0s", "CODEHUB_STORAGE="+storage)...)
			for _, at := range []string{"archive.job-done", "archive.verified"} {
				id, _ := f.createFilled(at, rng)
				point := at + "@" + id
				f.arm(point, "hold")
				f.setDesired(id, "ARCHIVED")
				f.awaitHeld(point)
				f.runInHome(id, "echo came and went > /h/work/late")
				f.disarm()
				f.awaitPhase(id, "ARCHIVED")
				f.setDesired(id, "STANDBY")
				f.awaitPhase(id, "STANDBY")
				f.expectLateFile(id, "came and went\n")

				f.arm(point, "hold")
				f.setDesired(id, "ARCHIVED")
				f.awaitHeld(point)
				writer := "writer-" + id
				remove := f.runLateWriter(id, writer, "came\n")
				f.disarm()
				f.awaitInUse(id, writer)
				remove()
				f.awaitPhase(id, "ARCHIVED")
				f.setDesired(id, "STANDBY")
				f.awaitPhase(id, "STANDBY")
				f.expectLateFile(id, "came\n")
				f.discard(id)
			}

			// A container mounts the home after the archive was recorded and
			// before the home is removed. The home stays until the container
			// ends, and is packed again.
			id, _ := f.createFilled("late", rng)
			point, writer := "archive.stored@"+id, "writer-"+id
			f.arm(point, "hold")
			f.setDesired(id, "ARCHIVED")
			f.awaitHeld(point)
			remove := f.runLateWriter(id, writer, "came late\n")
			f.disarm()
			f.awaitInUse(id, writer)
			remove()
			f.awaitPhase(id, "ARCHIVED")
			f.setDesired(id, "STANDBY")
			f.awaitPhase(id, "STANDBY")
			f.expectLateFile(id, "came late\n")
			f.discard(id)
			if log := f.Log(); strings.Contains(log, "operation failed") {
				t.Error("the server logged a failed operation")
			}
		})
	}
}

// runLateWriter runs a container that writes the late file and keeps the home in
// use. It returns once the file is written: Docker reports a container as started
// before its command has run.
func (f *failpointServer) runLateWriter(id, name, content string) (remove func()) {
	f.Helper()
	command := fmt.Sprintf("printf %q > /h/work/late && exec tail -f /dev/null", content)
	remove = f.runHomeContainer(id, name, command, false)
	harness.Eventually(f.TB, "the late file of "+name, func() bool {
		got, err := os.ReadFile(filepath.Join(f.homeFolder(id), "work", "late"))
		return err == nil && string(got) == content
	})
	return remove
}

// expectLateFile checks the content of the file that was written after packing.
func (f *failpointServer) expectLateFile(id, want string) {
	f.Helper()
	got, err := os.ReadFile(filepath.Join(f.homeFolder(id), "work", "late"))
	if err != nil || string(got) != want {
		f.Errorf("the home holds %q (%v), want %q", got, err, want)
	}
}
