package dashboard

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/running/templates"
	"codehub/internal/web/dashboard/catalogue"
	"codehub/internal/workspace"
	"codehub/internal/workspace/environ"
	"codehub/internal/workspace/lifecycle"
	"codehub/internal/workspace/template"
)

// templateCard is a template to create a workspace from.
type templateCard struct {
	Name, Title, Description, Icon string
	Chosen                         bool
	Href                           string
}

// templateIcon returns the icon of a template.
func templateIcon(name string) string {
	if name = cmp.Or(name, "box"); slices.Contains(template.Icons, name) {
		return name
	}
	return "box"
}

// param is a parameter of a template as a field.
type param struct {
	template.Parameter
	Field, Title, About string
}

// startTemplate is the template that a new workspace has unless its owner chooses another one.
const startTemplate = "empty"

// showTemplates fills in the templates of the form of a new workspace, or the workspace that it
// will be like. Without scripts, and when a card is clicked, the choice is in the address.
func (d *Dashboard) showTemplates(r *http.Request, c workspace.Caller, f *form) error {
	if d.Templates == nil {
		return nil
	}
	given := func(field string) string { return cmp.Or(r.PostFormValue(field), r.URL.Query().Get(field)) }
	link := r.URL.Path == openPath || r.PostFormValue("open") != "" // which must not choose whose settings it gets
	if like := given("like"); like != "" && !link {
		from, err := d.Store.Workspace(r.Context(), c, workspace.ID(like))
		if err != nil {
			return err
		}
		f.like(from)
		return nil
	}
	list, err := d.Templates.List(r.Context(), c)
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(e templates.Entry) bool { return e.Hidden })
	if len(list) == 0 {
		return nil
	}
	named := func(name string) int {
		return slices.IndexFunc(list, func(e templates.Entry) bool { return e.Name == name })
	}
	name, chosen := given("template"), -1
	if name != "" {
		if chosen = named(name); chosen < 0 {
			f.Problem = f.lang.T("create.template_gone")
		}
	}
	if chosen < 0 {
		chosen = max(named(startTemplate), 0)
	}
	for i, e := range list {
		f.Templates = append(f.Templates, templateCard{
			Name: e.Name, Title: e.TitleIn(f.lang.Code), Description: e.Description.In(f.lang.Code), Icon: templateIcon(e.Icon), Chosen: i == chosen,
			Href: templateLink(r, f.From, e.Name),
		})
	}
	e := list[chosen]
	f.template = &e
	f.projectOf(&e.Project)
	lacked, err := d.Templates.Lacked(r.Context(), c, e)
	if err != nil {
		return err
	}
	for _, name := range lacked {
		f.Lacks = append(f.Lacks, lackedOf(name, e.Name))
	}
	f.Value["template"] = e.Name
	f.Image = cmp.Or(e.Image, f.Image)
	f.Value["size"] = workspace.SizeNamed(e.Size)
	if e.Image != "" {
		f.Missing = "" // the default image is not needed
	}
	if r.Method == http.MethodGet {
		for _, field := range []string{"name", "description", "repo", "branch"} {
			f.Value[field] = cut(clean(r.URL.Query().Get(field)), workspace.MaxDescription)
		}
	}
	values := map[string]string{} // of a link
	for _, p := range e.Parameters {
		if field := "param." + p.Name; r.URL.Query().Has(field) {
			values[p.Name] = cut(clean(r.URL.Query().Get(field)), template.MaxValue)
		}
	}
	f.params(e.Template, values)
	return nil
}

// templateLink returns the address of the form of a new workspace with this template. On the page
// of a link to a repository it keeps the repository.
func templateLink(r *http.Request, from, name string) string {
	path, q := "/workspaces/new", url.Values{"from": {from}}
	switch {
	case r.URL.Path == openPath:
		path, q = openPath, r.URL.Query()
	case r.PostFormValue("open") != "":
		path, q = openPath, url.Values{}
		for _, field := range linkFields {
			q.Set(field, r.PostFormValue(field))
		}
	}
	q.Set("template", name)
	return path + "?" + q.Encode()
}

