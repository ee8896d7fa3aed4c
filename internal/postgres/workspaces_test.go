package postgres_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

func TestCreateWorkspace(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	ann, bob := e.user("ann"), e.user("bob")
	n := newWorkspace("한글 <b>", workspace.DesiredRunning)
	n.Description, n.Memo, n.StandbyTTL, n.ArchiveTTL = "d", "m", ptr(0), ptr(60)
	before := soon(-time.Minute)
	w := must(e.CreateWorkspace(ctx, ann, n))(t)

	if !workspace.ValidID(string(w.ID)) || uuid.MustParse(string(w.ID)).Version() != 7 {
		t.Errorf("id %q", w.ID)
	}
	for _, at := range []time.Time{w.CreatedAt, w.UpdatedAt, w.PhaseChangedAt} {
		if at.Before(before) || at.Location() != time.UTC {
			t.Errorf("a time of %v", at)
		}
	}
	want := workspace.Workspace{
		ID: w.ID, OwnerID: ann.UserID, Name: "한글 <b>", Description: "d", Memo: "m", ImageRef: "codehub/workspace:latest",
		StorageBackend: "docker-volume",
		Home:           workspace.Home{State: workspace.HomeAbsent}, Conditions: workspace.Conditions{},
		Phase: workspace.PhasePending, Operation: workspace.OpNone, DesiredState: workspace.DesiredRunning,
		StandbyTTL: ptr(0), ArchiveTTL: ptr(60),
		CreatedAt: w.CreatedAt, UpdatedAt: w.UpdatedAt, PhaseChangedAt: w.PhaseChangedAt,
	}
	if d := cmp.Diff(want, w); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(w, must(e.Workspace(ctx, ann, w.ID))(t)); d != "" {
		t.Errorf("read back: %s", d)
	}
	if d := cmp.Diff([]string{"ann workspace.create"}, e.audited(string(w.ID))); d != "" {
		t.Error(d)
	}

	// Names are unique for each owner, as typed, among those not deleted.
	_, err := e.CreateWorkspace(ctx, ann, n)
	wantCode(t, err, workspace.CodeNameTaken)
	must(e.CreateWorkspace(ctx, bob, n))(t)
	must(e.CreateWorkspace(ctx, ann, newWorkspace("한글 <B>", workspace.DesiredStandby)))(t)
	must(e.DeleteWorkspace(ctx, ann, w.ID, false))(t)
	must(e.CreateWorkspace(ctx, ann, n))(t)

	for what, change := range map[string]func(*postgres.NewWorkspace){
		"no name":         func(n *postgres.NewWorkspace) { n.Name = "" },
		"a long name":     func(n *postgres.NewWorkspace) { n.Name = strings.Repeat("한", 256) },
		"a NUL":           func(n *postgres.NewWorkspace) { n.Memo = "a\x00" },
		"no UTF-8":        func(n *postgres.NewWorkspace) { n.Description = "\xff" },
		"no image":        func(n *postgres.NewWorkspace) { n.ImageRef = "" },
		"a long image":    func(n *postgres.NewWorkspace) { n.ImageRef = strings.Repeat("i", 513) },
		"a negative TTL":  func(n *postgres.NewWorkspace) { n.StandbyTTL = ptr(-1) },
		"a deletion":      func(n *postgres.NewWorkspace) { n.Desired = workspace.DesiredDeleted },
		"unknown backend": func(n *postgres.NewWorkspace) { n.StorageBackend = "nfs" },
	} {
		n := newWorkspace("bad", workspace.DesiredStandby)
		change(&n)
		_, err := e.CreateWorkspace(ctx, ann, n)
		if workspace.CodeOf(err) != workspace.CodeInvalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	long := newWorkspace(strings.Repeat("한", 255), workspace.DesiredStandby)
	must(e.CreateWorkspace(ctx, ann, long))(t)
	for _, who := range []workspace.Caller{{}, workspace.System, {UserID: uuid.NewString()}} {
		_, err := e.CreateWorkspace(ctx, who, newWorkspace("n", workspace.DesiredStandby))
		wantCode(t, err, workspace.CodeForbidden)
	}
}

// Only the owner can read or change a workspace, in any state. A refused request
// writes nothing. A workspace that does not exist is not found for everyone.
func TestOnlyTheOwnerHasAccess(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{PerUser: 2}})
	ctx := t.Context()
	ann := e.user("ann")
	bob := e.user("bob")
	bob.Admin = true // administrators have no access either
	calls := map[string]func(who workspace.Caller, id workspace.ID) error{
		"Workspace": func(c workspace.Caller, id workspace.ID) error { _, err := e.Workspace(ctx, c, id); return err },
		"PatchWorkspace": func(c workspace.Caller, id workspace.ID) error {
			_, err := e.PatchWorkspace(ctx, c, id, postgres.Patch{Edit: workspace.Edit{Name: ptr("mine")}, Desired: ptr(workspace.DesiredRunning), Queue: true})
			return err
		},
		"DeleteWorkspace": func(c workspace.Caller, id workspace.ID) error {
			_, err := e.DeleteWorkspace(ctx, c, id, true)
			return err
		},
		"UndeleteWorkspace": func(c workspace.Caller, id workspace.ID) error { _, err := e.UndeleteWorkspace(ctx, c, id); return err },
		"RequestRecover": func(c workspace.Caller, id workspace.ID) error {
			_, err := e.RequestRecover(ctx, c, id, workspace.RecoverAfresh)
			return err
		},
		"RequestCancel":    func(c workspace.Caller, id workspace.ID) error { _, err := e.RequestCancel(ctx, c, id); return err },
		"Stop":             func(c workspace.Caller, id workspace.ID) error { _, err := e.Stop(ctx, c, id); return err },
		"RequestForceStop": func(c workspace.Caller, id workspace.ID) error { _, err := e.RequestForceStop(ctx, c, id); return err },
		"Wake":             func(c workspace.Caller, id workspace.ID) error { _, err := e.Wake(ctx, c, id); return err },
	}
	states := map[string]state{
		"pending":  nil,
		"standby":  {"phase": "STANDBY", "conditions": noContainer},
		"running":  {"phase": "RUNNING", "desired_state": "RUNNING", "conditions": container},
		"starting": {"phase": "STANDBY", "operation": "STARTING", "desired_state": "RUNNING"},
		"error":    {"phase": "ERROR", "error_reason": "Timeout"},
		"deleted":  {"phase": "DELETING", "deleted_at": time.Now(), "conditions": noContainer},
	}
	for name, s := range states {
		w := e.workspace(ann, s)
		for call, f := range calls {
			before, entries := e.row(w.ID), len(e.audited(string(w.ID)))
			for _, who := range []workspace.Caller{bob, {}, {UserID: uuid.NewString()}} {
				if err := f(who, w.ID); workspace.CodeOf(err) != workspace.CodeForbidden {
					t.Errorf("%s by another user in %s: %v", call, name, err)
				}
			}
			if d := cmp.Diff(before, e.row(w.ID)); d != "" || len(e.audited(string(w.ID))) != entries {
				t.Errorf("%s by another user in %s wrote: %s", call, name, d)
			}
		}
	}
	gone := e.workspace(ann, state{"phase": "DELETED", "deleted_at": time.Now()})
	for call, f := range calls {
		for _, id := range []workspace.ID{"", "x", "../../etc", workspace.ID(uuid.NewString())} {
			if err := f(ann, id); workspace.CodeOf(err) != workspace.CodeNotFound {
				t.Errorf("%s of %q: %v", call, id, err)
			}
		}
		want := workspace.CodeNotFound
		if call == "UndeleteWorkspace" {
			want = workspace.CodeGone
		}
		if err := f(ann, gone.ID); workspace.CodeOf(err) != want {
			t.Errorf("%s of a workspace that does not exist: %v", call, err)
		}
	}
	if list, _, err := e.ListWorkspaces(ctx, bob, postgres.Filter{}); err != nil || len(list) != 0 {
		t.Errorf("bob sees %v (%v)", list, err)
	}
	_, _, err := e.ListWorkspaces(ctx, workspace.Caller{}, postgres.Filter{})
	wantCode(t, err, workspace.CodeForbidden)
}

