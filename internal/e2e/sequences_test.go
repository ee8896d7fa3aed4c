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

// An archive is given up after it was stored, the owner edits, and it is
// archived again: the edit is in it, and the first upload stands for nothing.
func TestArchiveRetriedAfterAnEdit(t *testing.T) {
	t.Parallel()
	for store, open := range stores {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			b, rng := open(t), seeded(t, 10)
			f := startFailing(t, append(b.settings, "CODEHUB_DELETE_GRACE=0s")...)
			id, home := f.filled("one", rng)
			ask := "archive.verified@" + id
			f.arm(ask, "hold")
			f.want(id, "ARCHIVED")
			f.held(ask) // everything is in the bucket, and nothing in the database
			first := b.keys(t, id)
			if len(first) != 1 {
				t.Fatalf("archives: %v", first)
			}
			f.want(id, "RUNNING")
			f.disarm()
			w := f.awaitPhase(id, "RUNNING")
			if w.ArchiveKey != nil {
				t.Errorf("the upload that was given up is the archive: %s", *w.ArchiveKey)
			}
			same(t, "the home", withoutRoot(home), withoutRoot(f.look(id)))
			f.write(id, "the owner's edit")
			f.want(id, "ARCHIVED")
			w = f.awaitPhase(id, "ARCHIVED")
			if *w.ArchiveKey == first[0] {
				t.Error("the archive is the earlier upload")
			}
			f.want(id, "RUNNING")
			f.awaitPhase(id, "RUNNING")
			f.expect(id, "the owner's edit")
			f.discard(id)
		})
	}
}

// A wish comes at the moment at which archive_key is stored, just before and
// just after: the workspace comes back by itself, with its home, which is the
// same volume where the wish was in time.
func TestRequestWhileArchiveIsRecorded(t *testing.T) {
	t.Parallel()
	b, rng := folderBucket(t), seeded(t, 11)
	f := startFailing(t, append(b.settings, "CODEHUB_DELETE_GRACE=0s", "MAX_RUNNING_PER_USER=0")...)
	for _, step := range []string{"archive.before-store", "archive.stored", "archive.checked"} {
		for _, wish := range []string{"STANDBY", "RUNNING"} {
			id, home := f.filled(step+" "+wish, rng)
			before := f.volumeClaim(id)
			f.arm(step+"@"+id, "hold")
			f.want(id, "ARCHIVED")
			f.held(step + "@" + id)
			f.want(id, wish)
			f.disarm()
			f.await(id, wish+" by itself", func(w api.Workspace) bool { return w.Phase == wish && w.Operation == "NONE" })
			same(t, "the home", withoutRoot(home), withoutRoot(f.look(id)))
			if kept := f.volumeClaim(id) == before; kept != (step == "archive.before-store") {
				t.Errorf("%s, %s: the volume was kept: %v", step, wish, kept)
			}
			f.discard(id)
		}
	}
}

// withoutRoot leaves out what a container's start and a look may change: when
// files were last read, and the home's own times.
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

// volumeClaim is which home the volume was made for.
func (s *server) volumeClaim(id string) string {
	s.Helper()
	v, err := s.docker.VolumeInspect(s.Context(), "ws-"+id+"-home", client.VolumeInspectOptions{})
	if err != nil {
		return ""
	}
	return v.Volume.Labels["codehub.claim"]
}

// A deletion is taken back while the removal of the volume is claimed: it is
// refused, or the home is there; never a workspace without its home.
func TestUndeleteDuringClaimedRemoval(t *testing.T) {
	t.Parallel()
	b, rng := folderBucket(t), seeded(t, 12)
	f := startFailing(t, append(b.settings, "CODEHUB_DELETE_GRACE=2s")...)
	ask := "delete.begin"
	f.arm(ask, "hold")
	id, _ := f.filled("one", rng)
	if _, err := f.api.Delete(t.Context(), id, true); err != nil {
		t.Fatal(err)
	}
	f.held(ask)
	_, err := f.api.Undelete(t.Context(), id)
	if e := (*codehub.Error)(nil); !errors.As(err, &e) || e.Status != http.StatusGone {
		t.Errorf("undelete in the middle of the removal: %v", err)
	}
	f.disarm()
	f.awaitGone(id)
	f.noHome(id)

	// Around the end of the grace, many at once.
	const many = 12
	ids, homes := make([]string, many), make([]homeState, many)
	f.abreast(many, func(i int, on *server) {
		ids[i], homes[i] = on.filled(strings.Repeat("x", i+1), seeded(t, uint64(200+i)))
	})
	f.sound()
	f.abreast(many, func(i int, on *server) {
		if _, err := on.api.Delete(on.Context(), ids[i], true); err != nil {
			on.Fatal(err)
		}
		time.Sleep(1500*time.Millisecond + time.Duration(i)*time.Second/many)
		if _, err := on.api.Undelete(on.Context(), ids[i]); err != nil {
			on.awaitGone(ids[i])
			on.noHome(ids[i])
			return
		}
		on.restored(ids[i], homes[i])
	})
}

// A leader is stopped just before it removes an archived home's volume. The
// next one removes it, restores it and lets its owner in; then the first goes
// on, and the home is none of its business any more. (Of servers with homes in
// folders there is only one.)
func TestResumedLeaderChangesNothing(t *testing.T) {
	t.Parallel()
	b, rng := folderBucket(t), seeded(t, 13)
	dsn := database(t)
	settings := append(b.settings, "CODEHUB_DATABASE_URL="+dsn, "CODEHUB_DELETE_GRACE=0s")
	a := startFailing(t, settings...)
	next := startBinary(t, env.binary, settings...)
	id, home := a.filled("one", rng)
	ask := "archive.checked@" + id
	a.arm(ask, "pause")
	a.want(id, "ARCHIVED")
	a.stopped()
	a.depose(dsn)
	next.somewhere(b, id, home)
	next.archived(b, id, home)
	next.want(id, "STANDBY")
	next.restored(id, home)
	next.want(id, "RUNNING")
	next.awaitPhase(id, "RUNNING")
	next.write(id, "work after the restore")
	before := next.containerOf(id)
	passed := len(a.steps(id))
	a.resume()
	a.await(id, "seen by the first one again", func(w api.Workspace) bool { return w.Phase == "RUNNING" })
	a.awaitLog("standing by")
	if gone := a.steps(id)[passed:]; len(gone) != 0 {
		t.Errorf("the first one went on with %v", gone)
	}
	if after := next.containerOf(id); after != before {
		t.Errorf("the container was %s, and is %s", before, after)
	}
	next.expect(id, "work after the restore")
	next.want(id, "STANDBY")
	next.awaitPhase(id, "STANDBY")
	now := next.look(id)
	delete(now, "./notes.txt")
	same(t, "the home", withoutRoot(home), withoutRoot(now))
	next.discard(id)
}

// depose ends the session by which a server leads.
func (s *server) depose(dsn string) {
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

// awaitLog waits until the server has said something (again).
func (s *server) awaitLog(what string) {
	s.Helper()
	before := strings.Count(s.Server.Log(), what)
	deadline := time.Now().Add(patience)
	for strings.Count(s.Server.Log(), what) == before {
		if time.Now().After(deadline) {
			s.Fatalf("the server never said %q", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
