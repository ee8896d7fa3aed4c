package dashboard

import (
	"net/http"

	"codehub/api"
	"codehub/internal/inbound"
	"codehub/internal/workspace"
)

// restoreView is the page about taking over a restored database.
type restoreView struct {
	Plan    api.RestorePlan
	Changes []api.RestoreStep // steps that change or explain something
	Kept    int               // the others
}

func viewOfPlan(p api.RestorePlan) restoreView {
	v := restoreView{Plan: p}
	for _, s := range p.Workspaces {
		if s.Action == api.RestoreKeep && !s.Lost && s.ArchivedAt == nil {
			v.Kept++
			continue
		}
		v.Changes = append(v.Changes, s)
	}
	return v
}

func (d *Dashboard) restorePage(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	if d.Restore == nil {
		d.noPage(w, r)
		return
	}
	restore := inbound.Lift(w, r) // it lists the whole bucket
	plan, err := d.Restore.RestorePlan(r.Context(), c)
	restore()
	if err != nil {
		d.fail(w, r, err)
		return
	}
	p := d.newPage(r, &c, "restore.title", viewOfPlan(plan))
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
