package e2e

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"codehub/api"
)

// smallDisk mounts a disk of this size, which can be given another.
func smallDisk(t *testing.T, dir, size string) (resize func(size string)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test mounts a small disk, which takes root")
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

// bulky makes a workspace whose home does not compress.
func (s *server) bulky(name string, mib int) (string, homeState) {
	s.Helper()
	id := s.standby(name)
	b := make([]byte, mib<<20)
	_, _ = rand.Read(b)
	for i := range 4 {
		name := filepath.Join(s.folder(id), fmt.Sprint("large", i))
		if err := os.WriteFile(name, b[i*len(b)/4:(i+1)*len(b)/4], 0o644); err != nil {
			s.Fatal(err)
		}
	}
	return id, s.look(id)
}

// The folder of the archives fills up in the middle of one. That is a bucket
// that does not do its work, and nobody's failure: the home stays where it is
// and can be opened, and is archived by itself once there is room.
func TestArchiveOnFullDisk(t *testing.T) {
	t.Parallel()
	disk := filepath.Join(t.TempDir(), "disk")
	resize := smallDisk(t, disk, "8m")
	b := &bucket{dir: filepath.Join(disk, "archives")}
	s := startQuick(t, "CODEHUB_ARCHIVE_URL=file://"+b.dir, "CODEHUB_DELETE_GRACE=0s")
	begun := s.countJobs()
	id, home := s.bulky("large", 16)
	attempts := func(n int) {
		t.Helper()
		s.await(id, "tried again", func(w api.Workspace) bool {
			if w.Phase == "ERROR" || w.ErrorCount != 0 {
				t.Fatalf("the full disk is held against it: %s: %s", str(w.ErrorReason), str(w.ErrorMessage))
			}
			return len(begun.of("archive", id)) >= n
		})
	}
	s.want(id, "ARCHIVED")
	attempts(2)
	if !strings.Contains(s.Server.Log(), "no space left on device") {
		t.Error("nobody is told that the disk is full")
	}
	s.somewhere(b, id, home)
	if keys := b.keys(t, id); len(keys) != 0 {
		t.Errorf("half an archive looks whole: %v", keys)
	}
	s.want(id, "STANDBY")
	s.awaitPhase(id, "STANDBY")
	same(t, "the home", home, s.look(id))
	s.want(id, "ARCHIVED")
	attempts(4)
	resize("64m")
	s.archived(b, id, home)
	s.want(id, "STANDBY")
	s.restored(id, home)
	s.discard(id)
}

// awaitWords waits until it is said of a workspace that its disk is full.
func (s *server) awaitWords(id, what string) {
	s.Helper()
	s.await(id, "told that "+what, func(w api.Workspace) bool {
		return strings.Contains(strings.ToLower(str(w.ErrorMessage)), "full") || strings.Contains(str(w.ErrorMessage), "no space left")
	})
}

// The disk of the homes is too small for one that is restored: it says so, the
// archive stays, and it is restored once there is room.
func TestRestoreOnFullDisk(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "codehub-disk-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	resize := smallDisk(t, dir, "128m")
	b := folderBucket(t)
	s := startIn(t, env.binary, filepath.Join(dir, "data"), append(b.settings, "CODEHUB_DATABASE_URL="+database(t), "CODEHUB_STORAGE=local-dir", "CODEHUB_DELETE_GRACE=0s")...)
	id, home := s.bulky("large", 32)
	s.want(id, "ARCHIVED")
	w := s.archived(b, id, home)
	resize("16m")
	s.want(id, "STANDBY")
	s.awaitWords(id, "the disk is full")
	s.somewhere(b, id, home)
	if got, _, err := b.unpack(t, *w.ArchiveKey); err != nil {
		t.Errorf("the archive: %v", err)
	} else {
		same(t, "the archive", home, got)
	}
	resize("128m")
	s.await(id, "in STANDBY again, by itself or on request", func(w api.Workspace) bool {
		if w.Phase == "ERROR" {
			_, _ = s.api.Recover(t.Context(), id, api.Recover{})
		}
		return w.Phase == "STANDBY" && w.Operation == "NONE"
	})
	s.restored(id, home)
	s.discard(id)
}
