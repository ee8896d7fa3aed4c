package postgres_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// TestSavedTemplates: every version is kept with who saved it, a text that is the last one adds none, and
// users save nothing.
func TestSavedTemplates(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	boss, ann := e.user("boss"), e.user("ann")
	e.exec(`UPDATE users SET admin = true WHERE username = 'boss'`)
	boss.Admin = true
	wantCode(t, e.SaveTemplate(ctx, ann, "api", "title: a"), workspace.CodeForbidden)
	wantCode(t, e.SaveTemplate(ctx, boss, "api", ""), workspace.CodeNotFound)
	for _, text := range []string{"title: a", "title: b", "title: b", "", "title: c"} {
		if err := e.SaveTemplate(ctx, boss, "api", text); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.SaveTemplate(ctx, boss, "web", "title: w"); err != nil {
		t.Fatal(err)
	}
	if err := e.SaveTemplate(ctx, boss, "web", ""); err != nil {
		t.Fatal(err)
	}
	ignore := cmpopts.IgnoreFields(postgres.SavedTemplate{}, "ID", "SavedAt")
	of := func(text string) postgres.SavedTemplate {
		return postgres.SavedTemplate{Name: "api", Text: text, SavedBy: "boss"}
	}
	if d := cmp.Diff([]postgres.SavedTemplate{of("title: c")}, must(e.SavedTemplates(ctx))(t), ignore); d != "" {
		t.Error(d)
	}
	history := must(e.TemplateHistory(ctx, boss, "api"))(t)
	if d := cmp.Diff([]postgres.SavedTemplate{of("title: c"), of(""), of("title: b"), of("title: a")}, history, ignore); d != "" || history[0].SavedAt.Before(history[3].SavedAt) {
		t.Error(d)
	}
	_, err := e.TemplateHistory(ctx, ann, "api")
	wantCode(t, err, workspace.CodeForbidden)
	if d := cmp.Diff([]string{"boss template.save", "boss template.save", "boss template.delete", "boss template.save"}, e.audited("api")); d != "" {
		t.Error(d)
	}
}
