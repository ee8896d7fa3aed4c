package dashboard

import (
	"encoding/csv"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"time"

	"codehub/api"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// invitationPath is the page of an invitation. The link has the secret as its fragment, which
// browsers send to no server and in no Referer. A script of the page posts it.
const invitationPath = "/invitation"

func (d *Dashboard) invitationPage(w http.ResponseWriter, r *http.Request) {
	e := entry{}
	if !d.Auth.PasswordLogin() {
		e.Problem = d.set(r).lang.T("invitation.no_passwords")
	}
	d.showInvitation(w, r, http.StatusOK, e)
}

func (d *Dashboard) showInvitation(w http.ResponseWriter, r *http.Request, status int, e entry) {
	p := d.newPage(r, nil, "invitation.title", e)
	p.Plain, p.Path = true, invitationPath
	if e.Username != "" {
		p.Path += "#" + url.PathEscape(e.Code) // another language shows the same
	}
	d.render(w, r, status, "invitation", p)
}

// invitation shows whom the secret of an invitation is for and, once it has a password, sets it
// and logs in.
func (d *Dashboard) invitation(w http.ResponseWriter, r *http.Request) {
	l := d.set(r).lang
	e := entry{Code: strings.TrimSpace(r.PostFormValue("code")), Errors: map[string]string{}}
	var err error
	if e.Username, err = d.Auth.Invited(r.Context(), e.Code, auth.ClientOf(r)); err != nil {
		d.refuseInvitation(w, r, e, err)
		return
	}
	if !r.PostForm.Has("password") {
		d.showInvitation(w, r, http.StatusOK, e)
		return
	}
	password := r.PostFormValue("password")
	switch {
	case auth.ShortPassword(password):
		e.Errors["password"] = l.T("setup.password_short", auth.MinPassword)
	case password != r.PostFormValue("password2"):
		e.Errors["password2"] = l.T("setup.password_mismatch")
	}
	if len(e.Errors) > 0 {
		d.showInvitation(w, r, http.StatusUnprocessableEntity, e)
		return
	}
	entered, err := d.Auth.AcceptInvitation(r.Context(), e.Code, password, auth.ClientOf(r))
	if err != nil {
		d.refuseInvitation(w, r, e, err)
		return
	}
	d.entered(w, r, entered, "/")
}

func (d *Dashboard) refuseInvitation(w http.ResponseWriter, r *http.Request, e entry, err error) {
	l := d.set(r).lang
	switch workspace.CodeOf(err) {
	case workspace.CodeNotFound:
		e.Code, e.Username, e.Problem = "", "", l.T("invitation.over")
	case workspace.CodeNotSupported:
		e.Code, e.Username, e.Problem = "", "", l.T("invitation.no_passwords")
	case workspace.CodeInvalid:
		e.Errors["password"] = l.T("invitation.refused")
	default:
		e.Problem = d.entryProblem(r, err)
	}
	retryAfter(w, err)
	d.showInvitation(w, r, statusOf(err), e)
}

// invited are users with new invitations, whose links are shown once.
type invited struct {
	Users []api.Account
	Until time.Time
}

// Only is the user, if there is one alone.
func (v invited) Only() *api.Account {
	if len(v.Users) == 1 {
		return &v.Users[0]
	}
	return nil
}

// CSV is the address of the list as a file.
func (v invited) CSV() template.URL {
	var b strings.Builder
	w := csv.NewWriter(&b)
	_ = w.Write([]string{"name", "link"}) // a Builder does not fail
	for _, u := range v.Users {
		_ = w.Write([]string{u.Username, u.InvitationURL})
	}
	w.Flush()
	return template.URL("data:text/csv;charset=utf-8," + url.PathEscape(b.String()))
}

// showInvited shows the links of new invitations.
func (d *Dashboard) showInvited(w http.ResponseWriter, r *http.Request, c workspace.Caller, users ...api.Account) {
	made := invited{Users: users}
	if until := users[0].InvitedUntil; until != nil {
		made.Until = *until
	}
	if !isHTMX(r) {
		p := d.newPage(r, &c, "invited.title", made)
		p.Nav = "admin"
		d.render(w, r, http.StatusOK, "invited", p)
		return
	}
	parts := []part{{"invited-dialog", made}}
	if asPage(r) {
		d.fragments(w, r, http.StatusOK, parts...)
		return
	}
	if v, err := d.readAdmin(r.Context(), c, adminPagesOf(r)); err == nil {
		v.OOB = true
		parts = append(parts, part{"admin-people", v})
	} else {
		d.logFailure(r, err) // the links must be shown
	}
	d.fragments(w, r, http.StatusOK, parts...)
}

// invitePerson gives a user a new invitation.
func (d *Dashboard) invitePerson(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	f, err := d.userForm("person-invite", r)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	a, err := d.Admin.InviteAccount(r.Context(), c, f.User.ID)
	switch workspace.CodeOf(err) {
	case "":
		if err != nil {
			d.fail(w, r, err)
			return
		}
		d.showInvited(w, r, c, a)
	case workspace.CodeInvalid:
		f.Problem = f.lang.T("person.cannot_invite")
		d.again(w, r, c, f)
	case workspace.CodeNotSupported:
		f.Problem = f.lang.T("invitation.no_passwords")
		d.again(w, r, c, f)
	default:
		d.refuseUser(w, r, c, err)
	}
}

// importPeople creates the users of a list.
func (d *Dashboard) importPeople(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	f, err := d.userForm("person-import", r)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	if f.Value["csv"] = r.PostFormValue("csv"); strings.TrimSpace(f.Value["csv"]) == "" {
		f.fail("csv", "field.required")
		d.again(w, r, c, f)
		return
	}
	made, err := d.Admin.ImportAccounts(r.Context(), c, api.ImportAccounts{CSV: f.Value["csv"]})
	var e *workspace.Error
	if errors.As(err, &e) {
		if problems, ok := e.Details["lines"].([]api.ImportProblem); ok {
			f.fail("csv", "import.refused")
			for _, p := range problems {
				f.Lines = append(f.Lines, f.lang.T("import.line", p.Line, f.lang.T("import."+p.Reason)))
			}
			d.again(w, r, c, f)
			return
		}
	}
	if err != nil {
		d.refuseUserForm(w, r, c, f, err)
		return
	}
	d.showInvited(w, r, c, made.Users...)
}
