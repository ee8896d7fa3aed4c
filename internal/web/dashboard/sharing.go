package dashboard

import (
	"net/http"
	"slices"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// sharesView is with whom a workspace is shared, for its owner.
type sharesView struct {
	ID, Name string
	Shares   []workspace.Share
	User     string // the fields of the form
	Group    string
	Access   workspace.Access
	Git      bool
	Groups   []string // that the owner is in
	Problem  string
}

// NoGit reports whether Git in the workspace does not use the owner's connections.
func (v sharesView) NoGit() bool {
	return slices.ContainsFunc(v.Shares, func(s workspace.Share) bool { return s.Access == workspace.AccessUse && !s.Git })
}

// sharedView is a workspace that another user shares.
type sharedView struct {
	postgres.SharedWorkspace
	State   lifecycle.State
	Tone    string
	Used    time.Time
	Entry   string // where the guest enters it; empty: not at all
	Waits   bool   // the page enters it once it runs
	Stopped bool   // it could not be started
	Own     bool   // shared with the guest, who can leave; else with a group of the guest
	Connect connectView
	Now     time.Time
}

func (d *Dashboard) sharedViewOf(s postgres.SharedWorkspace, c workspace.Caller) sharedView {
	state := lifecycle.StateOf(s.Workspace)
	v := sharedView{SharedWorkspace: s, State: state, Tone: toneOf(state), Used: s.Workspace.CreatedAt, Now: d.Now()}
	v.Own = slices.ContainsFunc(s.Shares, func(sh workspace.Share) bool { return sh.User == c.Username })
	if at := s.Workspace.LastAccessAt; at != nil {
		v.Used = *at
	}
	if s.Access == workspace.AccessUse {
		v.Entry = "/w/" + string(s.Workspace.ID) + "/"
		v.Connect = d.connectOf(s.Workspace, s.Owner)
	}
	return v
}

// shares serves with whom a workspace is shared: as a fragment to htmx, else as a page with the
// form by which its owner shares it.
func (d *Dashboard) shares(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	v, err := d.readShares(r, c)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	if isHTMX(r) {
		d.fragments(w, r, http.StatusOK, part{"shares", v})
		return
	}
	d.showShares(w, r, c, http.StatusOK, v)
}

func (d *Dashboard) showShares(w http.ResponseWriter, r *http.Request, c workspace.Caller, status int, v sharesView) {
	p := d.newPage(r, &c, "", v)
	p.Title, p.Nav, p.Toast = d.set(r).lang.T("shares.title")+" · "+v.Name, "workspaces", d.noted(r, c)
	d.render(w, r, status, "shares", p)
}

func (d *Dashboard) readShares(r *http.Request, c workspace.Caller) (sharesView, error) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err != nil {
		return sharesView{}, err
	}
	v := sharesView{ID: string(ws.ID), Name: ws.Name, Access: workspace.AccessUse}
	if v.Shares, err = d.Store.Shares(r.Context(), c, ws.ID); err != nil {
		return v, err
	}
	if d.Admin != nil {
		groups, err := d.Admin.Groups(r.Context(), c, postgres.Page{Limit: postgres.MaxList})
		if err != nil {
			return v, err
		}
		for _, g := range groups.Groups {
			v.Groups = append(v.Groups, g.Name)
		}
	}
	return v, nil
}

// share shares the workspace with the user or group of the form.
func (d *Dashboard) share(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	v, err := d.readShares(r, c)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	v.User, v.Group, v.Access = r.PostFormValue("user"), r.PostFormValue("group"), workspace.Access(r.PostFormValue("access"))
	v.Git = r.PostFormValue("git") != "" && v.Access == workspace.AccessUse
	_, err = d.Store.Share(r.Context(), c, workspace.ID(v.ID), postgres.NewShare{User: v.User, Group: v.Group, Access: v.Access, Git: v.Git})
	if err == nil {
		d.redirect(w, r, notedAt("/workspaces/"+v.ID+"/shares", "shared", ""))
		return
	}
	lang := d.set(r).lang
	switch code := workspace.CodeOf(err); code {
	case workspace.CodeNotFound:
		v.Problem = lang.T("shares.not_found")
	case workspace.CodeInvalid:
		v.Problem = lang.T("shares.invalid")
	case workspace.CodeNotSupported:
		v.Problem = lang.T("shares.path_mode")
	case workspace.CodeQuotaExceeded:
		v.Problem = lang.T("shares.too_many")
	default:
		d.fail(w, r, err)
		return
	}
	d.showShares(w, r, c, http.StatusUnprocessableEntity, v)
}

