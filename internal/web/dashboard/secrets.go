package dashboard

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/users/secrets"
	"codehub/internal/workspace"
	"codehub/internal/workspace/environ"
	"codehub/internal/workspace/template"
)

// secretsView is a list of secrets: the user's, or those of a group.
type secretsView struct {
	Secrets []secretView
	Waiting []api.SecretWaiting
	Quota   quotaView
}

type secretView struct {
	api.Secret
	Deleted bool // the only workspace that gets it is deleted
	Now     time.Time
}

// Only is the template whose workspaces alone get the secret, or "".
func (v secretView) Only() string {
	if v.Template == nil {
		return ""
	}
	return *v.Template
}

// readSecrets reads the secrets of a group, or of the user and the user's groups.
func (d *Dashboard) readSecrets(r *http.Request, c workspace.Caller, group string) (v secretsView, err error) {
	var list api.SecretList
	if group == "" {
		list, err = d.Secrets.List(r.Context(), c)
	} else {
		list, err = d.Secrets.ListGroup(r.Context(), c, group)
	}
	if err != nil {
		return v, err
	}
	v.Waiting, v.Quota.Max = list.Waiting, postgres.MaxSecrets
	for _, s := range list.Secrets {
		if group != "" || s.GroupID == nil {
			v.Quota.N++
		}
		v.Secrets = append(v.Secrets, secretView{s, s.WorkspaceID != nil && s.WorkspaceName == "", d.Now()})
	}
	return v, nil
}

func (d *Dashboard) secretsPage(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	v, err := d.readSecrets(r, c, "")
	if err != nil {
		d.fail(w, r, err)
		return
	}
	p := d.newPage(r, &c, "secrets.title", v)
	p.Nav, p.Toast = "secrets", d.noted(r, c)
	d.render(w, r, http.StatusOK, "secrets", p)
}

// lackedSecret is a variable that no secret sets, and the address of the form that stores one.
type lackedSecret struct{ Env, Href string }

// lackedOf returns the variable for the workspaces of a template; empty: for all.
func lackedOf(name, template string) lackedSecret {
	q := url.Values{"env": {name}, "name": {strings.TrimLeft(name, "_")}}
	if template != "" {
		q.Set("for", forTemplate+template)
	}
	return lackedSecret{name, "/settings/secrets/new?" + q.Encode()}
}

// lackedBy returns the variables that a workspace of the user requires and does not have.
func (d *Dashboard) lackedBy(ctx context.Context, c workspace.Caller, w workspace.Workspace) (list []lackedSecret, err error) {
	if len(w.Project.AllSecrets()) == 0 || w.DeletedAt != nil {
		return nil, nil
	}
	template := ""
	if w.Template != nil {
		template = w.Template.Name
	}
	missing, err := d.Store.MissingSecrets(ctx, c, w.ID)
	for _, m := range missing {
		list = append(list, lackedOf(m.Env, template))
	}
	return list, err
}

// Forms about secrets.
const (
	secretNew    = "secret-new"
	secretEdit   = "secret-edit"
	secretDelete = "secret-delete"
)

// secretForm returns a form about a secret that exists, or a new one of the user or a group.
func (d *Dashboard) secretForm(name string, r *http.Request, c workspace.Caller) (*form, error) {
	f := d.form(name, r, nil)
	f.Back, f.Danger = "/settings/secrets", name == secretDelete
	group := r.PathValue("group")
	if name == secretNew {
		if r.Method == http.MethodGet { // of a link
			for _, field := range []string{"name", "env", "for"} {
				f.Value[field] = cut(clean(r.URL.Query().Get(field)), environ.MaxName)
			}
		}
		if f.Action = f.Back; group != "" {
			f.Back = "/groups/" + group
			f.Action = f.Back + "/secrets"
		}
	} else {
		s, err := d.Secrets.Get(r.Context(), c, r.PathValue("secret"))
		if err != nil {
			return nil, err
		}
		f.Action = f.Back + "/" + s.ID + "/" + strings.TrimPrefix(name, "secret-")
		if f.Secret = &s; s.GroupID != nil {
			group = *s.GroupID
			f.Back = "/groups/" + group
		}
		f.Value["env"], f.Value["file"] = s.Env, s.File
		if s.WorkspaceID != nil {
			f.Value["for"] = *s.WorkspaceID
		}
		if s.Template != nil {
			f.Value["for"] = forTemplate + *s.Template
		}
	}
	if group != "" {
		g, err := d.Store.Group(r.Context(), c, group)
		if err != nil {
			return nil, err
		}
		if !c.Admin {
			return nil, workspace.Errorf(workspace.CodeForbidden, "Only administrators can do this.")
		}
		f.Group = &g
		return f, d.showSecretTemplates(r, c, f)
	}
	if id := f.Value["for"]; f.Secret != nil && f.Secret.WorkspaceID != nil && f.Secret.WorkspaceName == "" {
		f.Choices = []choice{{id, f.lang.T("secrets.only_deleted")}}
	}
	if err := d.showTokenChoices(r, c, f); err != nil {
		return nil, err
	}
	return f, d.showSecretTemplates(r, c, f)
}

// forTemplate begins the choice of the workspaces of a template.
const forTemplate = "template:"

