package e2e

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/moby/moby/client"

	"codehub/api"
	codehub "codehub/client"
)

// An archive is cancelled after its upload, the owner edits a file, and the
// home is archived again: the second archive has the edit, and the first upload
// is not used.
func TestArchiveRetriedAfterAnEdit(t *testing.T) {
	t.Parallel()
	for store, open := range stores {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			b, rng := open(t), newRand(t, 10)
			f := startWithFailpoints(t, append(b.settings, "CODEHUB_DELETE_GRACE=0s")...)
			id, home := f.createFilled("one", rng)
			point := "archive.verified@" + id
			f.arm(point, "hold")
			f.setDesired(id, "ARCHIVED")
			f.awaitHeld(point) // the upload is complete and not recorded in the database
			first := b.keys(t, id)
			if len(first) != 1 {
				t.Fatalf("archives: %v, want one", first)
			}
			f.setDesired(id, "RUNNING")
			f.disarm()
			w := f.awaitPhase(id, "RUNNING")
			if w.ArchiveKey != nil {
				t.Errorf("the cancelled upload was recorded as the archive: %s", *w.ArchiveKey)
			}
			compareHomes(t, "the home", withoutRoot(home), withoutRoot(f.readHome(id)))
			f.write(id, "the owner's edit")
			f.setDesired(id, "ARCHIVED")
			w = f.awaitPhase(id, "ARCHIVED")
			if *w.ArchiveKey == first[0] {
				t.Error("the recorded archive is the cancelled upload")
			}
			f.setDesired(id, "RUNNING")
			f.awaitPhase(id, "RUNNING")
			f.expect(id, "the owner's edit")
			f.discard(id)
		})
	}
}

// A desired state is set just before and just after archive_key is recorded.
// The workspace returns with its home without another request; it keeps the
// volume if the request came before.
func TestRequestWhileArchiveIsRecorded(t *testing.T) {
	t.Parallel()
	b, rng := folderBucket(t), newRand(t, 11)
	f := startWithFailpoints(t, append(b.settings, "CODEHUB_DELETE_GRACE=0s", "MAX_RUNNING_PER_USER=0")...)
	for _, step := range []string{"archive.before-store", "archive.stored", "archive.checked"} {
		for _, desired := range []string{"STANDBY", "RUNNING"} {
			id, home := f.createFilled(step+" "+desired, rng)
			before := f.volumeClaim(id)
			f.arm(step+"@"+id, "hold")
			f.setDesired(id, "ARCHIVED")
			f.awaitHeld(step + "@" + id)
			f.setDesired(id, desired)
			f.disarm()
			f.await(id, desired, func(w api.Workspace) bool { return w.Phase == desired && w.Operation == "NONE" })
			compareHomes(t, "the home", withoutRoot(home), withoutRoot(f.readHome(id)))
			if sameVolume := f.volumeClaim(id) == before; sameVolume != (step == "archive.before-store") {
				t.Errorf("%s, then desired %s: the volume is the same: %v", step, desired, sameVolume)
			}
			f.discard(id)
		}
	}
}

// withoutRoot removes access times and the home's own modification time, which
// the start of a container and reading change.
func withoutRoot(h homeState) homeState {
	out := homeState{}
	for name, s := range h {
		s.Atime = ""
		if name == "." {
			s.Mtime = ""
		}
		out[name] = s
	}
	return out
}

// volumeClaim returns the claim label of the home's volume, "" if there is no
// volume.
func (s *server) volumeClaim(id string) string {
	s.Helper()
	v, err := s.docker.VolumeInspect(s.Context(), "ws-"+id+"-home", client.VolumeInspectOptions{})
	if err != nil {
		return ""
	}
	return v.Volume.Labels["codehub.claim"]
}

