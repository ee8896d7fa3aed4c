package dashboard

import (
	"errors"
	"net/http"
	"strconv"
	"strings"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// groupsView is the page of groups.
type groupsView struct {
	Groups []api.Group
	Admin  bool // the user may create groups
	Paging paging
}

// groupView is the page of a group.
type groupView struct {
	api.Group
	List    []memberView
	Admin   bool // the user is an administrator: may change the group and its secrets
	Secrets secretsView
	Paging  paging
}

// memberView is a user in a group.
type memberView struct {
	api.Member
	Removable bool
}

// membersShown is how many members a page shows.
const membersShown = 100

// groupsOnly passes requests to h if the server has groups.
func (d *Dashboard) groupsOnly(h callerHandler) callerHandler {
	return func(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
		if d.Admin == nil {
			d.noPage(w, r)
			return
		}
		h(w, r, c)
	}
}

func (d *Dashboard) groupsPage(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	cursor := pageParam(r, "cursor")
	list, err := d.Admin.Groups(r.Context(), c, postgres.Page{Limit: pageSize, Cursor: cursor})
	if err != nil {
		d.fail(w, r, err)
		return
	}
	p := d.newPage(r, &c, "groups.title", groupsView{Groups: list.Groups, Admin: c.Admin, Paging: pagingOf("/groups", "cursor", cursor, list.NextCursor)})
	p.Nav, p.Toast = "groups", d.noted(r, c)
	d.render(w, r, http.StatusOK, "groups", p)
}

func (d *Dashboard) groupPage(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	g, err := d.Store.Group(r.Context(), c, r.PathValue("group"))
	if err != nil {
		d.fail(w, r, err)
		return
	}
	v := groupView{Group: g, Admin: c.Admin}
	if g.Manages {
		cursor := pageParam(r, "cursor")
		list, err := d.Admin.Members(r.Context(), c, g.ID, postgres.Page{Limit: membersShown, Cursor: cursor})
		if err != nil {
			d.fail(w, r, err)
			return
		}
		for _, m := range list.Members {
			v.List = append(v.List, memberView{Member: m, Removable: m.Added && (c.Admin || !m.Admin || m.UserID == c.UserID)})
		}
		v.Paging = pagingOf("/groups/"+g.ID, "cursor", cursor, list.NextCursor)
	}
	if v.Secrets, err = d.readSecrets(r, c, g.ID); err != nil {
		d.fail(w, r, err)
		return
	}
	p := d.newPage(r, &c, "", v)
	p.Title, p.Nav, p.Toast = g.Name, "groups", d.noted(r, c)
	d.render(w, r, http.StatusOK, "group", p)
}

// Forms about groups. Only administrators use the first three.
const (
	groupNew    = "group-new"
	groupEdit   = "group-edit"
	groupDelete = "group-delete"
	groupMember = "group-member"
)

// groupForm returns a form about a group that exists, or a new one.
func (d *Dashboard) groupForm(name string, r *http.Request, c workspace.Caller) (*form, error) {
	f := d.form(name, r, nil)
	if name != groupMember && !c.Admin {
		return nil, workspace.Errorf(workspace.CodeForbidden, "Only administrators can do this.")
	}
	f.Action, f.Back = "/groups", "/groups"
	if name == groupNew {
		return f, nil
	}
	g, err := d.Store.Group(r.Context(), c, r.PathValue("group"))
	switch {
	case err != nil:
		return nil, err
	case !g.Manages:
		return nil, workspace.Errorf(workspace.CodeForbidden, "Only administrators, and those of the group, can do this.")
	}
	f.Group, f.Back, f.Danger = &g, "/groups/"+g.ID, name == groupDelete
	f.Action = f.Back + "/" + strings.TrimPrefix(name, "group-")
	f.Value["name"], f.Value["claim"], f.Value["issuer"] = g.Name, g.Claim, g.Issuer
	for field, n := range map[string]*int{"max_running": g.MaxRunning, "max_workspaces": g.MaxWorkspaces} {
		if n != nil {
			f.Value[field] = strconv.Itoa(*n)
		}
	}
	if g.MaxBytes != nil {
		f.Value["max_bytes"] = bytesText(*g.MaxBytes)
	}
	f.GroupAdmins = c.Admin
	return f, nil
}

// groupDialog serves a form about a group.
func (d *Dashboard) groupDialog(name string) callerHandler {
	return d.groupsOnly(func(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
		f, err := d.groupForm(name, r, c)
		if err != nil {
			d.fail(w, r, err)
			return
		}
		d.showForm(w, r, c, http.StatusOK, f)
	})
}

// groupFields reads the fields of a group.
func (f *form) groupFields() api.PatchGroup {
	f.line("name", postgres.MaxGroupName, true)
	f.line("claim", 255, false)
	f.line("issuer", 255, false)
	if f.Value["claim"] == "" && f.Value["issuer"] != "" {
		f.fail("claim", "field.required")
	}
	limits := api.PatchAccount{MaxRunning: f.number("max_running")}
	f.quota(&limits)
	name, claim, issuer := f.Value["name"], f.Value["claim"], f.Value["issuer"]
	return api.PatchGroup{Name: &name, Claim: &claim, Issuer: &issuer, MaxRunning: limits.MaxRunning, MaxWorkspaces: limits.MaxWorkspaces, MaxBytes: limits.MaxBytes}
}

// changeGroup handles the form with that name.
func (d *Dashboard) changeGroup(name string) callerHandler {
	return d.groupsOnly(func(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
		f, err := d.groupForm(name, r, c)
		if err != nil {
			d.fail(w, r, err)
			return
		}
		to, note := f.Back, "group_saved"
		switch name {
		case groupNew, groupEdit:
			in := f.groupFields()
			if f.bad() {
				d.again(w, r, c, f)
				return
			}
			if name == groupEdit {
				_, err = d.Admin.PatchGroup(r.Context(), c, f.Group.ID, in)
				break
			}
			var made api.Group
			made, err = d.Admin.CreateGroup(r.Context(), c, api.CreateGroup{Name: *in.Name, Claim: *in.Claim, Issuer: *in.Issuer, MaxRunning: in.MaxRunning.Value, MaxWorkspaces: in.MaxWorkspaces.Value, MaxBytes: in.MaxBytes.Value})
			to = "/groups/" + made.ID
		case groupDelete:
			err = d.Store.DeleteGroup(r.Context(), c, f.Group.ID)
			to, note = "/groups", "group_deleted"
		case groupMember:
			f.line("user", 255, true)
			f.Value["admin"] = r.PostFormValue("admin")
			if f.bad() {
				d.again(w, r, c, f)
				return
			}
			in := api.SetMember{User: f.Value["user"]}
			if c.Admin {
				in.Admin = new(f.Value["admin"] != "")
			}
			_, err = d.Admin.SetMember(r.Context(), c, f.Group.ID, in)
		}
		if err != nil {
			d.refuseGroup(w, r, c, f, err)
			return
		}
		d.redirect(w, r, notedAt(to, note, ""))
	})
}

// refuseGroup responds to a refused form: in the form, if the user can correct it there.
func (d *Dashboard) refuseGroup(w http.ResponseWriter, r *http.Request, c workspace.Caller, f *form, err error) {
	var e *workspace.Error
	if !errors.As(err, &e) {
		d.fail(w, r, err)
		return
	}
	switch {
	case e.Code == workspace.CodeNameTaken:
		f.fail("name", "field.group_taken")
	case e.Code == workspace.CodeNotFound && f.Name == groupMember:
		f.fail("user", "field.no_user")
	case e.Code == workspace.CodeInvalid:
		f.Problem = f.lang.T("err." + string(e.Code))
	default:
		d.fail(w, r, err)
		return
	}
	d.again(w, r, c, f)
}

// removeMember removes a user from a group.
func (d *Dashboard) removeMember(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	id := r.PathValue("group")
	left, err := d.Admin.RemoveMember(r.Context(), c, id, r.PathValue("person"))
	if err != nil && workspace.CodeOf(err) != workspace.CodeNotFound { // another administrator was first
		d.fail(w, r, err)
		return
	}
	to, note := "/groups/"+id, "group_saved"
	if left.Claimed {
		note = "group_claimed"
	}
	if _, err := d.Store.Group(r.Context(), c, id); err != nil { // the user has left it
		to = "/groups"
	}
	d.redirect(w, r, notedAt(to, note, ""))
}
