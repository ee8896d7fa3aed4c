package postgres_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// archiving returns a workspace that is being archived, and the archive of its operation.
func (e *env) archiving(owner workspace.Caller, s state) (workspace.Workspace, postgres.Stored) {
	e.Helper()
	all := state{
		"operation": "ARCHIVING", "desired_state": "ARCHIVED", "phase": "STANDBY", "conditions": noContainer,
		"home_ctx": `{"state": "live", "claim": "home"}`,
	}
	for column, v := range s {
		all[column] = v
	}
	w := e.workspace(owner, all)
	return w, postgres.Stored{
		ID: w.ID, Claim: w.OpID, Key: fmt.Sprintf("installation/%s/%s/home.tar.zst", w.ID, w.OpID), Digest: "abc", Size: 7, Entries: 3, Skipped: 2,
	}
}

func TestOwner(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	c := postgres.NewController(postgres.NewSession(e.conn()))
	w := e.workspace(e.user("ann"), nil)
	if got := must(c.Owner(t.Context(), w.ID))(t); got != "ann" {
		t.Errorf("%q", got)
	}
	_, err := c.Owner(t.Context(), workspace.ID(uuid.NewString()))
	wantCode(t, err, workspace.CodeNotFound)
}

// An archive is recorded before it is made, once, and only for the running claim.
func TestClaimArchive(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	c := postgres.NewController(postgres.NewSession(e.conn()))
	ann := e.user("ann")
	recorded := func(key string) int { return query[int](e, `SELECT count(*) FROM archives WHERE key = $1`, key) }
	for _, op := range []string{"ARCHIVING", "CREATE_EMPTY_ARCHIVE"} {
		w, a := e.archiving(ann, state{"operation": op})
		for range 2 {
			if !must(c.ClaimArchive(t.Context(), w.ID, w.OpID, a.Key))(t) || recorded(a.Key) != 1 {
				t.Errorf("%s is not recorded", op)
			}
		}
		if must(c.ClaimArchive(t.Context(), w.ID, uuid.NewString(), a.Key+"x"))(t) || recorded(a.Key+"x") != 0 {
			t.Errorf("%s: an ended claim is recorded", op)
		}
	}
	w, a := e.archiving(ann, state{"operation": "RESTORING"})
	if must(c.ClaimArchive(t.Context(), w.ID, w.OpID, a.Key))(t) || recorded(a.Key) != 0 {
		t.Error("recorded for an operation that makes no archive")
	}
	if must(c.ClaimArchive(t.Context(), workspace.ID(uuid.NewString()), uuid.NewString(), a.Key))(t) {
		t.Error("recorded for no workspace")
	}
}

