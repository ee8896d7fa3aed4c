package e2e

import (
	"os"
	"testing"

	"codehub/api"
	"codehub/internal/archive/archivetest"
)

// A home with everything that homes were ever lost of goes into the bucket
// and comes back as it was, on every pair of storage and store.
func TestArchivedHomesAreRestoredExactly(t *testing.T) {
	t.Parallel()
	for _, storage := range []string{"docker-volume", "local-dir"} {
		for store, open := range stores {
			t.Run(storage+" "+store, func(t *testing.T) {
				t.Parallel()
				b := open(t)
				s := startQuick(t, append(b.settings, "CODEHUB_DELETE_GRACE=0s", "CODEHUB_STORAGE="+storage)...)
				id := s.standby("full")
				archivetest.Corpus(t, s.folder(id))
				home := s.look(id)

				s.want(id, "ARCHIVED")
				first := s.archived(b, id, home)
				if _, meta, err := b.unpack(t, *first.ArchiveKey); err != nil || meta.Skipped != archivetest.Skipped || meta.WorkspaceID != id || meta.Owner != "admin" || meta.WorkspaceName != "full" {
					t.Errorf("its .meta: %+v, %v", meta, err)
				}

				s.want(id, "STANDBY")
				s.restored(id, home)
				s.want(id, "RUNNING")
				s.awaitPhase(id, "RUNNING")
				same(t, "the home of a running workspace", archivetest.WithoutAtimes(home), archivetest.WithoutAtimes(s.look(id)))

				// A second time, with something new in it, and to RUNNING at once.
				s.write(id, "after the restore")
				s.want(id, "ARCHIVED")
				s.await(id, "ARCHIVED again", func(w api.Workspace) bool { return w.Phase == "ARCHIVED" && w.Operation == "NONE" })
				s.noHome(id)
				s.want(id, "RUNNING")
				second := s.awaitPhase(id, "RUNNING")
				s.expect(id, "after the restore")
				if *second.ArchiveKey == *first.ArchiveKey {
					t.Error("two archives have one key")
				}
				s.discard(id)
				if cs, vs := s.left(); len(cs)+len(vs) != 0 {
					t.Errorf("left in Docker: containers %v, volumes %v", cs, vs)
				}
			})
		}
	}
}

// A workspace that was never started is archived without a home, and opened
// as a new one is.
func TestArchiveRequestedBeforeHomeExists(t *testing.T) {
	t.Parallel()
	b := folderBucket(t)
	s := startQuick(t, append(b.settings, "CODEHUB_DELETE_GRACE=0s")...)
	fresh := s.look(s.standby("fresh"))
	id := s.createDesired("never", "ARCHIVED")
	w := s.awaitPhase(id, "ARCHIVED")
	if _, err := os.Stat(b.object(*w.ArchiveKey)); err != nil {
		t.Error(err)
	}
	if _, meta, err := b.unpack(t, *w.ArchiveKey); err != nil || meta.Entries != 0 {
		t.Errorf("the archive: %+v, %v", meta, err)
	}
	s.noHome(id)
	s.want(id, "STANDBY")
	s.awaitPhase(id, "STANDBY")
	if got := s.look(id); len(got) != len(fresh) {
		t.Errorf("the home has %d entries, a new one has %d", len(got), len(fresh))
	}
	s.want(id, "RUNNING")
	s.awaitPhase(id, "RUNNING")
	s.write(id, "first work")
	s.want(id, "ARCHIVED")
	s.awaitPhase(id, "ARCHIVED")
	s.want(id, "RUNNING")
	s.awaitPhase(id, "RUNNING")
	s.expect(id, "first work")
}

// A deleted workspace's archives go as well, and then it is DELETED.
func TestDeletionRemovesArchives(t *testing.T) {
	t.Parallel()
	b, rng := folderBucket(t), seeded(t, 15)
	s := startQuick(t, append(b.settings, "CODEHUB_DELETE_GRACE=1s")...)
	id, home := s.filled("archived", rng)
	s.want(id, "ARCHIVED")
	s.archived(b, id, home)
	back, home := s.filled("and back", rng)
	s.want(back, "ARCHIVED")
	s.archived(b, back, home)
	s.want(back, "STANDBY")
	s.restored(back, home)
	for _, id := range []string{id, back} {
		if _, err := s.api.Delete(t.Context(), id, true); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{id, back} {
		s.awaitGone(id)
		s.noHome(id)
		if keys := b.keys(t, id); len(keys) != 0 {
			t.Errorf("archives of a deleted workspace: %v", keys)
		}
	}
}
