package reconcile_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"codehub/internal/archive"
	"codehub/internal/archive/archivetest"
	"codehub/internal/archive/store"
	"codehub/internal/reconcile"
	"codehub/internal/workspace"
)

var someUIDs = workspace.UIDRange{First: 1_500_000, Last: 1_500_999}

// owners returns the owner of each file of a home.
func (w *world) owners(id workspace.ID) map[string]uint32 {
	w.Helper()
	out := map[string]uint32{}
	err := w.fake.Edit(id, func(folder string) error {
		for name, state := range archivetest.Snapshot(w, folder) {
			out[filepath.Clean(name)] = state.UID
		}
		return nil
	})
	if err != nil {
		w.Fatal(err)
	}
	return out
}

func (w *world) expectOwner(id workspace.ID, uid uint32) {
	w.Helper()
	for name, of := range w.owners(id) {
		if name != "root's" && of != uid {
			w.Errorf("%s belongs to %d, want %d", name, of, uid)
		}
	}
	if home := w.row(id).Home; !home.BelongsTo(uid) {
		w.Errorf("the recorded home is %+v, want uid %d", home, uid)
	}
}

// interruptOwner makes changes of owners end half-way, as a crash does.
func (w *world) interruptOwner() (interrupted chan workspace.ID) {
	interrupted = make(chan workspace.ID, 100)
	w.fake.SetBefore(func(ctx context.Context, op string, id workspace.ID) error {
		if op != "OwnHome/half" {
			return nil
		}
		interrupted <- id
		<-ctx.Done()
		return ctx.Err()
	})
	return interrupted
}

// A change of the range completes what changes to other ranges have left half done.
func TestRangeChangesDuringChangeOfOwner(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.uids = someUIDs })
	stop := w.lead()
	used := w.filled("used", "work")
	w.want(used, workspace.DesiredStandby, false)
	w.awaitPhase(used, workspace.PhaseStandby)
	other := workspace.UIDRange{First: 1_700_000, Last: 1_700_999}
	var fresh workspace.ID
	for n, uids := range []workspace.UIDRange{other, {First: 1_800_000, Last: 1_800_999}, someUIDs} {
		stop()
		interrupted := w.interruptOwner()
		w.uids = uids
		stop = w.lead()
		if n == 0 {
			fresh = w.create("fresh", workspace.DesiredRunning)
			w.want(used, workspace.DesiredRunning, false)
		}
		for seen := map[workspace.ID]bool{}; len(seen) < 2; {
			select {
			case id := <-interrupted:
				seen[id] = true
			case <-t.Context().Done():
				t.Fatal(t.Context().Err())
			}
		}
	}
	stop()
	owners := map[uint32]bool{}
	for _, id := range []workspace.ID{used, fresh} {
		for _, uid := range w.owners(id) {
			owners[uid] = true
		}
	}
	if len(owners) < 3 {
		t.Errorf("the interrupted changes left the owners %v", owners)
	}
	w.fake.SetBefore(nil)
	w.lead()
	for _, id := range []workspace.ID{used, fresh} {
		w.awaitPhase(id, workspace.PhaseRunning)
		w.expectOwner(id, someUIDs.Of(w.row(id)))
	}
}

// Each workspace has a uid of its own; its archive does not depend on it.
func TestWorkspacesHaveUIDs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.uids = someUIDs })
	stop := w.lead()
	one, two := w.filled("one", "work"), w.filled("two", "work")
	first, second := someUIDs.Of(w.row(one)), someUIDs.Of(w.row(two))
	if first == second {
		t.Fatalf("both workspaces have the uid %d", first)
	}
	for id, uid := range map[workspace.ID]uint32{one: first, two: second} {
		w.want(id, workspace.DesiredStandby, false)
		w.awaitPhase(id, workspace.PhaseStandby)
		if err := w.fake.Edit(id, func(folder string) error { return os.WriteFile(filepath.Join(folder, "root's"), nil, 0o600) }); err != nil {
			t.Fatal(err)
		}
		w.expectOwner(id, uid)
		w.archived(id)
		w.expectArchivedOwner(id)
		w.opened(id, "work")
		w.want(id, workspace.DesiredStandby, false)
		w.awaitPhase(id, workspace.PhaseStandby)
		w.expectOwner(id, uid)
		if of := w.owners(id)["root's"]; of != 0 {
			t.Errorf("a file of root belongs to %d", of)
		}
	}

	// Another range holds from the next start, and a home that is archived before it is
	// started gets its owner as well.
	stop()
	w.uids = workspace.UIDRange{First: 1_700_000, Last: 1_700_999}
	w.lead()
	w.opened(one, "work")
	w.want(one, workspace.DesiredStandby, false)
	w.awaitPhase(one, workspace.PhaseStandby)
	w.expectOwner(one, w.uids.Of(w.row(one)))
	w.archived(two)
	w.expectArchivedOwner(two)
}