func TestStoreArchive(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	c := postgres.NewController(postgres.NewSession(e.conn()))
	ann := e.user("ann")
	w, a := e.archiving(ann, nil)
	earlier, _ := e.archive(w.ID, state{"verified_at": time.Now(), "superseded_at": time.Now().Add(-time.Hour)})
	older, _ := e.archive(w.ID, state{"verified_at": time.Now()})
	broken, _ := e.archive(w.ID, nil)
	e.set(w.ID, state{"archive_key": earlier})
	must(c.ClaimArchive(t.Context(), w.ID, w.OpID, a.Key))(t)
	e.exec(`UPDATE archives SET unprotected_since = now() WHERE key = $1`, a.Key)

	before := query[time.Time](e, `SELECT clock_timestamp()`)
	for range 2 { // the second call finds the home archived
		stored := must(c.StoreArchive(t.Context(), a))(t)
		got := e.read(w.ID)
		if got.ArchiveKey != a.Key || got.ArchiveDigest != "abc" || got.ArchiveSize != 7 ||
			query[int64](e, `SELECT entries * 10 + skipped FROM archives WHERE key = $1`, a.Key) != 32 ||
			!got.Home.Equal(workspace.Home{State: workspace.HomeArchived, Claim: "home"}) || got.Operation != workspace.OpArchiving || got.OpID != w.OpID {
			t.Fatalf("stored %v: %+v", stored, got)
		}
	}
	type generation struct {
		verified, superseded, unprotected *time.Time
		digest                            string
	}
	read := func(key string) (g generation) {
		t.Helper()
		err := e.raw.QueryRow(t.Context(), `SELECT verified_at, superseded_at, unprotected_since, digest FROM archives WHERE key = $1`, key).
			Scan(&g.verified, &g.superseded, &g.unprotected, &g.digest)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	if g := read(a.Key); g.verified == nil || g.superseded != nil || g.unprotected != nil || g.digest != "abc" {
		t.Errorf("the new one: %+v", g)
	}
	if g := read(earlier); g.superseded == nil || g.superseded.Before(before) {
		t.Errorf("the previous one: %+v", g)
	}
	if g := read(older); g.superseded == nil {
		t.Errorf("an abandoned one: %+v", g)
	}
	if g := read(broken); g.superseded != nil {
		t.Errorf("one that was never complete: %+v", g)
	}
}

// A request in between keeps the home: nothing of the archive is stored then, in no table.
func TestStoreArchiveAfterInterference(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	c := postgres.NewController(postgres.NewSession(e.conn()))
	ann := e.user("ann")
	for name, s := range map[string]state{
		"another claim":             {"op_id": uuid.NewString()},
		"the operation has ended":   {"operation": "NONE"},
		"another operation":         {"operation": "RESTORING", "op_id": nil},
		"the home is not live":      {"home_ctx": `{"state": "filling", "claim": "home"}`},
		"the home is being removed": {"home_ctx": `{"state": "archived", "claim": "home"}`},
		"desired STANDBY":           {"desired_state": "STANDBY"},
		"desired RUNNING":           {"desired_state": "RUNNING"},
		"deleted":                   {"deleted_at": time.Now()},
		"cancelled":                 {"cancel_requested_at": time.Now()},
		"queued RUNNING":            {"next_desired_state": "RUNNING"},
		"queued STANDBY":            {"next_desired_state": "STANDBY"},
		"queued deletion":           {"next_desired_state": "DELETED"},
		"a container exists":        {"conditions": container},
		"a container has exited":    {"conditions": exited},
		"containers are unknown":    {"conditions": `{}`},
	} {
		w, a := e.archiving(ann, nil)
		must(c.ClaimArchive(t.Context(), w.ID, w.OpID, a.Key))(t)
		if s["operation"] == "RESTORING" {
			s = state{"operation": "RESTORING", "op_id": w.OpID}
		}
		e.set(w.ID, s)
		before := e.row(w.ID)
		if must(c.StoreArchive(t.Context(), a))(t) {
			t.Errorf("%s: stored", name)
		}
		if e.row(w.ID) != before || query[bool](e, `SELECT verified_at IS NOT NULL FROM archives WHERE key = $1`, a.Key) {
			t.Errorf("%s: something was written", name)
		}
	}
	if must(c.StoreArchive(t.Context(), postgres.Stored{ID: workspace.ID(uuid.NewString()), Claim: uuid.NewString(), Key: "k"}))(t) {
		t.Error("stored for no workspace")
	}
	// A request to archive or a forced stop does not prevent it.
	for name, s := range map[string]state{
		"queued ARCHIVED": {"next_desired_state": "ARCHIVED"},
		"a forced stop":   {"force_stop_requested_at": time.Now()},
	} {
		w, a := e.archiving(ann, nil)
		e.set(w.ID, s)
		if !must(c.StoreArchive(t.Context(), a))(t) {
			t.Errorf("%s: not stored", name)
		}
	}
}

// A workspace without a home has no data to lose, so only the claim counts.
func TestStoreEmptyArchive(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	c := postgres.NewController(postgres.NewSession(e.conn()))
	w, a := e.archiving(e.user("ann"), state{
		"operation": "CREATE_EMPTY_ARCHIVE", "home_ctx": `{"state": "absent"}`, "phase": "PENDING", "conditions": nothing,
		"next_desired_state": "RUNNING",
	})
	if !must(c.StoreArchive(t.Context(), a))(t) {
		t.Fatal("not stored")
	}
	if got := e.read(w.ID); got.ArchiveKey != a.Key || got.Home.State != workspace.HomeAbsent {
		t.Errorf("%+v", got)
	}
}

// An archive that garbage collection has begun to remove does not become current.
func TestStoreArchiveBeingRemoved(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	c := postgres.NewController(postgres.NewSession(e.conn()))
	w, a := e.archiving(e.user("ann"), nil)
	must(c.ClaimArchive(t.Context(), w.ID, w.OpID, a.Key))(t)
	e.exec(`UPDATE archives SET deleting_at = now() WHERE key = $1`, a.Key)
	before := e.row(w.ID)
	if stored, err := c.StoreArchive(t.Context(), a); err == nil || stored {
		t.Errorf("stored %v, %v", stored, err)
	}
	if e.row(w.ID) != before {
		t.Error("something was written")
	}
}

// A decision on a row from before the archive was stored reverts none of it.
func TestStoredArchiveStays(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	c := postgres.NewController(postgres.NewSession(e.conn()))
	ann := e.user("ann")
	now := soon(0)
	for name, c1 := range map[string]struct {
		change func(*workspace.Workspace)
		claim  bool
		lands  bool
	}{
		"conditions": {func(w *workspace.Workspace) {
			w.Conditions = w.Conditions.With(workspace.ArchiveReady, false, workspace.ReasonNoArchive, "", now)
		}, false, true},
		"progress": {func(w *workspace.Workspace) { w.Progress = &workspace.Progress{Step: "packing"} }, false, true},
		"a cancellation": {func(w *workspace.Workspace) {
			w.Operation, w.OpID, w.OpStartedAt = workspace.OpNone, "", nil
		}, true, false},
		"a failure": {func(w *workspace.Workspace) {
			w.Operation, w.OpID, w.OpStartedAt = workspace.OpNone, "", nil
			w.ErrorReason, w.ErrorMessage, w.ErrorCount, w.Phase = workspace.ErrDataLost, "the volume is gone", 1, workspace.PhaseError
		}, true, false},
	} {
		w, a := e.archiving(ann, nil)
		seen := e.read(w.ID)
		if !must(c.StoreArchive(t.Context(), a))(t) {
			t.Fatal("not stored")
		}
		next := seen
		c1.change(&next)
		if landed := apply(t, c, postgres.Change{Seen: seen, Next: next, Claim: c1.claim})[0]; landed != c1.lands {
			t.Errorf("%s: landed %v", name, landed)
		}
		got := e.read(w.ID)
		if got.ArchiveKey != a.Key || got.ArchiveDigest != a.Digest || got.Home.State != workspace.HomeArchived || got.Operation != workspace.OpArchiving {
			t.Errorf("%s reverted it: %+v", name, got)
		}
	}
}

// Only the claim that stored the archive can make the home live again, and it cannot store an
// archive afterwards.
func TestKeepHomeRequiresTheClaim(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	c := postgres.NewController(postgres.NewSession(e.conn()))
	ann := e.user("ann")
	w, a := e.archiving(ann, nil)
	keep := func(claim, home string) bool {
		t.Helper()
		return must(c.KeepHome(t.Context(), w.ID, claim, home))(t)
	}
	state := func() workspace.HomeState { t.Helper(); return e.read(w.ID).Home.State }
	if keep(w.OpID, "home") || state() != workspace.HomeLive {
		t.Error("a live home was kept")
	}
	must(c.StoreArchive(t.Context(), a))(t)
	stored := state()
	if keep(uuid.NewString(), "home") || keep(w.OpID, "another") || state() != stored {
		t.Errorf("kept by another claim: %s", state())
	}
	e.exec(`UPDATE workspaces SET deleted_at = now() WHERE id = $1`, w.ID)
	if keep(w.OpID, "home") || state() != stored {
		t.Errorf("kept from a deletion: %s", state())
	}
	e.exec(`UPDATE workspaces SET deleted_at = NULL WHERE id = $1`, w.ID)
	if !keep(w.OpID, "home") {
		t.Error("not kept")
	}
	if got := e.read(w.ID); !got.Home.Equal(workspace.Home{State: workspace.HomeLive, Claim: "home"}) || got.ArchiveKey != a.Key || got.OpID != w.OpID ||
		got.CancelRequestedAt == nil || got.DesiredState != workspace.DesiredArchived {
		t.Errorf("kept: %+v", got)
	}
	if must(c.StoreArchive(t.Context(), a))(t) || state() != workspace.HomeLive {
		t.Error("stored again")
	}
}

// A uid is recorded before and after the home is given to it, by the claim alone.
func TestUIDOfHomeIsRecorded(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	c := postgres.NewController(postgres.NewSession(e.conn()))
	w, _ := e.archiving(e.user("ann"), nil)
	filled := must(c.RecordFilling(t.Context(), w.ID, w.OpID, "home", true))(t)
	want := workspace.Home{State: workspace.HomeLive, Claim: "home", FromImage: true}
	if got := e.read(w.ID).Home; !filled || !got.Equal(want) {
		t.Errorf("filled %v: %+v", filled, got)
	}
	for _, uid := range []uint32{7000, 8000, 7000} {
		home, planned, err := c.PlanUID(t.Context(), w.ID, w.OpID, "home", uid)
		if err != nil || !planned || !home.Equal(e.read(w.ID).Home) || home.BelongsTo(uid) || !slices.Contains(home.UserIDs(), uid) {
			t.Errorf("planned %v: %+v, %v", planned, home, err)
		}
	}
	if got := e.read(w.ID).Home.UserIDs(); !slices.Equal(got, []uint32{0, workspace.ArchivedUID, 7000, 8000}) {
		t.Errorf("the files may belong to %v", got)
	}
	before := e.row(w.ID)
	for _, claim := range [][2]string{{uuid.NewString(), "home"}, {w.OpID, "another"}} {
		_, planned, err1 := c.PlanUID(t.Context(), w.ID, claim[0], claim[1], 9000)
		_, recorded, err2 := c.RecordUID(t.Context(), w.ID, claim[0], claim[1], 9000)
		filled, err3 := c.RecordFilling(t.Context(), w.ID, claim[0], claim[1], false)
		if err := errors.Join(err1, err2, err3); planned || recorded || filled || err != nil || e.row(w.ID) != before {
			t.Errorf("claim %v: planned %v, recorded %v, filled %v: %v", claim, planned, recorded, filled, err)
		}
	}
	home, recorded, err := c.RecordUID(t.Context(), w.ID, w.OpID, "home", 7000)
	if err != nil || !recorded || !home.BelongsTo(7000) || !home.Equal(e.read(w.ID).Home) {
		t.Errorf("recorded %v: %+v, %v", recorded, home, err)
	}
}
