package e2e

import (
	"context"
	"io"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/testing/harness"
)

// The home of a workspace that runs is backed up on request. Its owner sees what changed, reads a file
// of an earlier backup, goes back to that backup, and makes new workspaces of another one. The state
// from before is in an archive. A deleted workspace leaves nothing in the bucket. It takes
// up to 90 s: an archive, four starts of containers, and a minute until the backups are removed.
func TestBackupsOfHomeInUse(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bk := open(t)
			s := startQuick(t, append(bk.settings, "CODEHUB_DEFAULT_IMAGE="+env.slimImage, "CODEHUB_DELETE_GRACE=0s", "COORDINATOR_IDLE_INTERVAL=2s", "MAX_RUNNING_PER_USER=5")...)
			id := s.create(api.CreateWorkspace{Name: "alpha"})
			s.awaitPhase(id, "RUNNING")
			s.run(id, "mkdir src && echo one >src/a && ln src/a linked && ln -s src/a soft && head -c 40000000 /dev/urandom >big && truncate -s 1G sparse && sleep 3")
			first := s.backUp(id, "first")
			if first.Entries < 6 || first.Bytes < 40e6 || first.StoredBytes < 40e6 || first.Added < first.Files || first.Problems != 0 {
				t.Errorf("the first backup has %+v", first)
			}
			sums := s.run(id, "sha256sum big src/a; stat -c '%n %h %s %f %Y' src src/a linked soft big sparse")
			s.run(id, "echo two >src/a && rm soft && echo new >b")
			second := s.backUp(id, "")
			if second.StoredBytes > 1e6 || second.Added < 1 || second.Modified < 1 || second.Removed < 1 {
				t.Errorf("the second backup has %+v", second)
			}
			if list, err := s.api.Backups(s.Context(), id); err != nil || len(list) != 2 || list[0].ID != second.ID || list[1].Note != "first" {
				t.Errorf("%+v, %v", list, err)
			}
			changes, err := s.api.BackupChanges(s.Context(), id, second.ID, "")
			if err != nil || !slices.ContainsFunc(changes.Files, func(f api.ChangedFile) bool { return f.Path == "b" }) {
				t.Errorf("%+v, %v", changes, err)
			}
			if files, err := s.api.BackupFiles(s.Context(), id, first.ID, "src"); err != nil || len(files) != 1 || files[0].Path != "src/a" || files[0].SameAs != "linked" {
				t.Errorf("%+v, %v", files, err)
			}
			if got := s.backupFile(id, first.ID, "src/a"); got != "one\n" {
				t.Errorf("src/a of the first backup is %q", got)
			}

			if _, err := s.api.RestoreBackup(s.Context(), id, api.RestoreBackup{Backup: first.ID}); err != nil {
				t.Fatal(err)
			}
			s.await(id, "RUNNING with the backup", func(w api.Workspace) bool {
				return w.Phase == "RUNNING" && w.Operation == "NONE" && w.RestoreFrom == nil
			})
			if got := s.run(id, "sha256sum big src/a; stat -c '%n %h %s %f %Y' src src/a linked soft big sparse"); got != sums {
				t.Errorf("the home is\n%s, want that of the first backup\n%s", got, sums)
			}
			if archives, err := s.api.Archives(s.Context(), id); err != nil || len(archives) != 1 {
				t.Errorf("the state from before is not in an archive: %+v, %v", archives, err)
			}
			third := s.backUp(id, "after")

			made, err := s.api.Fork(s.Context(), id, api.Fork{Backup: second.ID, Count: 2, Start: true})
			if err != nil || len(made) != 2 {
				t.Fatal(made, err)
			}
			for _, w := range made {
				s.awaitPhase(w.ID, "RUNNING")
				if got := s.run(w.ID, "cat src/a b"); got != "two\nnew\n" {
					t.Errorf("the fork has %q", got)
				}
			}
			if third.StoredBytes > 1e6 {
				t.Logf("the backup after the restore stored %d bytes again", third.StoredBytes)
			}
			s.discard(id)
			for _, w := range made {
				s.discard(w.ID)
			}
			harness.EventuallyWithin(t, patience, "the backups are removed", func() bool {
				left, err := filepath.Glob(filepath.Join(bk.dir, "*", id, "backups", "*.zst"))
				packs, failed := filepath.Glob(filepath.Join(bk.dir, "*", id, "backups", "packs", "*.zst"))
				return err == nil && failed == nil && len(left)+len(packs) == 0
			})
		})
	}
}