func TestListWorkspaces(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	ann := e.user("ann")
	add := func(name, description string, s state) string {
		n := newWorkspace(name, workspace.DesiredStandby)
		n.Description = description
		w := must(e.CreateWorkspace(ctx, ann, n))(t)
		e.set(w.ID, s)
		return name
	}
	add("alpha", "the 100% one", nil)
	add("Beta_x", "", state{"phase": "STANDBY"})
	add("betaax", `back\slash`, state{"phase": "STANDBY"})
	add("gone", "", state{"phase": "DELETED", "deleted_at": time.Now()})
	add("deleted", "", state{"phase": "DELETING", "deleted_at": time.Now(), "conditions": noContainer, "home_ctx": `{"state": "live"}`})
	add("late, with its volume", "", state{"phase": "DELETING", "deleted_at": time.Now().Add(-2 * time.Hour), "conditions": container, "home_ctx": `{"state": "live"}`})
	add("archived", "", state{"phase": "DELETING", "deleted_at": time.Now(), "conditions": nothing, "archive_key": "k"})
	add("late, archived", "", state{"phase": "DELETING", "deleted_at": time.Now().Add(-2 * time.Hour), "conditions": nothing, "archive_key": "k"})
	add("removed", "", state{"phase": "DELETING", "deleted_at": time.Now(), "conditions": nothing, "archive_key": "k", "home_ctx": `{"state": "absent", "claim": "c"}`})
	add("nothing left", "", state{"phase": "DELETING", "deleted_at": time.Now(), "conditions": nothing})
	add("being removed", "", state{"phase": "DELETING", "deleted_at": time.Now(), "conditions": noContainer, "home_ctx": `{"state": "deleting"}`})
	must(e.CreateWorkspace(ctx, e.user("bob"), newWorkspace("bob's alpha", workspace.DesiredStandby)))(t)

	for _, c := range []struct {
		f    postgres.Filter
		want []string
	}{
		{postgres.Filter{}, []string{"betaax", "Beta_x", "alpha"}},
		{postgres.Filter{Query: "BETA"}, []string{"betaax", "Beta_x"}},
		{postgres.Filter{Query: "a_x"}, []string{"Beta_x"}},
		{postgres.Filter{Query: "100%"}, []string{"alpha"}},
		{postgres.Filter{Query: "%"}, []string{"alpha"}},
		{postgres.Filter{Query: `k\s`}, []string{"betaax"}},
		{postgres.Filter{Query: `\`}, []string{"betaax"}},
		{postgres.Filter{Query: "'; --"}, nil},
		{postgres.Filter{Phase: workspace.PhaseStandby}, []string{"betaax", "Beta_x"}},
		{postgres.Filter{Phase: workspace.PhaseStandby, Query: "x"}, []string{"betaax", "Beta_x"}},
		{postgres.Filter{Deleted: true}, []string{"late, archived", "archived", "late, with its volume", "deleted"}},
	} {
		list, next, err := e.ListWorkspaces(ctx, ann, c.f)
		if err != nil || next != "" {
			t.Fatal(c.f, next, err)
		}
		if d := cmp.Diff(c.want, names(list)); d != "" {
			t.Errorf("%+v: %s", c.f, d)
		}
	}
	// Administrators see the number of workspaces in the list of deleted workspaces.
	if n := must(e.Overview(ctx, workspace.System))(t).Phases["DELETING"]; n != 4 {
		t.Errorf("%d deleted workspaces are counted, 4 are in the list", n)
	}
	for _, w := range must3(e.ListWorkspaces(ctx, ann, postgres.Filter{Deleted: true}))(t) {
		must(e.UndeleteWorkspace(ctx, ann, w.ID))(t) // every listed workspace can be undeleted
	}
	if all := must3(e.ListWorkspaces(ctx, workspace.System, postgres.Filter{}))(t); len(all) != 8 {
		t.Errorf("System sees %v", names(all))
	}
}

// The order by recent use continues over the pages of a list.
func TestListRecentPages(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	ann := e.user("ann")
	now := time.Now().UTC().Truncate(time.Microsecond)
	for name, s := range map[string]state{
		"stopped, used early": {"phase": "STANDBY", "desired_state": "STANDBY", "last_access_at": now.Add(-3 * time.Hour)},
		"stopped, used late":  {"phase": "STANDBY", "desired_state": "STANDBY", "last_access_at": now.Add(-time.Hour)},
		"running, used early": {"phase": "RUNNING", "desired_state": "RUNNING", "last_access_at": now.Add(-4 * time.Hour)},
		"running, used late":  {"phase": "RUNNING", "desired_state": "RUNNING", "last_access_at": now.Add(-2 * time.Hour)},
		"never used":          {"phase": "STANDBY", "desired_state": "STANDBY"},
	} {
		w := must(e.CreateWorkspace(ctx, ann, newWorkspace(name, workspace.DesiredStandby)))(t)
		e.set(w.ID, s)
	}
	want := []string{"running, used late", "running, used early", "never used", "stopped, used late", "stopped, used early"}
	for size := 1; size <= 5; size++ {
		var got []string
		for cursor := ""; ; {
			list, next, err := e.ListWorkspaces(ctx, ann, postgres.Filter{Recent: true, Limit: size, Cursor: cursor})
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, names(list)...)
			if cursor = next; next == "" {
				break
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%d at a time: %s", size, d)
		}
	}
}

func names(list []workspace.Workspace) (out []string) {
	for _, w := range list {
		out = append(out, w.Name)
	}
	return out
}

func must3[V any](v V, _ string, err error) func(t testing.TB) V { return must(v, err) }

// Every workspace is listed once and in order, also with equal creation times, and with
// creations and deletions between the pages.
func TestListPages(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	ann := e.user("ann")
	var want []string
	for i := range 23 {
		w := must(e.CreateWorkspace(ctx, ann, newWorkspace(fmt.Sprintf("w%02d", i), workspace.DesiredStandby)))(t)
		want = append([]string{w.Name}, want...)
	}
	e.exec(`UPDATE workspaces SET created_at = '2030-01-01 00:00:00.123456+00' WHERE name BETWEEN 'w05' AND 'w15'`)
	e.exec(`UPDATE workspaces SET created_at = '2031-01-01' WHERE name > 'w15'`)
	var got []string
	f := postgres.Filter{Limit: 4}
	for page := 0; ; page++ {
		list, next, err := e.ListWorkspaces(ctx, ann, f)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, names(list)...)
		if next == "" {
			break
		}
		if len(list) != 4 {
			t.Fatalf("page %d has %d", page, len(list))
		}
		f.Cursor = next
		made := newWorkspace(fmt.Sprintf("made meanwhile %d", page), workspace.DesiredStandby)
		e.exec(`UPDATE workspaces SET created_at = '2032-01-01' WHERE id = $1`, must(e.CreateWorkspace(ctx, ann, made))(t).ID)
		must(e.DeleteWorkspace(ctx, ann, list[3].ID, false))(t) // the last row of the cursor
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for _, c := range []string{"x", "e30", "bnVsbA", strings.Repeat("A", 1000)} {
		_, _, err := e.ListWorkspaces(ctx, ann, postgres.Filter{Cursor: c})
		wantCode(t, err, workspace.CodeInvalid)
	}
	if list := must3(e.ListWorkspaces(ctx, ann, postgres.Filter{Limit: 1 << 30}))(t); len(list) != 23 {
		t.Errorf("%d in one page", len(list))
	}
}

func TestPatchFields(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	ann := e.user("ann")
	other := e.workspace(ann, nil)
	for name, s := range map[string]state{
		"idle": nil, "in an operation": {"operation": "STARTING"}, "in ERROR": {"phase": "ERROR", "error_reason": "Timeout"},
	} {
		w := e.workspace(ann, s)
		until := soon(time.Hour)
		got := must(e.PatchWorkspace(ctx, ann, w.ID, postgres.Patch{
			Edit:       workspace.Edit{Name: ptr("renamed " + name), Description: ptr("d"), Memo: ptr("m")},
			StandbyTTL: optional(0), ArchiveTTL: optional(9), KeepAwakeUntil: optional(until),
		}))(t)
		want := w
		want.Name, want.Description, want.Memo = "renamed "+name, "d", "m"
		want.StandbyTTL, want.ArchiveTTL, want.KeepAwakeTil, want.UpdatedAt = ptr(0), ptr(9), &until, got.UpdatedAt
		if d := cmp.Diff(want, got); d != "" || !got.UpdatedAt.After(w.UpdatedAt) {
			t.Errorf("%s: %s", name, d)
		}
		if d := cmp.Diff(got, e.read(w.ID)); d != "" {
			t.Errorf("read back: %s", d)
		}
		got = must(e.PatchWorkspace(ctx, ann, w.ID, postgres.Patch{
			StandbyTTL: workspace.Optional[int]{Set: true}, ArchiveTTL: workspace.Optional[int]{Set: true}, KeepAwakeUntil: workspace.Optional[time.Time]{Set: true},
		}))(t)
		if got.StandbyTTL != nil || got.ArchiveTTL != nil || got.KeepAwakeTil != nil || got.Memo != "m" {
			t.Errorf("%s: back to the defaults: %+v", name, got)
		}
		before := e.row(w.ID)
		must(e.PatchWorkspace(ctx, ann, w.ID, postgres.Patch{Edit: workspace.Edit{Name: &got.Name}}))(t)
		_, err := e.PatchWorkspace(ctx, ann, w.ID, postgres.Patch{Edit: workspace.Edit{Memo: ptr("lost"), Name: &other.Name}})
		wantCode(t, err, workspace.CodeNameTaken)
		_, err = e.PatchWorkspace(ctx, ann, w.ID, postgres.Patch{Edit: workspace.Edit{Memo: ptr("lost")}, StandbyTTL: optional(-5)})
		wantCode(t, err, workspace.CodeInvalid)
		if d := cmp.Diff(before, e.row(w.ID)); d != "" {
			t.Errorf("%s: an empty patch changed the row: %s", name, d)
		}
	}
}

func optional[T any](v T) workspace.Optional[T] { return workspace.Optional[T]{Set: true, Value: &v} }
