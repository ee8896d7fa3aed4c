package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"testing"

	"codehub/api"
	"codehub/internal/dashboard/catalogue"
	"codehub/internal/rollback"
	"codehub/internal/workspace"
)

// restores is a Restore with a fixed plan.
type restores struct {
	plan    api.RestorePlan
	applied []api.ApplyRestore
}

func (r *restores) RestorePlan(_ context.Context, c workspace.Caller) (api.RestorePlan, error) {
	if !c.Admin {
		return api.RestorePlan{}, workspace.Errorf(workspace.CodeForbidden, "Only administrators can do this.")
	}
	return r.plan, nil
}

func (r *restores) ApplyRestore(_ context.Context, _ workspace.Caller, in api.ApplyRestore) (api.RestorePlan, error) {
	r.applied = append(r.applied, in)
	return r.plan, nil
}

func TestRestorePage(t *testing.T) {
	t.Parallel()
	r := &restores{plan: api.RestorePlan{OnHold: true, Reason: "another database used this Docker last", Workspaces: []api.RestoreStep{
		{ID: "1", Name: "same", Owner: "ann", Action: api.RestoreKeep},
		{ID: "2", Name: "newer <b>", Owner: "ann", Action: api.RestoreArchive, ReasonCode: "archive_newer"},
		{ID: "3", Name: "made", Action: api.RestoreVolume, New: true, Running: true, ReasonCode: "created_later"},
		{ID: "4", Name: "gone", Owner: "ann", Action: api.RestoreKeep, Lost: true, ReasonCode: "no_copy"},
	}}}
	w := newWorld(t, func(c *Config) { c.Restore, c.Trouble = r, func() string { return "hold" } })
	w.Exec(`UPDATE gc_state SET hold = 'another database used this Docker last', hold_since = now()`)
	b := w.loggedIn()
	contains(t, "every page", b.get("/").body, "codehub is on hold because this is not the database that it used last.")
	contains(t, "the administrators' page", b.get("/admin").body, "codehub is on hold", "another database used this Docker last", `href="/admin/restore"`)
	page := b.get("/admin/restore").body
	contains(t, "the plan", page, "newer &lt;b&gt;", "Use the archive", "Use the volume", "Its newest archive was created after the backup.",
		"The workspace was created after the backup.", "No complete copy of its home was found.", "not in the database", "no complete copy found",
		`name="keep" value="2"`, "1 other workspace does not change.", `method="post" action="/admin/restore"`)
	lacks(t, "the plan", page, `value="3"`, `value="4"`, ">same<")
	contains(t, "in Korean", b.get("/admin/restore", "Accept-Language", "ko").body, "이 데이터베이스로 전환", "아카이브 사용", "볼륨 사용", "가장 최근 아카이브가 백업 이후에 만들어졌습니다.", "1개는 변경되지 않습니다")

	if a := b.post("/admin/restore", url.Values{"keep": {"2"}}); a.status != http.StatusSeeOther {
		t.Errorf("status %d", a.status)
	}
	if len(r.applied) != 1 || !slices.Equal(r.applied[0].KeepDatabase, []string{"2"}) {
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
