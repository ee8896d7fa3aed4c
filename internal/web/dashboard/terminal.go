package dashboard

import (
	"net/http"

	"codehub/internal/workspace"
)

// terminalView is a terminal in a workspace.
type terminalView struct {
	ID, Name  string
	Ref       string // what the command line calls the workspace
	Back, API string // the workspace's page, and its path in the API
	Guest     bool   // shared with the user
}

// terminal is a workspace's terminal, for its owner and guests who use it. Its script starts a
// shell, which starts the workspace; the page alone changes nothing.
func (d *Dashboard) terminal(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	v, err := d.readTerminal(r, c)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	p := d.newPage(r, &c, "", v)
	p.Title, p.Nav = d.set(r).lang.T("terminal.title")+" · "+v.Name, "workspaces"
	if v.Guest {
		p.Nav = "shared"
	}
	d.render(w, r, http.StatusOK, "terminal", p)
}

func (d *Dashboard) readTerminal(r *http.Request, c workspace.Caller) (terminalView, error) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if workspace.CodeOf(err) != workspace.CodeForbidden {
		id := string(ws.ID)
		return terminalView{ID: id, Name: ws.Name, Ref: ws.Name, Back: "/workspaces/" + id, API: "/api/v1/workspaces/" + id}, err
	}
	id := r.PathValue("id")
	s, unknown := d.Store.SharedWorkspace(r.Context(), c, workspace.ID(id))
	if unknown != nil || s.Access != workspace.AccessUse {
		return terminalView{}, err
	}
	return terminalView{ID: id, Name: s.Workspace.Name, Ref: s.Owner + "/" + s.Workspace.Name, Back: "/shared/" + id, API: "/api/v1/shared/" + id, Guest: true}, nil
}