// showSecretTemplates adds the templates to those for which a secret may be, also one that is gone,
// since without it the form would choose all workspaces.
func (d *Dashboard) showSecretTemplates(r *http.Request, c workspace.Caller, f *form) error {
	var names []string
	if f.Secret != nil && f.Secret.Template != nil {
		names = append(names, *f.Secret.Template)
	}
	if _, asked := f.secretFor(); asked != "" && template.ValidName(asked) && !slices.Contains(names, asked) {
		names = append(names, asked)
	}
	if d.Templates != nil {
		list, err := d.Templates.List(r.Context(), c)
		if err != nil {
			return err
		}
		for _, e := range list {
			if !e.Hidden && !slices.Contains(names, e.Name) {
				names = append(names, e.Name)
			}
		}
	}
	for _, name := range names {
		f.Choices = append(f.Choices, choice{forTemplate + name, f.lang.T("secrets.only_template", name)})
	}
	return nil
}

// secretFor returns the workspace and the template for which the secret of a form is.
func (f *form) secretFor() (id, template string) {
	if name, ok := strings.CutPrefix(f.Value["for"], forTemplate); ok {
		return "", name
	}
	return f.Value["for"], ""
}

func (d *Dashboard) secretDialog(name string) callerHandler {
	return func(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
		f, err := d.secretForm(name, r, c)
		if err != nil {
			d.fail(w, r, err)
			return
		}
		d.showForm(w, r, c, http.StatusOK, f)
	}
}

// changeSecret handles the form with that name. No response has the value.
func (d *Dashboard) changeSecret(name string) callerHandler {
	return func(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
		f, err := d.secretForm(name, r, c)
		if err != nil {
			d.fail(w, r, err)
			return
		}
		note := "secret_saved"
		if name == secretDelete {
			note = "secret_deleted"
			err = d.Secrets.Delete(r.Context(), c, f.Secret.ID)
		} else {
			value := strings.ReplaceAll(r.PostFormValue("value"), "\r\n", "\n")
			f.line("env", environ.MaxName, false)
			f.line("file", secrets.MaxPath, false)
			f.Value["for"] = r.PostFormValue("for")
			if name == secretNew {
				f.line("name", secrets.MaxName, true)
				if value == "" {
					f.fail("value", "field.required")
				}
			}
			if f.bad() {
				d.again(w, r, c, f)
				return
			}
			err = d.saveSecret(r, c, f, value)
		}
		if err != nil {
			d.refuseSecret(w, r, c, f, err)
			return
		}
		d.redirect(w, r, notedAt(f.Back, note, ""))
	}
}

// saveSecret creates or changes the secret of a form; an empty value leaves that of an existing one.
func (d *Dashboard) saveSecret(r *http.Request, c workspace.Caller, f *form, value string) (err error) {
	env, file := f.Value["env"], f.Value["file"]
	id, template := f.secretFor()
	switch {
	case f.Name == secretNew && f.Group != nil:
		_, err = d.Secrets.CreateGroup(r.Context(), c, f.Group.ID, api.CreateSecret{Name: f.Value["name"], Value: value, Env: env, File: file, WorkspaceID: id, Template: template})
	case f.Name == secretNew:
		_, err = d.Secrets.Create(r.Context(), c, api.CreateSecret{Name: f.Value["name"], Value: value, Env: env, File: file, WorkspaceID: id, Template: template})
	default:
		in := api.UpdateSecret{Env: &env, File: &file}
		if value != "" {
			in.Value = &value
		}
		if in.WorkspaceID, in.Template = api.Null[string](), api.Null[string](); id != "" {
			in.WorkspaceID = api.Value(id)
		}
		if template != "" {
			in.Template = api.Value(template)
		}
		_, err = d.Secrets.Update(r.Context(), c, f.Secret.ID, in)
	}
	return err
}

// refuseSecret responds to a refused form: in the form, if the user can correct it there.
func (d *Dashboard) refuseSecret(w http.ResponseWriter, r *http.Request, c workspace.Caller, f *form, err error) {
	var e *workspace.Error
	if !errors.As(err, &e) {
		d.fail(w, r, err)
		return
	}
	field, _ := e.Details["field"].(string)
	switch e.Code {
	case workspace.CodeNameTaken:
		f.Errors[field] = f.lang.T("secrets.taken." + field)
	case workspace.CodeQuotaExceeded:
		f.Problem = quotaProblem(f.lang, e)
	case workspace.CodeNotSupported:
		f.Problem = f.lang.T("secrets.no_key")
	case workspace.CodeNotFound:
		f.fail("for", "secrets.no_workspace")
	case workspace.CodeInvalid:
		f.refuseField(field, e)
	default:
		d.fail(w, r, err)
		return
	}
	d.again(w, r, c, f)
}

// refuseField shows what is wrong with a field of a secret.
func (f *form) refuseField(field string, e *workspace.Error) {
	var bad *environ.Error
	switch {
	case errors.As(e, &bad):
		f.failEnv(bad)
	case field == "name" || field == "file" || field == "value":
		f.Errors[field] = f.lang.T("secrets.invalid." + field)
	case field == "env":
		f.fail(field, "secrets.no_target")
	default:
		f.Problem = f.lang.T("err." + string(e.Code))
	}
}
