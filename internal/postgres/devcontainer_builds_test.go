package postgres_test

import (
	"slices"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

func TestDevcontainerBuilds(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann, bob := e.user("ann"), e.user("bob")
	one := must(e.CreateWorkspace(e.Context(), ann, newWorkspace("one", workspace.DesiredRunning)))(t)
	two := must(e.CreateWorkspace(e.Context(), ann, newWorkspace("two", workspace.DesiredRunning)))(t)
	begin := func(caller workspace.Caller, w workspace.Workspace) (string, error) {
		return e.BeginBuild(e.Context(), caller, w.ID, "api/.devcontainer.json")
	}
	report := func(id string, r postgres.BuildReport) bool {
		t.Helper()
		return must(e.ReportBuild(e.Context(), id, r))(t)
	}
	read := func() api.DevcontainerBuild {
		t.Helper()
		return must(e.DevcontainerBuild(e.Context(), ann, one.ID))(t)
	}
	_, err := e.DevcontainerBuild(e.Context(), ann, one.ID)
	wantCode(t, err, workspace.CodeNotFound)
	_, err = begin(bob, one)
	wantCode(t, err, workspace.CodeForbidden)
	first := must(begin(ann, one))(t)
	_, err = begin(ann, two)
	wantCode(t, err, workspace.CodeOperationInProgress)
	if b := read(); b.State != postgres.BuildWaiting || b.EndedAt != nil || b.File != "api/.devcontainer.json" {
		t.Errorf("%+v", b)
	}
	ignored := []api.DevcontainerIgnored{{Property: "features.docker.privileged", Reason: "rights"}}
	if !report(first, postgres.BuildReport{State: postgres.BuildBuilding, Image: "codehub/devcontainer/x:1", Step: "Step 1/2", Log: "a\n", Ignored: ignored}) {
		t.Error("a build that runs is to end")
	}
	if b := read(); b.State != postgres.BuildBuilding || b.Step != "Step 1/2" || b.Log != "a\n" || !slices.Equal(b.Ignored, ignored) {
		t.Errorf("%+v", b)
	}
	if list := must(e.BuiltImagesInUse(e.Context(), "codehub/devcontainer/"))(t); !slices.Equal(list, []string{"codehub/devcontainer/x:1"}) {
		t.Errorf("in use: %v", list)
	}
	other := newWorkspace("other", workspace.DesiredStandby)
	other.ImageRef = "docker.io/codehub/devcontainer/" + ann.UserID + ":2"
	must(e.CreateWorkspace(e.Context(), ann, other))(t)
	if list := must(e.BuiltImagesInUse(e.Context(), "codehub/devcontainer/"))(t); !slices.Contains(list, other.ImageRef) {
		t.Errorf("in use: %v", list)
	}
	_, err = e.CancelBuild(e.Context(), bob, one.ID)
	wantCode(t, err, workspace.CodeForbidden)
	must(e.CancelBuild(e.Context(), ann, one.ID))(t)
	if report(first, postgres.BuildReport{State: postgres.BuildBuilding}) {
		t.Error("a canceled build goes on")
	}
	// Nothing that a build prints keeps it from being seen.
	report(first, postgres.BuildReport{State: postgres.BuildBuilding, Step: "\x00\xff", Log: "a\x00\xed", Error: "\xed.", Ignored: []api.DevcontainerIgnored{{Property: "a\x00"}}})
	report(first, postgres.BuildReport{State: postgres.BuildCanceled})
	_, err = e.CancelBuild(e.Context(), ann, one.ID)
	wantCode(t, err, workspace.CodeNotCancellable)

	// One whose server is gone has ended, and makes room.
	lost := must(begin(ann, one))(t)
	e.exec(`UPDATE devcontainer_builds SET seen_at = seen_at - interval '2 min'`)
	if b := read(); b.State != postgres.BuildFailed || b.Error == "" || b.EndedAt == nil {
		t.Errorf("unseen: %+v", b)
	}
	next := must(begin(ann, one))(t)
	if report(lost, postgres.BuildReport{State: postgres.BuildDone}) || read().State != postgres.BuildWaiting {
		t.Error("an earlier build writes")
	}
	report(next, postgres.BuildReport{State: postgres.BuildFailed, Error: "No."})
	if b := read(); b.Error != "No." || b.EndedAt == nil || time.Since(*b.EndedAt) > time.Minute {
		t.Errorf("%+v", b)
	}
	must(begin(ann, two))(t)
}
