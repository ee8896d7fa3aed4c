package e2e

import (
	"os"
	"testing"

	"codehub/api"
	"codehub/internal/archive/archivetest"
)

// A home with every kind of entry that is hard to preserve is archived and
// restored unchanged, on every pair of storage and store.
func TestArchivedHomesAreRestoredExactly(t *testing.T) {
	t.Parallel()
	for _, storage := range []string{"docker-volume", "local-dir"} {
		for store, open := range stores {
			t.Run(storage+" "+store, func(t *testing.T) {
				t.Parallel()
				b := open(t)
				s := startQuick(t, append(b.settings, "CODEHUB_DELETE_GRACE=0s", "CODEHUB_STORAGE="+storage)...)
				id := s.create(api.CreateWorkspace{Name: "full"})
				s.awaitPhase(id, "RUNNING")
				s.setDesired(id, "STANDBY") // what belongs to others from now on stays theirs
				s.awaitPhase(id, "STANDBY")
				archivetest.Corpus(t, s.homeFolder(id))
				home := s.readHome(id)

				s.setDesired(id, "ARCHIVED")
				first := s.awaitArchived(b, id, home)
				if _, meta, err := b.unpack(t, *first.ArchiveKey); err != nil || meta.Skipped != archivetest.Skipped || meta.WorkspaceID != id || meta.Owner != "admin" || meta.WorkspaceName != "full" {
					t.Errorf("the archive's .meta: %+v, %v", meta, err)
				}

				s.setDesired(id, "STANDBY")
				s.awaitRestored(id, home)
				s.setDesired(id, "RUNNING")
				s.awaitPhase(id, "RUNNING")
				compareHomes(t, "the home of a running workspace", archivetest.WithoutAtimes(home), archivetest.WithoutAtimes(s.readHome(id)))

				// A second archive with another file, restored directly to
				// RUNNING.
				s.write(id, "after the restore")
				s.setDesired(id, "ARCHIVED")
				s.await(id, "ARCHIVED", func(w api.Workspace) bool { return w.Phase == "ARCHIVED" && w.Operation == "NONE" })
				s.expectNoHome(id)
				s.setDesired(id, "RUNNING")
				second := s.awaitPhase(id, "RUNNING")
				s.expect(id, "after the restore")
				if *second.ArchiveKey == *first.ArchiveKey {
					t.Error("two archives have the same key")
				}
				s.discard(id)
				s.expectNothingLeft()
			})
		}
	}
}

// A workspace that was never started is archived without a home, and starts
// with a new home.
func TestArchiveRequestedBeforeHomeExists(t *testing.T) {
	t.Parallel()
	b := folderBucket(t)
	s := startQuick(t, append(b.settings, "CODEHUB_DELETE_GRACE=0s")...)
	fresh := s.readHome(s.createStandby("fresh"))
	id := s.createDesired("never", "ARCHIVED")
	w := s.awaitPhase(id, "ARCHIVED")
	if _, err := os.Stat(b.object(*w.ArchiveKey)); err != nil {
		t.Error(err)
	}
	if _, meta, err := b.unpack(t, *w.ArchiveKey); err != nil || meta.Entries != 0 {
		t.Errorf("the empty archive: %+v, %v", meta, err)
	}
	s.expectNoHome(id)
	s.setDesired(id, "STANDBY")
	s.awaitPhase(id, "STANDBY")
	if got := s.readHome(id); len(got) != len(fresh) {
		t.Errorf("the home has %d entries, a new one has %d", len(got), len(fresh))
	}
	s.setDesired(id, "RUNNING")
	s.awaitPhase(id, "RUNNING")
	s.write(id, "first work")
	s.setDesired(id, "ARCHIVED")
	s.awaitPhase(id, "ARCHIVED")
	s.setDesired(id, "RUNNING")
	s.awaitPhase(id, "RUNNING")
	s.expect(id, "first work")
}

// The archives of a deleted workspace are removed before it is DELETED.
func TestDeletionRemovesArchives(t *testing.T) {
	t.Parallel()
	b, rng := folderBucket(t), newRand(t, 15)
	s := startQuick(t, append(b.settings, "CODEHUB_DELETE_GRACE=1s")...)
	id, home := s.createFilled("archived", rng)
	s.setDesired(id, "ARCHIVED")
	s.awaitArchived(b, id, home)
	back, home := s.createFilled("and back", rng)
	s.setDesired(back, "ARCHIVED")
	s.awaitArchived(b, back, home)
	s.setDesired(back, "STANDBY")
	s.awaitRestored(back, home)
	for _, id := range []string{id, back} {
		if _, err := s.api.Delete(t.Context(), id, true); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{id, back} {
		s.awaitGone(id)
		s.expectNoHome(id)
		if keys := b.keys(t, id); len(keys) != 0 {
			t.Errorf("the deleted workspace still has the archives %v", keys)
		}
	}
}
