package dashboard

import (
	"errors"
	"net/http"
	"time"

	"codehub/api"
	"codehub/internal/users/gitidentity"
	"codehub/internal/workspace"
)

// gitIdentityView is the author of commits and the SSH key on the account page.
type gitIdentityView struct {
	api.GitIdentity
	Now time.Time
}

func (d *Dashboard) readGitIdentity(r *http.Request, c workspace.Caller) (gitIdentityView, error) {
	g, err := d.GitIdentities.Get(r.Context(), c)
	return gitIdentityView{g, d.Now()}, err
}

// Forms about the author of commits and the SSH key.
const (
	gitIdentityEdit = "git-identity"
	gitIdentityKey  = "git-key"
)

func (d *Dashboard) gitIdentityForm(name string, r *http.Request) *form {
	f := d.form(name, r, nil)
	f.Action, f.Back = "/settings/git-identity", "/settings/account"
	if name == gitIdentityKey {
		f.Action, f.Danger = f.Action+"/key", true
	}
	return f
}

func (d *Dashboard) gitIdentityDialog(name string) callerHandler {
	return func(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
		f := d.gitIdentityForm(name, r)
		g, err := d.GitIdentities.Get(r.Context(), c)
		if err != nil {
			d.fail(w, r, err)
			return
		}
		f.Value["git_name"], f.Value["git_email"] = g.Name, g.Email
		if g.SignCommits {
			f.Value["sign"] = "on"
		}
		d.showForm(w, r, c, http.StatusOK, f)
	}
}

func (d *Dashboard) setGitIdentity(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	f := d.gitIdentityForm(gitIdentityEdit, r)
	f.line("git_name", gitidentity.MaxName, false)
	f.line("git_email", gitidentity.MaxEmail, false)
	f.Value["sign"] = r.PostFormValue("sign")
	if f.bad() {
		d.again(w, r, c, f)
		return
	}
	_, err := d.GitIdentities.Set(r.Context(), c, api.SetGitIdentity{Name: f.Value["git_name"], Email: f.Value["git_email"], SignCommits: f.Value["sign"] != ""})
	d.gitIdentityChanged(w, r, c, f, "git_identity_saved", err)
}

func (d *Dashboard) newGitKey(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	_, err := d.GitIdentities.NewKey(r.Context(), c)
	d.gitIdentityChanged(w, r, c, d.gitIdentityForm(gitIdentityKey, r), "git_key_made", err)
}

func (d *Dashboard) gitIdentityChanged(w http.ResponseWriter, r *http.Request, c workspace.Caller, f *form, note string, err error) {
	var e *workspace.Error
	switch {
	case err == nil:
		d.redirect(w, r, notedAt(f.Back, note, ""))
		return
	case !errors.As(err, &e):
		d.fail(w, r, err)
		return
	case e.Code == workspace.CodeNotSupported:
		f.Problem = f.lang.T("git_identity.no_key")
	case e.Code == workspace.CodeInvalid:
		field, _ := e.Details["field"].(string)
		f.fail("git_"+field, "git_identity.invalid."+field)
	default:
		d.fail(w, r, err)
		return
	}
	d.again(w, r, c, f)
}
