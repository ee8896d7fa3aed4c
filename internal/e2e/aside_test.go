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
			b, rng := folderBucket(t), seeded(t, 8)
			s := startQuick(t, append(b.settings, "CODEHUB_DELETE_GRACE=0s", "CODEHUB_STORAGE="+c.storage)...)
			id, home := s.filled("one", rng)
			var leftover homeState
			if c.operation == "RESTORING" {
				s.want(id, "ARCHIVED")
				s.archived(b, id, home)
				leftover = s.obstruct(id, c.storage)
				s.want(id, "STANDBY")
			} else {
				s.loseVolume(id, c.storage)
				leftover = s.obstruct(id, c.storage)
				s.await(id, "in ERROR", func(w api.Workspace) bool { return w.Phase == "ERROR" })
				s.recover(id, api.Recover{Action: api.RecoverEmpty, Confirm: "one"})
			}
			w := s.await(id, "blocked", func(w api.Workspace) bool { return w.Phase == "ERROR" && str(w.ErrorReason) == "RetryExceeded" })
			if !strings.Contains(str(w.ErrorMessage), "set the volume aside") {
				t.Errorf("the error names no way out: %s", str(w.ErrorMessage))
			}
			s.recover(id, api.Recover{})
			s.await(id, "blocked again", func(w api.Workspace) bool {
				return w.Phase == "ERROR" && w.Operation == "NONE" && w.PendingRequest == nil && str(w.ErrorReason) == "RetryExceeded"
			})

			s.recover(id, api.Recover{Action: api.RecoverSetAside})
			if c.operation == "RESTORING" {
				s.restored(id, home)
			} else {
				s.awaitPhase(id, "STANDBY")
			}
			same(t, "what was set aside", leftover, snapshot(t, s.aside(id, c.storage)))
			if _, err := s.api.Delete(s.Context(), id, true); err != nil {
				t.Fatal(err)
			}
			s.awaitOnlyAside(id)
			same(t, "what was set aside, after the workspace was deleted", leftover, snapshot(t, s.aside(id, c.storage)))
		})
	}
}

// obstruct has a volume without labels, or a folder without home.json, take the
// home's name, and returns what is in it.
func (s *server) obstruct(id, storage string) homeState {
	s.Helper()
	dir := filepath.Join(s.home, "homes", id, "home")
	if storage == "local-dir" {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			s.Fatal(err)
		}
	} else {
		name := "ws-" + id + "-home"
		v, err := s.docker.VolumeCreate(s.Context(), client.VolumeCreateOptions{Name: name})
		// The server may have asked for the home's holder at this moment, for which
		// Docker makes a volume; the server removes it again.
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

// awaitOnlyAside waits until nothing is left of a deleted workspace but what was
// set aside.
func (s *server) awaitOnlyAside(id string) {
	s.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		left := slices.DeleteFunc(s.remains(id), func(what string) bool { return strings.Contains(what, "aside-") })
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("of deleted workspace %s there is left: %v", id, left)
		}
	}
}

// aside is where the one home that was set aside is on this machine, as
// administrators are told.
func (s *server) aside(id, storage string) string {
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
				s.Errorf("listed as %+v", found[0])
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
			s.Fatalf("set aside: %+v", found)
		}
	}
}
