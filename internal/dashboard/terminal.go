package dashboard

import (
	"net/http"

	"codehub/internal/workspace"
)

// terminal is a workspace's terminal. Its script starts a shell, which starts the
// workspace; the page alone changes nothing.
func (d *Dashboard) terminal(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	p := d.newPage(r, &c, "", d.viewOf(ws, fromDetail))
	p.Title, p.Nav = d.set(r).lang.T("terminal.title")+" · "+ws.Name, "workspaces"
	d.render(w, r, http.StatusOK, "terminal", p)
}
