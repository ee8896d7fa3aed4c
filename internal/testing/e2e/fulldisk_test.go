package e2e

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"codehub/api"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// smallDisk mounts a tmpfs of this size and returns a function that resizes it. The size
// may be followed by other options.
func smallDisk(t *testing.T, dir, size string) (resize func(size string)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test mounts a tmpfs, which needs root")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size="+size+",mode=755"); err != nil {
		t.Fatalf("mount a small disk: %v", err)
	}
	cleanup(t, func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount the small disk: %v", err)
		}
	})
	return func(size string) {
		t.Helper()
		if err := syscall.Mount("none", dir, "tmpfs", syscall.MS_REMOUNT, "size="+size); err != nil {
			t.Fatalf("resize the small disk: %v", err)
		}
	}
}

// newSmallDisk is smallDisk in a new folder, whose path is short because of sockets in it.
func newSmallDisk(t *testing.T, size string) (dir string, resize func(size string)) {
	t.Helper()
	dir, err := os.MkdirTemp("", "codehub-disk-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir, smallDisk(t, dir, size)
}

// createIncompressible creates a workspace with a random home of this size.
func (s *server) createIncompressible(name string, mib int) (string, homeState) {
	s.Helper()
	id := s.createStandby(name)
	b := make([]byte, mib<<20)
	_, _ = rand.Read(b)
	for i := range 4 {
		name := filepath.Join(s.homeFolder(id), fmt.Sprint("large", i))
		if err := os.WriteFile(name, b[i*len(b)/4:(i+1)*len(b)/4], 0o644); err != nil {
			s.Fatal(err)
		}
		if err := os.Chown(name, workspace.ArchivedUID, workspace.ArchivedUID); err != nil {
			s.Fatal(err)
		}
	}
	return id, s.readHome(id)
}

// An archive does not fit on the disk of the archives. This is no failure of the
// workspace: the home stays and can be opened, and is archived once space is free.
func TestArchiveOnFullDisk(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	disk := filepath.Join(t.TempDir(), "disk")
	resize := smallDisk(t, disk, "8m")
	b := &bucket{dir: filepath.Join(disk, "archives")}
	s := startQuick(t, "CODEHUB_ARCHIVE_URL=file://"+b.dir, "CODEHUB_DELETE_GRACE=0s")
	id, home := s.createIncompressible("large", 16)
	fails := func() {
		t.Helper()
		s.setDesired(id, "ARCHIVED")
		s.await(id, "waiting for space", func(w api.Workspace) bool {
			if w.Phase == "ERROR" || w.ErrorCount != 0 {
				t.Fatalf("the full disk was counted as a failure: %s: %s", str(w.ErrorReason), str(w.ErrorMessage))
			}
			return w.Progress != nil && w.Progress.Step == "waiting-storage"
		})
	}
	fails()
	s.expectCompleteCopy(b, id, home)
	if keys := b.keys(t, id); len(keys) != 0 {
		t.Errorf("an incomplete archive counts as complete: %v", keys)
	}
	s.setDesired(id, "STANDBY")
	s.awaitPhase(id, "STANDBY")
	compareHomes(t, "the home", home, s.readHome(id))
	fails()
	resize("64m")
	s.awaitArchived(b, id, home)
	s.setDesired(id, "STANDBY")
	s.awaitRestored(id, home)
	s.discard(id)
}

// awaitDiskFullError waits until the workspace's error names the full disk.
func (s *server) awaitDiskFullError(id, what string) {
	s.Helper()
	s.await(id, "an error that says that "+what, func(w api.Workspace) bool {
		return strings.Contains(strings.ToLower(str(w.ErrorMessage)), "full") || strings.Contains(str(w.ErrorMessage), "no space left")
	})
}

// The disk of the homes is too small for a home that is restored: the error
// says so, the archive stays, and the home is restored once space is free.
func TestRestoreOnFullDisk(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	dir, resize := newSmallDisk(t, "128m")
	b := folderBucket(t)
	s := startIn(t, env.binary, filepath.Join(dir, "data"), append(b.settings, "CODEHUB_DATABASE_URL="+database(t), "CODEHUB_STORAGE=local-dir", "CODEHUB_DELETE_GRACE=0s", "CODEHUB_BALLAST=0")...)
	id, home := s.createIncompressible("large", 32)
	s.setDesired(id, "ARCHIVED")
	w := s.awaitArchived(b, id, home)
	resize("16m")
	s.setDesired(id, "STANDBY")
	s.awaitDiskFullError(id, "the disk is full")
	s.expectCompleteCopy(b, id, home)
	if got, _, err := b.unpack(t, *w.ArchiveKey); err != nil {
		t.Errorf("unpack the archive: %v", err)
	} else {
		compareHomes(t, "the archive", home, got)
	}
	resize("128m")
	s.await(id, "STANDBY after a retry or a recovery", func(w api.Workspace) bool {
		if w.Phase == "ERROR" {
			_, _ = s.api.Recover(t.Context(), id, api.Recover{})
		}
		return w.Phase == "STANDBY" && w.Operation == "NONE"
	})
	s.awaitRestored(id, home)
	s.discard(id)
}

// fillDisk uses up the space or the inodes that the disk has, and returns what frees them. It
// leaves what a server's ballast frees meanwhile.
func fillDisk(t *testing.T, dir string, inodes bool) (free func()) {
	t.Helper()
	filler, err := os.MkdirTemp(dir, "filler-")
	var disk syscall.Statfs_t
	if err == nil {
		err = syscall.Statfs(dir, &disk)
	}
	part := make([]byte, 1<<20)
	parts := disk.Bfree*uint64(disk.Bsize)/uint64(len(part)) + 1
	if inodes {
		part, parts = nil, disk.Ffree+1
	}
	for n := uint64(0); err == nil && n < parts; n++ {
		err = os.WriteFile(filepath.Join(filler, fmt.Sprint(n)), part, 0o600)
	}
	if err != nil && !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	return func() {
		if err := os.RemoveAll(filler); err != nil {
			t.Error(err)
		}
	}
}

// The disk with the embedded database, the homes and the archives is full, or has no
// inodes left. The server gives up its ballast, says what fails, and deletes homes.
func TestDeletionOnFullDisk(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	for _, tc := range []struct{ name, disk, room string }{
		{"no space", "512m", "800m"},
		{"no inodes", "512m,nr_inodes=5000", "512m,nr_inodes=9000"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dir, resize := newSmallDisk(t, tc.disk)
			s := startIn(t, env.binary, filepath.Join(dir, "data"), "CODEHUB_STORAGE=local-dir", "CODEHUB_DELETE_GRACE=0s",
				"CODEHUB_BALLAST=32m", "CODEHUB_MIN_FREE=10%", "CODEHUB_COORDINATOR_IDLE_INTERVAL=1s")
			ready := func(what, status string, parts ...string) {
				t.Helper()
				harness.Eventually(t, what, func() bool {
					body := s.readyz()
					for _, part := range parts {
						if !strings.Contains(body, part) {
							return false
						}
					}
					return strings.Contains(body, `"status":"`+status+`"`)
				})
			}
			var ids []string
			for i := range 3 {
				id, _ := s.createIncompressible(fmt.Sprint("w", i), 1)
				ids = append(ids, id)
			}
			ready("the disk has space", "ok", `"data-disk":"ok"`, `"disk":"ok"`)
			free := fillDisk(t, dir, tc.name == "no inodes")
			ready("the full disk is reported", "degraded", `"data-disk":"failed"`, `"disk":"failed"`, `"database":"ok"`)
			s.remove(ids[0])
			// The ballast is used up, too.
			freeRest := fillDisk(t, dir, tc.name == "no inodes")
			if resp, body := s.ask("GET", "/metrics", ""); resp.StatusCode != 200 || !strings.Contains(body, `codehub_condition{name="data-disk"} 1`) ||
				!strings.Contains(body, "codehub_ballast_bytes 0") {
				t.Errorf("/metrics: %d, without the full disk", resp.StatusCode)
			}
			harness.Eventually(t, "the administrators' status has the full disk", func() bool {
				st, err := s.api.AdminStatus(s.Context())
				return err == nil && strings.Contains(fmt.Sprint(st.Servers), "the disk of the data folder is full")
			})
			s.remove(ids[1])
			free()
			freeRest()
			resize(tc.room)
			ready("the disk has space again", "ok", `"data-disk":"ok"`, `"disk":"ok"`)
			s.remove(ids[2])
			s.remove(s.createStandby("after"))
		})
	}
}
