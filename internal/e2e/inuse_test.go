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
)

// stranger runs a command in a container of its own that has a workspace's home
// mounted at /h, as people do to look at it. leave removes the container.
func (s *server) stranger(id, name, command string, readOnly bool) (leave func()) {
	s.Helper()
	m := mount.Mount{Type: mount.TypeVolume, Source: "ws-" + id + "-home", Target: "/h", ReadOnly: readOnly}
	if local := filepath.Join(s.home, "homes", id, "home"); s.folder(id) == local {
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
	leave = sync.OnceFunc(func() {
		_, err := s.docker.ContainerRemove(context.Background(), made.ID, client.ContainerRemoveOptions{Force: true})
		if err != nil {
			s.Error(err)
		}
	})
	s.Cleanup(leave)
	return leave
}

// ran has a stranger's command come to its end.
func (s *server) ran(id, command string) {
	s.Helper()
	name := fmt.Sprintf("writer-%s", id)
	leave := s.stranger(id, name, command, false)
	wait := s.docker.ContainerWait(s.Context(), name, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	select {
	case end := <-wait.Result:
		if end.StatusCode != 0 {
			s.Errorf("%s: code %d", command, end.StatusCode)
		}
	case err := <-wait.Error:
		s.Fatal(err)
	}
	leave()
}

// awaitInUse waits until a workspace says that it waits for the container.
func (s *server) awaitInUse(id, name string) api.Workspace {
	s.Helper()
	return s.await(id, "waiting for "+name, func(w api.Workspace) bool {
		return w.Progress != nil && w.Progress.Step == "waiting-in-use" && w.Progress.Detail == name
	})
}

// A container that reads a home, as the operations page suggests, holds up its
// archive for as long as it is there; the workspace says so, and can be used.
func TestArchiveWaitsForReader(t *testing.T) {
	t.Parallel()
	for _, storage := range []string{"docker-volume", "local-dir"} {
		t.Run(storage, func(t *testing.T) {
			t.Parallel()
			b, rng := folderBucket(t), seeded(t, 12)
			s := startQuick(t, append(b.settings, "CODEHUB_DELETE_GRACE=0s", "CODEHUB_STORAGE="+storage)...)
			id, home := s.filled("one", rng)
			reader := "reader-" + id
			leave := s.stranger(id, reader, "exec tail -f /dev/null", true)
			s.want(id, "ARCHIVED")
			s.awaitInUse(id, reader)
			s.want(id, "STANDBY")
			s.awaitPhase(id, "STANDBY")

			s.want(id, "ARCHIVED")
			w := s.awaitInUse(id, reader)
			if w.Operation != "ARCHIVING" || w.ErrorReason != nil {
				t.Errorf("%s, %v %v", w.Operation, str(w.ErrorReason), str(w.ErrorMessage))
			}
			leave()
			s.archived(b, id, home)
			s.want(id, "STANDBY")
			s.restored(id, home)

			// A deletion waits as well.
			leave = s.stranger(id, reader, "exec tail -f /dev/null", true)
			if _, err := s.api.Delete(s.Context(), id, true); err != nil {
				t.Fatal(err)
			}
			s.awaitInUse(id, reader)
			leave()
			s.discarded(id, "")
		})
	}
}

// What a container writes after the home was packed is not lost: whether it has
// come and gone before the archive counts, or is still there.
func TestWrittenAfterPackingIsNotLost(t *testing.T) {
	t.Parallel()
	for _, storage := range []string{"docker-volume", "local-dir"} {
		t.Run(storage, func(t *testing.T) {
			t.Parallel()
			b, rng := folderBucket(t), seeded(t, 13)
			f := startFailing(t, append(b.settings, "CODEHUB_DELETE_GRACE=0s", "CODEHUB_STORAGE="+storage)...)
			for _, at := range []string{"archive.job-done", "archive.verified"} {
				id, _ := f.filled(at, rng)
				ask := at + "@" + id
				f.arm(ask, "hold")
				f.want(id, "ARCHIVED")
				f.held(ask)
				f.ran(id, "echo came and went > /h/work/late")
				f.disarm()
				f.awaitPhase(id, "ARCHIVED")
				f.want(id, "STANDBY")
				f.awaitPhase(id, "STANDBY")
				f.holdsLate(id, "came and went\n")

				f.arm(ask, "hold")
				f.want(id, "ARCHIVED")
				f.held(ask)
				writer := "writer-" + id
				leave := f.stranger(id, writer, "echo came > /h/work/late && exec tail -f /dev/null", false)
				f.disarm()
				f.awaitInUse(id, writer)
				leave()
				f.awaitPhase(id, "ARCHIVED")
				f.want(id, "STANDBY")
				f.awaitPhase(id, "STANDBY")
				f.holdsLate(id, "came\n")
				f.discard(id)
			}

			// A container that mounts the home after the archive was stored, and before
			// the home is removed: the home stays until it ends, and is packed again.
			id, _ := f.filled("late", rng)
			ask, writer := "archive.stored@"+id, "writer-"+id
			f.arm(ask, "hold")
			f.want(id, "ARCHIVED")
			f.held(ask)
			leave := f.stranger(id, writer, "echo came late > /h/work/late && exec tail -f /dev/null", false)
			f.disarm()
			f.awaitInUse(id, writer)
			leave()
			f.awaitPhase(id, "ARCHIVED")
			f.want(id, "STANDBY")
			f.awaitPhase(id, "STANDBY")
			f.holdsLate(id, "came late\n")
			f.discard(id)
			if log := f.Log(); strings.Contains(log, "operation failed") {
				t.Errorf("an operation has failed")
			}
		})
	}
}

// holdsLate checks what was written late.
func (f *failing) holdsLate(id, want string) {
	f.Helper()
	got, err := os.ReadFile(filepath.Join(f.folder(id), "work", "late"))
	if err != nil || string(got) != want {
		f.Errorf("the home holds %q (%v), want %q", got, err, want)
	}
}