// like makes the form one of a workspace with the settings of another one.
func (f *form) like(from workspace.Workspace) {
	f.Like, f.likeFrom = from.Name, &from
	f.Value["like"], f.Value["name"], f.Value["description"] = string(from.ID), f.lang.T("create.like_name", from.Name), from.Description
	f.Value["image"], f.Value["size"] = from.ImageRef, from.Size
	f.projectOf(from.Project)
}

// projectOf shows what the new workspace works on unless the form says otherwise.
func (f *form) projectOf(p *workspace.Project) {
	if p == nil {
		return
	}
	f.Clones, f.Scripts = nil, p.Scripts
	for _, r := range p.Repositories {
		f.Clones = append(f.Clones, template.RepositoryText(r))
	}
}

// params shows the parameters of a template with these values, and for the others their defaults.
func (f *form) params(t template.Template, values map[string]string) {
	f.Params = nil
	for _, p := range t.Parameters {
		field := "param." + p.Name
		f.Params = append(f.Params, param{p, field, p.TitleIn(f.lang.Code), p.Description.In(f.lang.Code)})
		value, ok := values[p.Name]
		if !ok {
			value = p.Default
		}
		if f.r.Method == http.MethodPost {
			value = f.r.PostFormValue(field)
			if p.Type == template.Boolean && value != "true" {
				value = "false"
			}
		}
		f.Value[field] = value
	}
}

// paramValues returns the values of the parameters in the form.
func (f *form) paramValues() map[string]string {
	values := map[string]string{}
	for _, p := range f.Params {
		values[p.Name] = f.Value[p.Field]
	}
	return values
}

// failTemplate shows the refusal of a parameter at its field. ok is false for other errors.
func (f *form) failTemplate(err error) (ok bool) {
	var value *template.ValueError
	var env *environ.Error
	switch {
	case errors.As(err, &value):
		var args []any
		switch value.Reason {
		case template.Mismatch:
			args = []any{value.Parameter.Pattern}
		case template.TooLong:
			args = []any{template.MaxValue}
		}
		f.Errors["param."+value.Name] = f.lang.T("param."+value.Reason, args...)
	case errors.As(err, &env):
		f.failEnv(env)
		f.Problem = f.Errors["env"]
	default:
		return false
	}
	return true
}

// settle sets what a new workspace gets from its template, or from the one that it is like.
func (d *Dashboard) settle(ctx context.Context, c workspace.Caller, f *form, n *postgres.NewWorkspace) error {
	switch {
	case f.likeFrom != nil:
		templates.Copy(n, *f.likeFrom)
		n.Description = f.Value["description"]
	case f.template != nil:
		use, err := d.Templates.Use(ctx, c, f.template.Name, f.paramValues())
		if err != nil {
			return err
		}
		templates.Fill(n, use)
	}
	if len(f.Sizes) > 0 {
		n.Size = f.Value["size"]
	}
	return nil
}

// duplicate is the form of a new workspace with the settings of another one.
func (d *Dashboard) duplicate(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	q := r.URL.Query()
	q.Set("like", string(ws.ID))
	r.URL.RawQuery = q.Encode()
	d.dialog("new")(w, r, c)
}

// settingChange is a setting that an update changes. Label is its text; a value that is not set is empty.
type settingChange struct{ Label, From, To string }

// showUpdate fills in what an update to the present version of the template changes. CodeNotFound
// if the caller may not use the template.
func (d *Dashboard) showUpdate(ctx context.Context, c workspace.Caller, f *form, ws workspace.Workspace) error {
	if d.Templates == nil || ws.Template == nil {
		return workspace.NotFound("template")
	}
	if _, err := d.Templates.Find(ctx, c, ws.Template.Name); err != nil {
		return err
	}
	u, ok := d.Templates.UpdateOf(ws)
	if !ok {
		return workspace.InvalidField("template", "has no other version for this workspace.")
	}
	f.params(u.Entry.Template, u.Entry.Kept(ws.Template.Parameters))
	f.Changes = settingChanges(f.lang, ws, u.Change)
	return nil
}

