package postgres_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// An announced mark is returned until it is settled; a mark that is requested after the
// announcement is another one.
func TestMarksAnnounceAndSettle(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	m := postgres.NewMarks(postgres.NewSession(e.conn()))
	state := func() postgres.MarkState { t.Helper(); return must(m.State(t.Context()))(e) }
	if s := state(); s.Run != "" || s.NextRun != "" || s.Serial != 0 || s.Hold != "" || s.TakeOver {
		t.Fatalf("at first: %+v", s)
	}
	if id := must(m.Identity(t.Context()))(e); len(id) < 5 {
		t.Errorf("identity %q", id)
	}
	first := must(m.Announce(t.Context(), 0))(e)
	if again := must(m.Announce(t.Context(), 0))(e); again.ID != first.ID || again.Serial != 1 {
		t.Errorf("announced %+v, and then %+v", first, again)
	}
	ann := e.user("ann")
	ws := must(e.CreateWorkspace(t.Context(), ann, newWorkspace("one", workspace.DesiredStandby)))(e)
	e.exec(`UPDATE workspaces SET home_ctx = '{"state": "live", "claim": "c"}', deleted_at = now(),
		conditions = '{"storage.volume_ready": {"status": "True", "reason": "Ready"}}' WHERE id = $1`, ws.ID)
	must(e.UndeleteWorkspace(t.Context(), ann, ws.ID))(e)
	if err := m.Settle(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	if s := state(); !s.Wanted || s.Run != first.ID || s.NextRun != "" || s.Serial != 1 {
		t.Errorf("after an undelete: %+v", s)
	}
	second := must(m.Announce(t.Context(), 0))(e)
	if s := state(); s.Wanted || s.NextRun != second.ID || second.Serial != 2 {
		t.Errorf("announced %+v: %+v", second, s)
	}
	if err := m.Settle(t.Context(), first.ID); err == nil {
		t.Error("another mark than the announced one was settled")
	}
	// A take-over announces a mark above the floor.
	third := must(m.Announce(t.Context(), 1000))(e)
	if third.ID == second.ID || third.Serial != 1001 {
		t.Errorf("above 1000: %+v", third)
	}
}

// ApplyRollback changes everything or nothing.
func TestApplyRollbackIsAtomic(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	boss := must(e.CreateUser(t.Context(), postgres.User{Username: "boss", PasswordHash: "x", Admin: true}))(e)
	admin := workspace.Caller{UserID: boss.ID, Username: "boss", Admin: true}
	ann := e.user("ann")
	ws := must(e.CreateWorkspace(t.Context(), ann, newWorkspace("one", workspace.DesiredStandby)))(e)
	taken := must(e.CreateWorkspace(t.Context(), ann, newWorkspace("two", workspace.DesiredStandby)))(e)
	e.exec(`UPDATE workspaces SET deleted_at = now() WHERE id = $1`, taken.ID)
	other := must(e.CreateWorkspace(t.Context(), ann, newWorkspace("two", workspace.DesiredStandby)))(e)
	seen := func(id workspace.ID) *postgres.RollbackRow {
		t.Helper()
		for _, r := range must(e.RollbackState(t.Context(), admin))(e).Rows {
			if r.ID == id {
				return &r
			}
		}
		t.Fatalf("workspace %s is not read", id)
		return nil
	}
	live := workspace.Home{State: workspace.HomeLive, Claim: "c"}
	const lost, ownerless workspace.ID = "019a7c1e-3f00-7abc-8def-0123456789ab", "019a7c1e-3f00-7abc-8def-0123456789ac"
	fresh := func(id workspace.ID, owner string) postgres.RollbackStep {
		return postgres.RollbackStep{
			ID: id, Owner: owner, Name: "made since", ImageRef: "image",
			StorageBackend: workspace.StorageDockerVolume, Home: live, Desired: workspace.DesiredRunning, Runs: true,
		}
	}
	steps := []postgres.RollbackStep{
		{ID: ws.ID, Seen: seen(ws.ID), Home: live, Desired: workspace.DesiredStandby},
		{ID: taken.ID, Seen: seen(taken.ID), Home: live, Desired: workspace.DesiredStandby, Undelete: true},
		fresh(lost, "Carl"), fresh(ownerless, ""),
	}
	if err := e.ApplyRollback(t.Context(), admin, steps); workspace.CodeOf(err) != workspace.CodeNotOnHold {
		t.Fatalf("not on hold: %v", err)
	}
	if err := postgres.NewMarks(postgres.NewSession(e.conn())).Hold(t.Context(), "a test"); err != nil {
		t.Fatal(err)
	}
	if why, since, err := e.OnHold(t.Context()); err != nil || why != "a test" || since.IsZero() {
		t.Fatalf("on hold: %q, %v, %v", why, since, err)
	}
	if err := e.ApplyRollback(t.Context(), ann, steps); workspace.CodeOf(err) != workspace.CodeForbidden {
		t.Fatalf("no administrator: %v", err)
	}
	if _, err := e.RollbackState(t.Context(), ann); workspace.CodeOf(err) != workspace.CodeForbidden {
		t.Fatalf("no administrator: %v", err)
	}
	stale := *steps[1].Seen
	stale.ArchiveKey = "another"
	broken := append(steps[:1:1], postgres.RollbackStep{ID: taken.ID, Seen: &stale, Home: live, Desired: workspace.DesiredStandby})
	if err := e.ApplyRollback(t.Context(), admin, broken); workspace.CodeOf(err) != workspace.CodeOperationInProgress {
		t.Fatalf("changed in the meantime: %v", err)
	}
	if got := seen(ws.ID); got.Home.State != workspace.HomeAbsent {
		t.Fatalf("it was partly applied: %+v", got)
	}
	if err := e.ApplyRollback(t.Context(), admin, steps); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[workspace.ID]postgres.RollbackRow{
		ws.ID:     {Owner: "ann", Name: "one", Desired: workspace.DesiredStandby, Phase: workspace.PhasePending, Home: live},
		taken.ID:  {Owner: "ann", Name: "two (2)", Desired: workspace.DesiredStandby, Phase: workspace.PhasePending, Home: live},
		other.ID:  {Owner: "ann", Name: "two", Desired: workspace.DesiredStandby, Phase: workspace.PhasePending, Home: workspace.Home{State: workspace.HomeAbsent}},
		lost:      {Owner: "Carl", Name: "made since", Desired: workspace.DesiredRunning, Phase: workspace.PhaseRunning, Home: live},
		ownerless: {Owner: "boss", Name: "made since", Desired: workspace.DesiredRunning, Phase: workspace.PhaseRunning, Home: live},
	} {
		got := seen(id)
		if got.Owner != want.Owner || got.Name != want.Name || got.Desired != want.Desired || got.Phase != want.Phase || !got.Home.Equal(want.Home) || got.DeletedAt != nil {
			t.Errorf("%s: %+v, want %+v", id, got, want)
		}
	}
	carl := must(e.UserByName(t.Context(), "carl"))(e)
	if !carl.Disabled || carl.Admin {
		t.Errorf("the user who was missing: %+v", carl)
	}
	if why, _, err := e.OnHold(t.Context()); err != nil || why != "" {
		t.Errorf("still on hold: %q, %v", why, err)
	}
	if !query[bool](e, `SELECT take_over AND restored_at IS NOT NULL FROM gc_state`) {
		t.Error("no take-over was requested, or the waits were not restarted")
	}
}

// An operation that runs in the backup continues after a takeover, even if the backup has
// the workspace's archive as missing. Only a workspace whose volume is gone ends in an error.
func TestTakeoverLeavesNoOperationStuck(t *testing.T) {
	t.Parallel()
	const missing = `{"storage.volume_ready": {"status": "True", "reason": "Ready"}, "infra.container_ready": {"status": "False", "reason": "NoContainer"},
		"storage.archive_ready": {"status": "False", "reason": "ArchiveMissing", "message": "k"}, "policy.healthy": {"status": "False", "reason": "DataLost"}}`
	e := open(t, postgres.Options{})
	boss := must(e.CreateUser(t.Context(), postgres.User{Username: "boss", PasswordHash: "x", Admin: true}))(e)
	admin := workspace.Caller{UserID: boss.ID, Username: "boss", Admin: true}
	ann := e.user("ann")
	type running struct {
		op      workspace.Operation
		home    workspace.HomeState
		desired workspace.DesiredState
		gone    bool // the volume of a live home
	}
	rows := map[workspace.ID]running{}
	for i, r := range []running{
		{workspace.OpRestoring, workspace.HomeFilling, workspace.DesiredStandby, false},
		{workspace.OpArchiving, workspace.HomeArchived, workspace.DesiredArchived, false},
		{workspace.OpArchiving, workspace.HomeDiscarding, workspace.DesiredArchived, false},
		{workspace.OpArchiving, workspace.HomeLive, workspace.DesiredArchived, false},
		{workspace.OpStarting, workspace.HomeLive, workspace.DesiredRunning, false},
		{workspace.OpStopping, workspace.HomeLive, workspace.DesiredStandby, false},
		{workspace.OpStopping, workspace.HomeArchived, workspace.DesiredArchived, false},
		{workspace.OpStopping, workspace.HomeAbsent, workspace.DesiredRunning, false},
		{workspace.OpStarting, workspace.HomeLive, workspace.DesiredRunning, true},
	} {
		w := e.workspace(ann, state{"operation": string(r.op), "op_started_at": time.Now(), "desired_state": string(r.desired), "phase": "STANDBY",
			"home_ctx": `{"state": "` + string(r.home) + `", "claim": "c"}`, "archive_key": fmt.Sprint("k", i), "conditions": strings.ReplaceAll(missing, `"k"`, fmt.Sprintf(`"k%d"`, i))})
		rows[w.ID] = r
	}
	var steps []postgres.RollbackStep
	for _, seen := range must(e.RollbackState(t.Context(), admin))(e).Rows {
		if rows[seen.ID].gone { // what package rollback writes of a workspace that it keeps
			steps = append(steps, postgres.RollbackStep{ID: seen.ID, Seen: &seen, Unchanged: true})
		}
	}
	if err := postgres.NewMarks(postgres.NewSession(e.conn())).Hold(t.Context(), "a test"); err != nil {
		t.Fatal(err)
	}
	if err := e.ApplyRollback(t.Context(), admin, steps); err != nil {
		t.Fatal(err)
	}
	for id, r := range rows {
		w := e.read(id)
		in := lifecycle.Input{Row: w, Now: time.Now(), UpSince: time.Now().Add(-time.Minute), BucketUpSince: time.Now().Add(-time.Minute), ClaimID: "fresh", Policy: lifecycle.DefaultPolicy()}
		in.Obs.ContainerKnown, in.Obs.VolumeKnown = true, true
		if !r.gone && r.home != workspace.HomeAbsent {
			in.Obs.Volume = &lifecycle.Volume{Claim: "c", Seeded: r.home == workspace.HomeLive || r.home == workspace.HomeArchived}
		}
		var out lifecycle.Result
		for range 3 {
			in.Obs.Archive = lifecycle.ArchiveUnknown
			if lifecycle.AsksBucket(in.Row) {
				in.Obs.Archive = lifecycle.ArchivePresent
			}
			out = lifecycle.Judge(in)
			in.Row = out.Row
		}
		if lost := out.Row.ErrorReason == workspace.ErrDataLost; lost != r.gone {
			t.Errorf("%+v: after the takeover %s, error %q %q", r, out.Row.Phase, out.Row.ErrorReason, out.Row.ErrorMessage)
		}
	}
}
