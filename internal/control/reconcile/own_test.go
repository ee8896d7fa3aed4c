package reconcile_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"codehub/internal/archive"
	"codehub/internal/control/reconcile"
	"codehub/internal/storage/store"
	"codehub/internal/testing/archivetest"
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
				w.cancel(id)
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
