package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"testing"

	"codehub/api"
	"codehub/internal/arrivals/rollback"
	"codehub/internal/postgres"
	"codehub/internal/web/dashboard/catalogue"
	"codehub/internal/workspace"
)

// restores is a Restore with a fixed plan.
type restores struct {
	plan     api.RestorePlan
	pageSize int // 0: everything is on one page
	applied  []api.ApplyRestore
}

func (r *restores) RestorePlan(_ context.Context, c workspace.Caller, _ api.ApplyRestore, page postgres.Page) (api.RestorePlan, error) {
	if !c.Admin {
		return api.RestorePlan{}, workspace.Errorf(workspace.CodeForbidden, "Only administrators can do this.")
	}
	plan := r.plan
	if r.pageSize > 0 {
		plan.Workspaces = slices.DeleteFunc(slices.Clone(plan.Workspaces), func(s api.RestoreStep) bool { return s.ID <= page.Cursor })
		if len(plan.Workspaces) > r.pageSize {
			plan.Workspaces = plan.Workspaces[:r.pageSize]
			plan.NextCursor = plan.Workspaces[r.pageSize-1].ID
		}
	}
	return plan, nil
}

func (r *restores) ApplyRestore(_ context.Context, _ workspace.Caller, in api.ApplyRestore) (api.RestoreResult, error) {
	r.applied = append(r.applied, in)
	return api.RestoreResult{}, nil
}

func TestRestorePage(t *testing.T) {
	t.Parallel()
	r := &restores{plan: api.RestorePlan{OnHold: true, Reason: "another database managed these workspaces last", Unchanged: 1, Workspaces: []api.RestoreStep{
		{ID: "2", Name: "newer <b>", Owner: "ann", Action: api.RestoreArchive, ReasonCode: "archive_newer"},
		{ID: "3", Name: "made", Action: api.RestoreVolume, New: true, Running: true, ReasonCode: "created_later"},
		{ID: "4", Name: "gone", Owner: "ann", Action: api.RestoreKeep, Lost: true, ReasonCode: "no_copy"},
	}}}
	w := newWorld(t, func(c *Config) { c.Restore, c.Trouble = r, func() string { return "hold" } })
	w.Exec(`UPDATE gc_state SET hold = 'another database managed these workspaces last', hold_since = now()`)
	b := w.loggedIn()
	contains(t, "every page", b.get("/").body, "codehub is on hold because this is not the database that it used last.")
	contains(t, "the administrators' page", b.get("/admin").body, "codehub is on hold", "another database managed these workspaces last", `href="/admin/restore"`)
	page := b.get("/admin/restore").body
	contains(t, "the plan", page, "newer &lt;b&gt;", "Use the archive", "Use the volume", "Its newest archive was created after the backup.",
		"The workspace was created after the backup.", "No complete copy of its home was found.", "not in the database", "no complete copy found",
		`name="keep" value="2"`, "1 other workspace does not change.", `method="post" action="/admin/restore"`)
	lacks(t, "the plan", page, `value="3"`, `value="4"`, `name="cursor"`)
	contains(t, "in Korean", b.get("/admin/restore", "Accept-Language", "ko").body, "이 데이터베이스로 전환", "아카이브 사용", "볼륨 사용", "가장 최근 아카이브가 백업 이후에 만들어졌습니다.", "1개는 변경되지 않습니다")

	if a := b.post("/admin/restore", url.Values{"keep": {"2"}}); a.status != http.StatusSeeOther {
		t.Errorf("status %d", a.status)
	}
	if len(r.applied) != 1 || !slices.Equal(r.applied[0].KeepDatabase, []string{"2"}) {
		t.Errorf("applied %+v", r.applied)
	}
}

// The pages of a long plan carry along what was chosen on the others.
func TestRestorePagesKeepChoices(t *testing.T) {
	t.Parallel()
	step := func(id string) api.RestoreStep {
		return api.RestoreStep{ID: id, Name: "name " + id, Owner: "ann", Action: api.RestoreArchive, ReasonCode: "archive_newer"}
	}
	r := &restores{pageSize: 2, plan: api.RestorePlan{OnHold: true, Reason: "r", Workspaces: []api.RestoreStep{step("1"), step("2"), step("3"), step("4"), step("5")}}}
	w := newWorld(t, func(c *Config) { c.Restore, c.Trouble = r, func() string { return "hold" } })
	b := w.tab()
	b.logIn()
	b.visit("/admin/restore")
	b.press(`input[name=keep][value="2"]`)
	b.press(`button[name=cursor][value="2"]`)
	b.until(`document.querySelector('li[data-workspace="3"]') && !document.querySelector('li[data-workspace="2"]')`)
	b.press(`input[name=keep][value="4"]`)
	b.until(`document.querySelector('#restore-others')?.textContent.includes('1 workspace on another page keeps')`)
	b.press(`button[name=cursor][value="4"]`)
	b.until(`document.querySelector('li[data-workspace="5"]') && !document.querySelector('button[name=cursor][value="5"]')`)
	b.press(`button[name=cursor][value=""]`)
	b.until(`document.querySelector('input[value="2"]:checked') && document.querySelector('input[value="1"]:not(:checked)')`)
	b.press(`form.admin button.btn-danger`)
	b.until(`location.pathname === '/admin'`)
	if len(r.applied) != 1 || !slices.Equal(slices.Sorted(slices.Values(r.applied[0].KeepDatabase)), []string{"2", "4"}) {
		t.Errorf("applied %+v", r.applied)
	}
}

// The English page and the API use the same words for a reason.
func TestRestoreReasonsMatchAPI(t *testing.T) {
	t.Parallel()
	for _, reason := range rollback.Reasons() {
		if got := catalogue.English.T("restore.reason." + string(reason)); got == "" || got != reason.Text() {
			t.Errorf("reason %s: the page says %q, the API %q", reason, got, reason.Text())
		}
	}
}