// A deletion is undeleted while the removal of its volume is claimed. The
// undelete is refused, or the home is complete.
func TestUndeleteDuringClaimedRemoval(t *testing.T) {
	t.Parallel()
	b, rng := folderBucket(t), newRand(t, 12)
	f := startWithFailpoints(t, append(b.settings, "CODEHUB_DELETE_GRACE=2s")...)
	point := "delete.begin"
	f.arm(point, "hold")
	id, _ := f.createFilled("one", rng)
	if _, err := f.api.Delete(t.Context(), id, true); err != nil {
		t.Fatal(err)
	}
	f.awaitHeld(point)
	_, err := f.api.Undelete(t.Context(), id)
	if e := (*codehub.Error)(nil); !errors.As(err, &e) || e.Status != http.StatusGone {
		t.Errorf("undelete during the removal: %v, want 410", err)
	}
	f.disarm()
	f.awaitGone(id)
	f.expectNoHome(id)

	// Several undeletes shortly before and after the end of the grace.
	const many = 12
	ids, homes := make([]string, many), make([]homeState, many)
	f.inParallel(many, func(i int, on *server) {
		ids[i], homes[i] = on.createFilled(strings.Repeat("x", i+1), newRand(t, uint64(200+i)))
	})
	f.stopIfFailed()
	f.inParallel(many, func(i int, on *server) {
		if _, err := on.api.Delete(on.Context(), ids[i], true); err != nil {
			on.Fatal(err)
		}
		time.Sleep(1500*time.Millisecond + time.Duration(i)*time.Second/many)
		if _, err := on.api.Undelete(on.Context(), ids[i]); err != nil {
			on.awaitGone(ids[i])
			on.expectNoHome(ids[i])
			return
		}
		on.awaitRestored(ids[i], homes[i])
	})
}

// A leader is suspended just before it removes the volume of an archived home.
// The next leader removes it, restores the home and starts the workspace. When
// the first leader continues, it does not touch the home. (Only volumes: homes
// in folders allow a single server.)
func TestResumedLeaderChangesNothing(t *testing.T) {
	t.Parallel()
	b, rng := folderBucket(t), newRand(t, 13)
	dsn := database(t)
	settings := append(b.settings, "CODEHUB_DATABASE_URL="+dsn, "CODEHUB_DELETE_GRACE=0s")
	a := startWithFailpoints(t, settings...)
	next := startBinary(t, env.binary, settings...)
	id, home := a.createFilled("one", rng)
	point := "archive.checked@" + id
	a.arm(point, "pause")
	a.setDesired(id, "ARCHIVED")
	a.awaitStopped()
	a.endLeaderSession(dsn)
	next.expectCompleteCopy(b, id, home)
	next.awaitArchived(b, id, home)
	next.setDesired(id, "STANDBY")
	next.awaitRestored(id, home)
	next.setDesired(id, "RUNNING")
	next.awaitPhase(id, "RUNNING")
	next.write(id, "work after the restore")
	before := next.containerOf(id)
	passed, standbys := len(a.steps(id)), strings.Count(a.Log(), "standing by")
	a.resume()
	a.await(id, "RUNNING on the first server", func(w api.Workspace) bool { return w.Phase == "RUNNING" })
	a.awaitLog("standing by", standbys)
	if later := a.steps(id)[passed:]; len(later) != 0 {
		t.Errorf("the former leader continued with the steps %v", later)
	}
	if after := next.containerOf(id); after != before {
		t.Errorf("the container was %s, now it is %s", before, after)
	}
	next.expect(id, "work after the restore")
	next.setDesired(id, "STANDBY")
	next.awaitPhase(id, "STANDBY")
	now := next.readHome(id)
	delete(now, "./notes.txt")
	compareHomes(t, "the home", withoutRoot(home), withoutRoot(now))
	next.discard(id)
}

// endLeaderSession terminates the database session that holds the leader's
// lock.
func (s *server) endLeaderSession(dsn string) {
	s.Helper()
	conn, err := pgx.Connect(s.Context(), dsn)
	if err != nil {
		s.Fatal(err)
	}
	defer conn.Close(s.Context())
	tag, err := conn.Exec(s.Context(), `SELECT pg_terminate_backend(pid) FROM pg_locks
		WHERE locktype = 'advisory' AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	if err != nil || tag.RowsAffected() == 0 {
		s.Fatalf("end the leader's session: %v, %v", tag, err)
	}
}

// awaitLog waits until the server has logged what more often than before.
func (s *server) awaitLog(what string, before int) {
	s.Helper()
	deadline := time.Now().Add(patience)
	for strings.Count(s.Server.Log(), what) <= before {
		if time.Now().After(deadline) {
			s.Fatalf("the server did not log %q", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