// An archived workspace is forked from its archive, which is kept for forks that have not started when the
// workspace is deleted.
func TestForkOfArchive(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bk := open(t)
			s := startQuick(t, append(bk.settings, "CODEHUB_DEFAULT_IMAGE="+env.slimImage, "CODEHUB_DELETE_GRACE=0s", "CODEHUB_BACKUP_INTERVAL=0", "COORDINATOR_IDLE_INTERVAL=2s", "MAX_RUNNING_PER_USER=5")...)
			id := s.create(api.CreateWorkspace{Name: "alpha"})
			s.awaitPhase(id, "RUNNING")
			s.run(id, "echo kept >file")
			s.setDesired(id, "ARCHIVED")
			s.awaitPhase(id, "ARCHIVED")
			made, err := s.api.Fork(s.Context(), id, api.Fork{Count: 2})
			if err != nil || len(made) != 2 {
				t.Fatal(made, err)
			}
			if _, err := s.api.Delete(s.Context(), id, false); err != nil {
				t.Fatal(err)
			}
			for _, w := range made {
				s.setDesired(w.ID, "RUNNING")
				s.awaitPhase(w.ID, "RUNNING")
				if got := s.run(w.ID, "cat file"); got != "kept\n" {
					t.Errorf("the fork has %q", got)
				}
				s.setDesired(w.ID, "ARCHIVED")
				s.awaitPhase(w.ID, "ARCHIVED")
				if archives, err := s.api.Archives(s.Context(), w.ID); err != nil || len(archives) != 1 {
					t.Errorf("archives of the fork: %+v, %v", archives, err)
				}
			}
		})
	}
}

// backUp requests a backup of a home and waits until it is complete.
func (s *server) backUp(id, note string) api.Backup {
	s.Helper()
	b, err := s.api.RequestBackup(s.Context(), id, note)
	if err != nil {
		s.Fatal(err)
	}
	return s.awaitBackup(id, b.ID)
}

func (s *server) awaitBackup(id, backup string) api.Backup {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	for {
		b, err := s.api.Backup(ctx, id, backup)
		if err == nil && b.State == "failed" {
			s.Fatalf("the backup failed: %s", b.Error)
		}
		if err == nil && b.State == "done" {
			return b
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			s.Fatalf("the backup is %q, %v", b.State, err)
		}
	}
}

// backupFile reads a file of a backup.
func (s *server) backupFile(id, backup, name string) string {
	s.Helper()
	d, err := s.api.DownloadBackupFile(s.Context(), id, backup, name)
	if err != nil {
		s.Fatal(err)
	}
	defer d.Body.Close()
	b, err := io.ReadAll(d.Body)
	if err != nil {
		s.Fatal(err)
	}
	return string(b)
}

// A server that is killed while it makes a backup makes it again, and what the killed one left is not
// listed.
func TestBackupSurvivesKills(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	bk := folderBucket(t)
	s := startQuick(t, append(bk.settings, "CODEHUB_DEFAULT_IMAGE="+env.slimImage, "CODEHUB_DELETE_GRACE=0s", "COORDINATOR_IDLE_INTERVAL=2s")...)
	id := s.create(api.CreateWorkspace{Name: "alpha"})
	s.awaitPhase(id, "RUNNING")
	s.run(id, "head -c 300000000 /dev/urandom >big && echo one >a && sleep 3")
	b, err := s.api.RequestBackup(s.Context(), id, "first")
	if err != nil {
		t.Fatal(err)
	}
	harness.EventuallyWithin(t, patience, "a pack is written", func() bool {
		packs, err := filepath.Glob(filepath.Join(bk.dir, "*", id, "backups", "packs", "*"))
		return err == nil && len(packs) > 0
	})
	s.restart()
	first := s.awaitBackup(id, b.ID)
	if manifests, err := filepath.Glob(filepath.Join(bk.dir, "*", id, "backups", "*.manifest.zst")); err != nil || len(manifests) != 1 {
		t.Errorf("%q, %v", manifests, err)
	}
	if got := s.backupFile(id, first.ID, "a"); got != "one\n" || first.Note != "first" {
		t.Errorf("%q of %+v", got, first)
	}
	s.discard(id)
}
