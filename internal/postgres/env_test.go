package postgres_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// TestPatchEnv: variables are changed one by one or all at once, the audit log has their names
// alone, and another owner does not get them.
func TestPatchEnv(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann, bob := e.user("ann"), e.user("bob")
	w := must(e.CreateWorkspace(t.Context(), ann, postgres.NewWorkspace{
		Name: "demo", ImageRef: "x", StorageBackend: workspace.StorageDockerVolume, Desired: workspace.DesiredStandby,
		Env: map[string]string{"TOKEN": "s3cret", "OLD": "1"}, TimeZone: "Asia/Seoul",
	}))(t)
	if w.Env["TOKEN"] != "s3cret" || w.TimeZone != "Asia/Seoul" {
		t.Errorf("%+v", w)
	}
	change := func(c lifecycle.EnvChange) workspace.Workspace {
		t.Helper()
		return must(e.PatchWorkspace(t.Context(), ann, w.ID, postgres.Patch{Env: &c, TimeZone: "Europe/Berlin"}))(t)
	}
	got := change(lifecycle.EnvChange{Set: map[string]*string{"OLD": nil, "TOKEN": ptr("s3cret2")}})
	if d := cmp.Diff(map[string]string{"TOKEN": "s3cret2"}, got.Env); d != "" || got.TimeZone != "Europe/Berlin" {
		t.Error(got.TimeZone, d)
	}
	before := e.row(w.ID)
	change(lifecycle.EnvChange{Replace: true, Set: map[string]*string{"TOKEN": ptr("s3cret2")}})
	if after := e.row(w.ID); after != before {
		t.Errorf("the same variables again: %s, was %s", after, before)
	}
	_, err := e.PatchWorkspace(t.Context(), ann, w.ID, postgres.Patch{Env: &lifecycle.EnvChange{Set: map[string]*string{"PATH": ptr("s3cret3")}}})
	wantCode(t, err, workspace.CodeInvalid)
	want := []string{"ann workspace.create", "ann workspace.change", "ann workspace.env"}
	if d := cmp.Diff(want, e.audited(string(w.ID))); d != "" {
		t.Error(d)
	}
	var log string
	if err := e.raw.QueryRow(t.Context(), `SELECT string_agg(details::text, ' ' ORDER BY id) FROM audit_log WHERE target = $1`, w.ID).Scan(&log); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(log, "s3cret") || !strings.Contains(log, `"removed": ["OLD"]`) || !strings.Contains(log, `"env": ["OLD", "TOKEN"]`) {
		t.Errorf("audit log: %s", log)
	}
	c := postgres.NewController(postgres.NewSession(e.conn()))
	launch := must(c.Launch(t.Context(), w.ID))(t)
	if d := cmp.Diff(postgres.Launch{Owner: "ann", Env: map[string]string{"TOKEN": "s3cret2"}, TimeZone: "Europe/Berlin"}, launch); d != "" {
		t.Error(d)
	}
	e.set(w.ID, state{"owner_user_id": bob.UserID})
	launch = must(c.Launch(t.Context(), w.ID))(t)
	if d := cmp.Diff(postgres.Launch{Owner: "bob"}, launch); d != "" {
		t.Errorf("after the transfer: %s", d)
	}
}