// unshare ends a share.
func (d *Dashboard) unshare(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err == nil {
		err = d.Store.Unshare(r.Context(), c, ws.ID, r.PostFormValue("share"))
	}
	if err != nil && workspace.CodeOf(err) != workspace.CodeNotFound { // it has ended already
		d.fail(w, r, err)
		return
	}
	d.redirect(w, r, notedAt("/workspaces/"+string(ws.ID)+"/shares", "unshared", ""))
}

// answerHandOver accepts or declines the hand-over that an administrator has requested.
func (d *Dashboard) answerHandOver(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	accept := r.PostFormValue("answer") == "accept"
	id, err := idOf(r)
	if err == nil {
		err = d.Store.AnswerHandOver(r.Context(), c, id, accept)
	}
	switch {
	case err != nil:
		d.fail(w, r, err)
	case accept:
		d.redirect(w, r, notedAt("/", "given", ""))
	default:
		d.redirect(w, r, notedAt("/workspaces/"+string(id), "kept", ""))
	}
}

// shared lists what others share with the user.
func (d *Dashboard) shared(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	list, err := d.Store.SharedWith(r.Context(), c)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	views := make([]sharedView, 0, len(list))
	for _, s := range list {
		views = append(views, d.sharedViewOf(s, c))
	}
	if isHTMX(r) {
		d.fragments(w, r, http.StatusOK, part{"shared-list", views})
		return
	}
	p := d.newPage(r, &c, "shared.title", views)
	p.Nav, p.Toast = "shared", d.noted(r, c)
	d.render(w, r, http.StatusOK, "shared", p)
}

// leaveShared ends the guest's own share.
func (d *Dashboard) leaveShared(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	id, err := idOf(r)
	var groups []string
	if err == nil {
		groups, err = d.Store.Leave(r.Context(), c, id)
	}
	switch {
	case workspace.CodeOf(err) == workspace.CodeNotSupported: // the page says why
		d.redirect(w, r, "/shared/"+string(id))
	case err != nil:
		d.fail(w, r, err)
	case len(groups) > 0:
		d.redirect(w, r, notedAt("/shared/"+string(id), "left_own", ""))
	default:
		d.redirect(w, r, notedAt("/shared", "left", ""))
	}
}

// enterAfter is the pause before a page enters a workspace that starts.
const enterAfter = 2

// sharedPage is the page of a workspace that another user shares. With enter it asks for the
// state until the workspace runs, and then leads there. It never starts it.
func (d *Dashboard) sharedPage(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	id, err := idOf(r)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	s, err := d.Store.SharedWorkspace(r.Context(), c, id)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	v := d.sharedViewOf(s, c)
	v.Waits = v.Entry != "" && r.URL.Query().Get("enter") != "" && (v.State.Busy() || v.State == lifecycle.StateRunning || lifecycle.StartRequested(s.Workspace))
	v.Stopped = r.URL.Query().Get("stopped") != "" && !v.Waits && v.State != lifecycle.StateRunning
	if isHTMX(r) {
		if v.Waits && lifecycle.OpeningOf(s.Workspace) == lifecycle.OpenNow {
			d.redirect(w, r, v.Entry)
			return
		}
		d.fragments(w, r, http.StatusOK, part{"shared-one", v})
		return
	}
	p := d.newPage(r, &c, "", v)
	p.Title, p.Nav, p.Toast = s.Workspace.Name, "shared", d.noted(r, c)
	if v.Waits {
		to := "/shared/" + string(id) + "?enter=1"
		if lifecycle.OpeningOf(s.Workspace) == lifecycle.OpenNow {
			to = v.Entry
		}
		p.Refresh = &refresh{After: enterAfter, URL: to}
	}
	d.render(w, r, http.StatusOK, "shared_one", p)
}
