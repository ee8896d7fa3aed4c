package postgres_test

import (
	"reflect"
	"testing"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// Each field of Patch that changes adds one entry to the audit log, and none that does not. The
// entries have no text of the notes.
func TestPatchIsAudited(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Sizes: workspace.Sizes{Offered: []workspace.Size{{Name: "small"}}}})
	ctx := t.Context()
	ann := e.user("ann")
	until := soon(time.Hour)
	patches := map[string]postgres.Patch{
		"Name":              {Edit: workspace.Edit{Name: ptr("shop")}},
		"Description":       {Edit: workspace.Edit{Description: ptr("s3cret")}},
		"Memo":              {Edit: workspace.Edit{Memo: ptr("s3cret")}},
		"Image":             {Image: ptr("other:latest")},
		"Size":              {Size: ptr("small")},
		"Env":               {Env: &lifecycle.EnvChange{Set: map[string]*string{"A": ptr("s3cret")}}},
		"TimeZone":          {TimeZone: "Asia/Seoul"},
		"StandbyTTL":        {StandbyTTL: set(600)},
		"ArchiveTTL":        {ArchiveTTL: set(0)},
		"BackupInterval":    {BackupInterval: set(600)},
		"BackupKeep":        {BackupKeep: ptr("24h")},
		"KeepAwakeUntil":    {KeepAwakeUntil: workspace.Optional[time.Time]{Set: true, Value: &until}},
		"AwakeWhileWorking": {AwakeWhileWorking: ptr(true)},
		"Template":          {Template: &workspace.TemplateUse{Name: "go", Version: "2", Settings: workspace.TemplateSettings{Image: "x"}}},
		"Desired":           {Desired: ptr(workspace.DesiredArchived)},
	}
	w := e.workspace(ann, state{"phase": "STANDBY", "name": "web", "template": `{"name": "go", "version": "1", "settings": {"image": "x"}}`})
	entries := func() int { return len(e.audited(string(w.ID))) }
	for _, f := range reflect.VisibleFields(reflect.TypeFor[postgres.Patch]()) {
		if f.Anonymous || f.Name == "Queue" || f.Name == "QueueAtLimit" || f.Name == "FreeSpace" || !f.IsExported() { // these are about Desired and Template
			continue
		}
		if f.Name == "Devcontainer" { // below
			continue
		}
		p, ok := patches[f.Name]
		if !ok {
			t.Errorf("%s has no test", f.Name)
		}
		for repeated, want := range []int{1, 0} {
			before := entries()
			must(e.PatchWorkspace(ctx, ann, w.ID, p))(t)
			if n := entries() - before; n != want {
				t.Errorf("%s, repeated %d times: %d entries, want %d", f.Name, repeated, n, want)
			}
		}
	}
	if n := query[int](e, `SELECT count(*) FROM audit_log WHERE details::text LIKE '%s3cret%'`); n != 0 {
		t.Errorf("%d entries have the text of the notes, the description or a variable", n)
	}
	for details, n := range map[string]int{
		`{"fields": ["name"], "from": {"name": "web"}, "to": {"name": "shop"}}`:                                          1,
		`{"fields": ["standby_ttl_seconds"], "from": {"standby_ttl_seconds": null}, "to": {"standby_ttl_seconds": 600}}`: 1,
		`{"fields": ["memo"]}`: 1,
	} {
		if got := query[int](e, `SELECT count(*) FROM audit_log WHERE action = 'workspace.change' AND details = $1::jsonb`, details); got != n {
			t.Errorf("%d entries %s, want %d", got, details, n)
		}
	}
	project := e.workspace(ann, state{"phase": "STANDBY", "name": "api", "project": `{"repositories": [{"url": "https://git.example.com/api.git"}]}`})
	used := workspace.Devcontainer{File: "project/api/.devcontainer.json", Folder: "project/api", Given: workspace.DevcontainerSettings{Image: "other:latest"}}
	must(e.PatchWorkspace(ctx, ann, project.ID, postgres.Patch{Devcontainer: workspace.Optional[workspace.Devcontainer]{Set: true, Value: &used}}))(t)
	if n := query[int](e, `SELECT count(*) FROM audit_log WHERE action = 'workspace.devcontainer' AND details->>'file' = $1`, used.File); n != 1 {
		t.Errorf("%d entries of the use of a devcontainer.json", n)
	}
	// All of a request are one entry.
	before := entries()
	must(e.PatchWorkspace(ctx, ann, w.ID, postgres.Patch{Edit: workspace.Edit{Name: ptr("a"), Memo: ptr("b")}, TimeZone: "UTC"}))(t)
	if n := entries() - before; n != 1 {
		t.Errorf("%d entries of one request", n)
	}
}
