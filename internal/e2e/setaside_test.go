package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"codehub/api"
	"codehub/internal/archive/archivetest"
)

// After a power cut a volume that Docker had removed can come back without its
// labels. It blocks the home whose name it has; set aside, it is kept with
// everything in it, and the workspace continues.
func TestSetAsideVolumeWithoutLabels(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ operation, storage string }{
		{"PROVISIONING", "docker-volume"}, {"RESTORING", "docker-volume"}, {"RESTORING", "local-dir"},
	} {
		t.Run(c.operation+" "+c.storage, func(t *testing.T) {
			t.Parallel()
			b, rng := folderBucket(t), newRand(t, 8)
			s := startQuick(t, append(b.settings, "CODEHUB_DELETE_GRACE=0s", "CODEHUB_STORAGE="+c.storage)...)
			id, home := s.createFilled("one", rng)
			var blocking homeState
			if c.operation == "RESTORING" {
				s.setDesired(id, "ARCHIVED")
				s.awaitArchived(b, id, home)
				blocking = s.blockHome(id, c.storage)
				s.setDesired(id, "STANDBY")
			} else {
				s.loseVolume(id, c.storage)
				blocking = s.blockHome(id, c.storage)
				s.await(id, "ERROR", func(w api.Workspace) bool { return w.Phase == "ERROR" })
				s.recover(id, api.Recover{Action: api.RecoverEmpty, Confirm: "one"})
			}
			w := s.await(id, "ERROR with RetryExceeded", func(w api.Workspace) bool { return w.Phase == "ERROR" && str(w.ErrorReason) == "RetryExceeded" })
			if !strings.Contains(str(w.ErrorMessage), "set the volume aside") {
				t.Errorf("the error does not suggest to set the volume aside: %s", str(w.ErrorMessage))
			}
			s.recover(id, api.Recover{})
			s.await(id, "ERROR with RetryExceeded again", func(w api.Workspace) bool {
				return w.Phase == "ERROR" && w.Operation == "NONE" && w.PendingRequest == nil && str(w.ErrorReason) == "RetryExceeded"
			})

			s.recover(id, api.Recover{Action: api.RecoverSetAside})
			if c.operation == "RESTORING" {
				s.awaitRestored(id, home)
			} else {
				s.awaitPhase(id, "STANDBY")
			}
			compareHomes(t, "the set-aside home", blocking, snapshot(t, s.setAsideFolder(id, c.storage)))
			if _, err := s.api.Delete(s.Context(), id, true); err != nil {
				t.Fatal(err)
			}
			s.awaitOnlySetAside(id)
			compareHomes(t, "the set-aside home after the deletion", blocking, snapshot(t, s.setAsideFolder(id, c.storage)))
		})
	}
}

// blockHome creates a volume without labels, or a folder without home.json,
// with the home's name. It returns the content.
func (s *server) blockHome(id, storage string) homeState {
	s.Helper()
	dir := filepath.Join(s.home, "homes", id, "home")
	if storage == "local-dir" {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			s.Fatal(err)
		}
	} else {
		name := "ws-" + id + "-home"
		v, err := s.docker.VolumeCreate(s.Context(), client.VolumeCreateOptions{Name: name})
		// The server may be creating the home's holder at this time, for
		// which Docker creates a volume that the server removes again.
		for deadline := time.Now().Add(patience); err == nil && len(v.Volume.Labels) > 0 && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
			v, err = s.docker.VolumeCreate(s.Context(), client.VolumeCreateOptions{Name: name})
		}
		if err != nil || len(v.Volume.Labels) > 0 {
			s.Fatalf("volume %s: labels %v, %v", name, v.Volume.Labels, err)
		}
		s.Cleanup(func() {
			_, _ = s.docker.VolumeRemove(context.Background(), name, client.VolumeRemoveOptions{})
		})
		dir = v.Volume.Mountpoint
	}
	archivetest.Corpus(s.TB, dir)
	return snapshot(s.TB, dir)
}

// awaitOnlySetAside waits until a deleted workspace has no resources but those
// set aside.
func (s *server) awaitOnlySetAside(id string) {
	s.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		left := slices.DeleteFunc(s.resourcesOf(id), func(what string) bool { return strings.Contains(what, "aside-") })
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("deleted workspace %s still has %v", id, left)
		}
	}
}

// setAsideFolder returns the folder of the workspace's one set-aside home, from
// the administrators' list of orphans.
func (s *server) setAsideFolder(id, storage string) string {
	s.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		list, err := s.api.Orphans(s.Context())
		if err != nil {
			s.Fatal(err)
		}
		var found []api.Orphan
		for _, o := range list {
			if o.Kind == "set-aside" && o.WorkspaceID == id {
				found = append(found, o)
			}
		}
		if len(found) == 1 {
			if found[0].RemovedAfter != nil || !strings.Contains(found[0].Detail, "an administrator removes it") {
				s.Errorf("orphan: %+v", found[0])
			}
			if storage == "local-dir" {
				return filepath.Join(found[0].Name, "home")
			}
			v, err := s.docker.VolumeInspect(s.Context(), found[0].Name, client.VolumeInspectOptions{})
			if err != nil {
				s.Fatal(err)
			}
			return v.Volume.Mountpoint
		}
		if time.Now().After(deadline) {
			s.Fatalf("set-aside homes: %+v, want one", found)
		}
	}
}