// expectArchivedOwner checks that the files of the workspace belong to ArchivedUID in its
// archive.
func (w *world) expectArchivedOwner(id workspace.ID) {
	w.Helper()
	r, err := store.NewFolder(w.archives.folder).Get(w.Context(), w.row(id).ArchiveKey, 0)
	if err != nil {
		w.Fatal(err)
	}
	defer r.Close()
	to := w.TempDir()
	if _, err := archive.Unpack(w.Context(), r, to, archive.UnpackOptions{}); err != nil {
		w.Fatal(err)
	}
	for name, state := range archivetest.Snapshot(w, to) {
		want := uint32(workspace.ArchivedUID)
		if filepath.Clean(name) == "root's" {
			want = 0
		}
		if state.UID != want || state.GID != want {
			w.Errorf("in the archive %s belongs to %d:%d, want %d", name, state.UID, state.GID, want)
		}
	}
}

// A home of a version without uids is given to its workspace once, and keeps what belongs
// to others.
func TestHomeOfEarlierVersionGetsUID(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stop := w.lead()
	id := w.filled("one", "work")
	w.want(id, workspace.DesiredStandby, false)
	w.awaitPhase(id, workspace.PhaseStandby)
	w.expectOwner(id, workspace.ArchivedUID) // as the migration records it
	if err := w.fake.Edit(id, func(folder string) error { return os.WriteFile(filepath.Join(folder, "root's"), nil, 0o600) }); err != nil {
		t.Fatal(err)
	}
	stop()
	w.uids = someUIDs
	w.lead()
	before := w.fake.Calls("OwnHome")
	for range 2 {
		w.opened(id, "work")
		w.want(id, workspace.DesiredStandby, false)
		w.awaitPhase(id, workspace.PhaseStandby)
	}
	w.expectOwner(id, someUIDs.Of(w.row(id)))
	if of := w.owners(id)["root's"]; of != 0 {
		t.Errorf("a file of root belongs to %d", of)
	}
	if n := w.fake.Calls("OwnHome") - before; n != 1 {
		t.Errorf("the home was given to its workspace %d times", n)
	}
}

// A crash after the change of the owner, before its record, repeats the change, also if the
// workspace is archived next.
func TestOwnHomeAfterCrash(t *testing.T) {
	t.Parallel()
	for _, next := range []workspace.DesiredState{workspace.DesiredRunning, workspace.DesiredArchived} {
		t.Run(string(next), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(w *world) { w.uids = someUIDs })
			g := w.gate(reconcile.OwnStep)
			w.step = g.hold
			stop := w.lead()
			id := w.create("one", workspace.DesiredRunning)
			w.reached(g)
			time.AfterFunc(10*time.Millisecond, g.letGo) // the executor has ended by then
			stop()
			if uid := w.row(id).Home.UID; uid != 0 {
				t.Errorf("the crash came too late: %d is recorded", uid)
			}
			if next == workspace.DesiredArchived {
				if _, err := w.DB.RequestCancel(t.Context(), w.owner, id); err != nil {
					t.Fatal(err)
				}
			}
			w.lead()
			if next == workspace.DesiredArchived {
				w.awaitPhase(id, workspace.PhaseStandby)
				w.archived(id)
				w.expectArchivedOwner(id)
				return
			}
			w.awaitPhase(id, workspace.PhaseRunning)
			w.expectOwner(id, someUIDs.Of(w.row(id)))
		})
	}
}

// A home that cannot be given to its workspace is neither started nor archived, and the
// error says so.
func TestOwnHomeFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.uids = someUIDs })
	broken := errors.New("the disk is broken")
	w.fake.SetBefore(func(_ context.Context, op string, _ workspace.ID) error {
		if op == "OwnHome" {
			return broken
		}
		return nil
	})
	w.lead()
	id := w.create("one", workspace.DesiredRunning)
	ws := w.await(id, "failed", func(ws workspace.Workspace) bool { return ws.ErrorCount > 0 })
	if ws.ErrorMessage == "" || w.fake.Calls("StartContainer") > 0 {
		t.Errorf("%q after %d starts", ws.ErrorMessage, w.fake.Calls("StartContainer"))
	}
	w.fake.SetBefore(nil)
	w.await(id, "running", func(ws workspace.Workspace) bool { return ws.Phase == workspace.PhaseRunning })
}

// A workspace that an earlier version was starting is started again as its uid.
func TestStartOfEarlierVersionIsRepeated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stop := w.lead()
	w.fake.SetBefore(func(_ context.Context, op string, _ workspace.ID) error {
		if op == "Probe" {
			return errors.New("not yet")
		}
		return nil
	})
	id := w.create("one", workspace.DesiredRunning)
	w.awaitTrue("with a container", func() bool {
		list, err := w.fake.Containers(t.Context())
		return err == nil && len(list) == 1
	})
	stop()
	w.fake.SetBefore(nil)
	w.uids = someUIDs
	w.lead()
	if ws := w.awaitPhase(id, workspace.PhaseRunning); ws.ErrorCount != 0 {
		t.Errorf("%d failures: %s", ws.ErrorCount, ws.ErrorMessage)
	}
	w.expectOwner(id, someUIDs.Of(w.row(id)))
}