func settingChanges(l *catalogue.Language, ws workspace.Workspace, c lifecycle.TemplateChange) (list []settingChange) {
	add := func(label, from, to string) { list = append(list, settingChange{label, from, to}) }
	size := func(name string) string {
		if name == "" {
			return l.T("size.default")
		}
		return name
	}
	ttl := func(n *int) string {
		switch {
		case n == nil:
			return l.T("ttl.server_short")
		case *n == 0:
			return l.T("ttl.never")
		}
		return l.Lasting(time.Duration(*n) * time.Second)
	}
	if c.Image != nil {
		add(l.T("facts.image"), ws.ImageRef, *c.Image)
	}
	if c.Size != nil {
		add(l.T("facts.size"), size(ws.Size), size(*c.Size))
	}
	names := make([]string, 0, len(c.Env))
	for name := range c.Env {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		to := ""
		if v := c.Env[name]; v != nil {
			to = *v
		}
		add(name, ws.Env[name], to)
	}
	if c.StandbyTTL.Set {
		add(l.T("ttl.standby"), ttl(ws.StandbyTTL), ttl(c.StandbyTTL.Value))
	}
	if c.ArchiveTTL.Set {
		add(l.T("ttl.archive"), ttl(ws.ArchiveTTL), ttl(c.ArchiveTTL.Value))
	}
	if c.BackupInterval.Set {
		add(l.T("ttl.backup"), ttl(ws.BackupInterval), ttl(c.BackupInterval.Value))
	}
	if c.BackupKeep != nil {
		add(l.T("field.backup_keep"), cmp.Or(ws.BackupKeep, l.T("ttl.server_short")), cmp.Or(*c.BackupKeep, l.T("ttl.server_short")))
	}
	if c.Project.Set {
		var from, to workspace.Project
		if ws.Project != nil {
			from = *ws.Project
		}
		if c.Project.Value != nil {
			to = *c.Project.Value
		}
		for _, change := range template.DiffProject(from, to) {
			part := change.Field[:strings.IndexAny(change.Field+".", ".[")]
			add(l.T("project."+part), change.From, change.To)
		}
	}
	return list
}

// updateTemplate applies the present version of the template, with the parameters of the form.
func (d *Dashboard) updateTemplate(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err == nil && (d.Templates == nil || ws.Template == nil) {
		err = workspace.NotFound("template")
	}
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	f := d.form("update-template", r, &ws)
	if err := d.showUpdate(r.Context(), c, f, ws); err != nil {
		if _, available := d.Templates.UpdateOf(ws); !available { // it was applied in another window
			d.done(w, r, c, ws.ID, "update-template")
			return
		}
		d.refuse(w, r, c, ws.ID, err)
		return
	}
	if _, err := d.Templates.Apply(r.Context(), c, ws.ID, f.paramValues()); err != nil {
		if f.failTemplate(err) {
			d.again(w, r, c, f)
			return
		}
		d.refuseForm(w, r, c, f, err)
		return
	}
	d.done(w, r, c, ws.ID, "update-template")
}

// revertTemplate takes back the last update of the template.
func (d *Dashboard) revertTemplate(ctx context.Context, c workspace.Caller, id workspace.ID, _ *http.Request) (string, error) {
	if d.Templates == nil {
		return "", workspace.NotFound("template")
	}
	_, err := d.Templates.Revert(ctx, c, id)
	return "revert-template", err
}

// updates reports whether an update of the workspace's template is available.
func (d *Dashboard) updates(w workspace.Workspace) bool {
	_, available := d.Templates.UpdateOf(w)
	return available
}
