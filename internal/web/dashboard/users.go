package dashboard

import (
	"errors"
	"net/http"
	"strconv"
	"strings"

	"codehub/api"
	"codehub/internal/base/setting"
	"codehub/internal/postgres"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// Values of the field of a user's running limit.
const (
	limitServer = "server" // the server's
	limitOwn    = "own"
	limitNone   = "none"
)

// maxOwnLimit bounds a user's custom limit, as the API does (admin.MaxRunning), so that a limit
// set there can be saved here.
const maxOwnLimit = 1_000_000

// userForm returns a form about an existing or a new user.
func (d *Dashboard) userForm(name string, r *http.Request) (*form, error) {
	f := d.form(name, r, nil)
	f.Back, f.Value["limit"] = "/admin", limitServer
	id := r.PathValue("person")
	if id == "" {
		f.Action = "/admin/people"
		if name == "person-import" {
			f.Action += "/import"
		}
		return f, nil
	}
	u, err := d.Store.User(r.Context(), id)
	if err != nil {
		return nil, err
	}
	f.User = &u
	if name == "person-delete" {
		q, err := d.Store.Quotas(r.Context(), workspace.Caller{UserID: u.ID})
		if err != nil {
			return nil, err
		}
		f.Owned = q.Workspaces
		f.Value["theirs"] = theirsHandOver
	}
	f.Action = "/admin/people/" + u.ID + "/" + strings.TrimPrefix(name, "person-")
	switch {
	case u.MaxRunning == nil:
	case *u.MaxRunning == 0:
		f.Value["limit"] = limitNone
	default:
		f.Value["limit"], f.Value["limit_n"] = limitOwn, strconv.Itoa(*u.MaxRunning)
	}
	for field, n := range map[string]*int64{"max_workspaces": wide(u.MaxWorkspaces), "max_bytes": u.MaxBytes} {
		if n != nil {
			f.Value[field] = strconv.FormatInt(*n, 10)
		}
	}
	if u.MaxBytes != nil {
		f.Value["max_bytes"] = bytesText(*u.MaxBytes)
	}
	f.Danger = name == "person-disable" || name == "person-take-admin" || name == "person-delete" || name == "person-passkeys"
	return f, nil
}

// wide is a number as int64.
func wide(n *int) *int64 {
	if n == nil {
		return nil
	}
	return new(int64(*n))
}

// bytesText writes a size as setting.Bytes reads it.
func bytesText(n int64) string {
	for _, u := range []struct {
		suffix string
		bytes  int64
	}{{"g", 1 << 30}, {"m", 1 << 20}, {"k", 1 << 10}} {
		if n > 0 && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10)
}

// quota reads a user's limits of workspaces and their size. An empty field is the server's limit.
func (f *form) quota(p *api.PatchAccount) {
	f.Value["max_bytes"] = strings.TrimSpace(f.r.PostFormValue("max_bytes"))
	p.MaxWorkspaces, p.MaxBytes.Set = f.number("max_workspaces"), true
	if s := f.Value["max_bytes"]; s != "" {
		n, err := setting.Bytes(s)
		if err != nil || n > maxOwnBytes {
			f.fail("max_bytes", "field.size_bad")
		}
		p.MaxBytes.Value = &n
	}
}

// number reads a limit. An empty field is the server's limit.
func (f *form) number(field string) api.Nullable[int] {
	v := api.Nullable[int]{Set: true}
	if f.Value[field] = strings.TrimSpace(f.r.PostFormValue(field)); f.Value[field] != "" {
		n, err := strconv.Atoi(f.Value[field])
		if err != nil || n < 0 || n > maxOwnLimit {
			f.fail(field, "field.quota_bad", maxOwnLimit)
		}
		v.Value = &n
	}
	return v
}

// maxOwnBytes bounds a user's limit of bytes, as the API does (admin.MaxBytes).
const maxOwnBytes = 1 << 50

// Values of the field of what becomes of a deleted user's workspaces.
const (
	theirsDelete   = "delete"
	theirsHandOver = "hand_over"
)

// deletePerson handles the form by which a user is deleted.
func (d *Dashboard) deletePerson(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	f, err := d.userForm("person-delete", r)
	if err != nil {
		d.refuseUser(w, r, c, err)
		return
	}
	f.Value["theirs"] = r.PostFormValue("theirs")
	removal := postgres.Removal{Workspaces: f.Value["theirs"]}
	if f.Owned == 0 {
		removal.Workspaces = ""
	}
	if removal.Workspaces == theirsHandOver {
		f.line("to", 255, true)
		if !f.bad() {
			if removal.To, err = d.userNamed(r.Context(), f.Value["to"]); err != nil {
				f.fail("to", "field.no_user")
			}
		}
	}
	if f.Owned > 0 && removal.Workspaces != theirsDelete && removal.Workspaces != theirsHandOver {
		f.fail("theirs", "field.required")
	}
	if f.bad() {
		d.again(w, r, c, f)
		return
	}
	if err := d.Store.DeleteAccount(r.Context(), c, f.User.ID, removal); err != nil {
		switch workspace.CodeOf(err) {
		case workspace.CodeNotStopped, workspace.CodeConfirmRequired:
			f.Problem = f.lang.T("person.not_stopped")
		case workspace.CodeInvalid:
			if f.fail("to", "field.cannot_receive"); f.User.ID == c.UserID {
				f.Problem = f.lang.T("person.self")
			}
		default:
			d.refuseUser(w, r, c, err)
			return
		}
		d.again(w, r, c, f)
		return
	}
	d.usersChanged(w, r, c, f.lang.T("toast.person_delete", f.User.Username))
}

// userDialog serves a form about a user.
func (d *Dashboard) userDialog(name string) callerHandler {
	return func(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
		f, err := d.userForm(name, r)
		if err != nil {
			d.fail(w, r, err)
			return
		}
		d.showForm(w, r, c, http.StatusOK, f)
	}
}

// ownLimit reads a user's running limit.
func (f *form) ownLimit() (v api.Nullable[int]) {
	f.Value["limit"], f.Value["limit_n"] = f.r.PostFormValue("limit"), strings.TrimSpace(f.r.PostFormValue("limit_n"))
	n := 0
	switch f.Value["limit"] {
	case limitServer:
		return api.Nullable[int]{Set: true}
	case limitNone:
	case limitOwn:
		var err error
		if n, err = strconv.Atoi(f.Value["limit_n"]); err != nil || n < 1 || n > maxOwnLimit {
			f.fail("limit", "field.limit_bad", maxOwnLimit)
		}
	default:
		f.fail("limit", "field.required")
	}
	return api.Nullable[int]{Set: true, Value: &n}
}

// newPassword reads the password that an administrator sets for a user.
func (f *form) newPassword() string {
	password := f.r.PostFormValue("password")
	switch {
	case password == "":
		f.fail("password", "field.required")
	case auth.ShortPassword(password):
		f.fail("password", "setup.password_short", auth.MinPassword)
	case password != f.r.PostFormValue("password2"):
		f.fail("password2", "setup.password_mismatch")
	}
	return password
}

func (d *Dashboard) addPerson(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	f, err := d.userForm("person-new", r)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	f.line("username", 64, true)
	f.Value["admin"] = r.PostFormValue("admin")
	password := "" // an invitation
	if r.PostFormValue("password")+r.PostFormValue("password2") != "" {
		password = f.newPassword()
	}
	in := api.CreateAccount{Username: f.Value["username"], Password: password, Admin: f.Value["admin"] != "", MaxRunning: f.ownLimit().Value}
	if f.bad() {
		d.again(w, r, c, f)
		return
	}
	a, err := d.Admin.CreateAccount(r.Context(), c, in)
	if err != nil {
		d.refuseUserForm(w, r, c, f, err)
		return
	}
	if a.InvitationURL != "" {
		d.showInvited(w, r, c, a)
		return
	}
	d.usersChanged(w, r, c, f.lang.T("toast.person_added", a.Username))
}

// changeUser handles the form with that name.
func (d *Dashboard) changeUser(name string) callerHandler {
	return func(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
		f, err := d.userForm(name, r)
		if err != nil {
			d.fail(w, r, err)
			return
		}
		p := f.userPatch()
		if f.bad() {
			d.again(w, r, c, f)
			return
		}
		a, err := d.Admin.PatchAccount(r.Context(), c, f.User.ID, p)
		if err != nil {
			d.refuseUserForm(w, r, c, f, err)
			return
		}
		d.usersChanged(w, r, c, f.lang.T("toast."+strings.ReplaceAll(name, "-", "_"), a.Username))
	}
}

// userPatch returns what the form changes of the user.
func (f *form) userPatch() (p api.PatchAccount) {
	yes, no := true, false
	switch f.Name {
	case "person-limit":
		p.MaxRunning = f.ownLimit()
	case "person-password":
		password := f.newPassword()
		p.Password = &password
	case "person-make-admin":
		p.Admin = &yes
	case "person-take-admin":
		p.Admin = &no
	case "person-quota":
		f.quota(&p)
	case "person-disable":
		p.Disabled = &yes
		f.Value["stop"] = f.r.PostFormValue("stop")
		p.StopWorkspaces = f.Value["stop"] != ""
	case "person-enable":
		p.Disabled = &no
	}
	return p
}

// refuseUserForm responds to a refused form about a user: in the form, if the administrator can
// correct it there.
func (d *Dashboard) refuseUserForm(w http.ResponseWriter, r *http.Request, c workspace.Caller, f *form, err error) {
	var e *workspace.Error
	if !errors.As(err, &e) {
		d.refuseUser(w, r, c, err)
		return
	}
	switch e.Code {
	case workspace.CodeNameTaken:
		f.fail("username", "field.username_taken")
	case workspace.CodeInvalid, workspace.CodeTooLarge:
		f.Problem = f.lang.T("setup.refused")
	case workspace.CodeLastAdmin, workspace.CodeTooManyAttempts, workspace.CodeOneAccount:
		f.Problem = f.lang.T("err." + string(e.Code))
	case workspace.CodeNotSupported:
		f.Problem = f.lang.T("invitation.no_passwords")
	default:
		d.refuseUser(w, r, c, err)
		return
	}
	d.again(w, r, c, f)
}

// refuseUser responds with a message if a form cannot correct the error.
func (d *Dashboard) refuseUser(w http.ResponseWriter, r *http.Request, c workspace.Caller, err error) {
	if !isHTMX(r) {
		d.fail(w, r, err)
		return
	}
	d.logFailure(r, err)
	l := d.set(r).lang
	text := l.T("err.internal")
	if code := workspace.CodeOf(err); code != "" && l.Has("err."+string(code)) {
		text = l.T("err." + string(code))
	}
	d.fragments(w, r, statusOf(err), part{"close-dialog", nil}, part{"toast-oob", &toast{Text: text, Error: true}})
}

// usersChanged responds to a change that was made.
func (d *Dashboard) usersChanged(w http.ResponseWriter, r *http.Request, c workspace.Caller, text string) {
	if !isHTMX(r) || asPage(r) {
		d.redirect(w, r, notedAt("/admin", "person", ""))
		return
	}
	parts := []part{{"close-dialog", nil}, {"toast-oob", &toast{Text: text}}}
	// Redraw the page of users that is open.
	if v, err := d.readAdmin(r.Context(), c, adminPagesOf(r)); err == nil {
		v.OOB = true
		parts = append([]part{{"admin-people", v}}, parts...)
	} else {
		d.logFailure(r, err)
	}
	d.fragments(w, r, http.StatusOK, parts...)
}
