package lifecycle_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// TestFollowTemplate: an update changes what the template gave, and nothing that the owner
// changed since.
func TestFollowTemplate(t *testing.T) {
	t.Parallel()
	hour, day := 3600, 86400
	text := func(s string) *string { return &s }
	from := workspace.TemplateSettings{Image: "a:1", Env: map[string]string{"KEPT": "1", "NEW": "1", "GONE": "1", "OWN": "1", "DROPPED": "1"}, StandbyTTL: &hour}
	to := workspace.TemplateSettings{Image: "a:2", Size: "large", Env: map[string]string{"KEPT": "1", "NEW": "2", "OWN": "2", "DROPPED": "2", "ADDED": "1", "THEIRS": "1"}, StandbyTTL: &day, ArchiveTTL: &day}
	w := workspace.Workspace{
		ImageRef: "a:1", Env: map[string]string{"KEPT": "1", "NEW": "1", "GONE": "1", "OWN": "mine", "THEIRS": "mine"},
		StandbyTTL: &hour, Template: &workspace.TemplateUse{Settings: from},
	}
	want := lifecycle.TemplateChange{
		Image: text("a:2"), Size: text("large"), Env: map[string]*string{"NEW": text("2"), "GONE": nil, "ADDED": text("1")},
		StandbyTTL: workspace.Optional[int]{Set: true, Value: &day}, ArchiveTTL: workspace.Optional[int]{Set: true, Value: &day},
	}
	if d := cmp.Diff(want, lifecycle.FollowTemplate(w, to)); d != "" {
		t.Error(d)
	}
	w.ImageRef, w.Size, w.StandbyTTL, w.ArchiveTTL = "other", "small", &day, &hour
	if d := cmp.Diff(lifecycle.TemplateChange{Env: want.Env, StandbyTTL: workspace.Optional[int]{Value: &day}, ArchiveTTL: workspace.Optional[int]{Value: &day}}, lifecycle.FollowTemplate(w, to)); d != "" {
		t.Error(d)
	}
	if c := lifecycle.FollowTemplate(w, from); !c.None() {
		t.Errorf("the same version changes %+v", c)
	}
	two := []workspace.Repository{{URL: "https://h/a"}, {URL: "https://h/b"}}
	w.Template.Settings.Project, w.Project = &workspace.Project{Repositories: two[:1]}, &workspace.Project{Repositories: two[:1]}
	for want, change := range map[*workspace.Project]workspace.TemplateSettings{{Repositories: two}: {Project: &workspace.Project{Repositories: two}}, nil: {}} {
		if c := lifecycle.FollowTemplate(w, change); !c.Project.Set || !cmp.Equal(c.Project.Value, want) || c.None() {
			t.Errorf("repositories: %+v", c.Project)
		}
	}
	once := &workspace.Scripts{Create: "a"}
	if c := lifecycle.FollowTemplate(w, workspace.TemplateSettings{Project: &workspace.Project{Repositories: two[:1], Scripts: once}}); !cmp.Equal(c.Project.Value, &workspace.Project{Repositories: two[:1], Scripts: once}) {
		t.Errorf("scripts: %+v", c.Project)
	}
	w.Project = &workspace.Project{Repositories: two[1:]} // its owner's
	if c := lifecycle.FollowTemplate(w, workspace.TemplateSettings{Project: &workspace.Project{Repositories: two}}); c.Project.Set {
		t.Errorf("the owner's repositories: %+v", c.Project)
	}
	w.BackupInterval, w.Template.Settings.BackupInterval = &hour, &hour
	if c := lifecycle.FollowTemplate(w, workspace.TemplateSettings{BackupInterval: &day, BackupKeep: "7d"}); !cmp.Equal(c.BackupInterval, workspace.Optional[int]{Set: true, Value: &day}) || *c.BackupKeep != "7d" || c.None() {
		t.Errorf("backups: %+v", c)
	}
	w.BackupInterval, w.BackupKeep = nil, "4w" // its owner's
	if c := lifecycle.FollowTemplate(w, workspace.TemplateSettings{BackupInterval: &day, BackupKeep: "7d"}); c.BackupInterval.Set || c.BackupKeep != nil {
		t.Errorf("the owner's backups: %+v", c)
	}
	w.Template = nil
	if c := lifecycle.FollowTemplate(w, to); !c.None() {
		t.Errorf("a workspace without a template changes: %+v", c)
	}
}
