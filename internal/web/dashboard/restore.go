package dashboard

import (
	"maps"
	"net/http"
	"slices"

	"codehub/api"
	"codehub/internal/gateway/inbound"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// restoreView is the page about taking over a restored database.
type restoreView struct {
	Plan   api.RestorePlan
	Keep   map[string]bool // ids of workspaces that keep the database's state
	Others []string        // those of them that are not on this page
	Later  bool            // this is not the first page
}

// viewOfPlan shows a page of the plan. The ids in keep were chosen on any page.
func viewOfPlan(p api.RestorePlan, keep []string, later bool) restoreView {
	v := restoreView{Plan: p, Keep: map[string]bool{}, Later: later}
	for _, id := range keep {
		v.Keep[id] = true
	}
	here := map[string]bool{}
	for _, s := range p.Workspaces {
		here[s.ID] = true
	}
	for _, id := range slices.Sorted(maps.Keys(v.Keep)) {
		if !here[id] {
			v.Others = append(v.Others, id)
		}
	}
	return v
}

// restorePage shows a page of the plan. Its links to other pages are buttons of its form, so
// that they carry the choices along, as keep.
func (d *Dashboard) restorePage(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	if d.Restore == nil {
		d.noPage(w, r)
		return
	}
	q := r.URL.Query()
	cursor := q.Get("cursor")
	restore := inbound.Lift(w, r) // it lists the whole bucket
	plan, err := d.Restore.RestorePlan(r.Context(), c, api.ApplyRestore{}, postgres.Page{Cursor: cursor})
	restore()
	if err != nil {
		d.fail(w, r, err)
		return
	}
	p := d.newPage(r, &c, "restore.title", viewOfPlan(plan, q["keep"], cursor != ""))
	p.Nav = "admin"
	d.render(w, r, http.StatusOK, "restore", p)
}

// takeOver applies the plan. The form field keep lists the workspaces that keep the database's
// state.
func (d *Dashboard) takeOver(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	if d.Restore == nil {
		d.noPage(w, r)
		return
	}
	if err := r.ParseForm(); err != nil {
		d.fail(w, r, workspace.Errorf(workspace.CodeInvalid, "The form cannot be read."))
		return
	}
	restore := inbound.Lift(w, r)
	_, err := d.Restore.ApplyRestore(r.Context(), c, api.ApplyRestore{KeepDatabase: r.PostForm["keep"]})
	restore()
	if err != nil {
		d.fail(w, r, err)
		return
	}
	d.redirect(w, r, notedAt("/admin", "take_over", ""))
}
