package dashboard

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/running/templates"
	"codehub/internal/workspace"
	"codehub/internal/workspace/template"
)

// templatesView is the administrators' page of templates.
type templatesView struct {
	List     []templateRow
	Problems []string // of the folder
}

type templateRow struct {
	templates.Entry
	Title, Description, Icon string
}

// templateView is the editor of a template.
type templateView struct {
	Name, Text string
	New        bool
	Source     string // empty: new
	SavedAt    time.Time
	SavedBy    string
	Workspaces int
	History    []templateVersion
	Shown      int64 // the version of the history that the editor has; 0: the present one

	Problems []template.Problem
	NameBad  bool
	Preview  *templates.Preview
}

type templateVersion struct {
	postgres.SavedTemplate
	Current bool
}

// templatesOnly passes requests of administrators to h if the server has templates.
func (d *Dashboard) templatesOnly(h callerHandler) callerHandler {
	return d.admin(func(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
		if d.Templates == nil {
			d.noPage(w, r)
			return
		}
		h(w, r, c)
	})
}

func (d *Dashboard) templatesPage(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	list, err := d.Templates.List(r.Context(), c)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	v := templatesView{Problems: d.Templates.Problems(c)}
	l := d.set(r).lang
	for _, e := range list {
		v.List = append(v.List, templateRow{e, e.TitleIn(l.Code), e.Description.In(l.Code), templateIcon(e.Icon)})
	}
	p := d.newPage(r, &c, "templates.title", v)
	p.Nav, p.Toast = "admin", d.noted(r, c)
	d.render(w, r, http.StatusOK, "templates", p)
}

// newTemplate is the editor of a new template, with the settings of a workspace if one is given.
func (d *Dashboard) newTemplate(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	v := templateView{New: true, Text: d.set(r).lang.T("templates.example")}
	if id := r.URL.Query().Get("workspace"); id != "" {
		ws, err := d.Store.Workspace(r.Context(), c, workspace.ID(id))
		if err != nil {
			d.fail(w, r, err)
			return
		}
		v.Text = template.Of("", ws)
	}
	d.showTemplate(w, r, c, http.StatusOK, v)
}

func (d *Dashboard) templatePage(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	v, err := d.editorOf(r, c, r.PathValue("template"))
	if err != nil {
		d.fail(w, r, err)
		return
	}
	if id, _ := strconv.ParseInt(r.URL.Query().Get("version"), 10, 64); id != 0 {
		for _, h := range v.History {
			if h.ID == id {
				v.Text, v.Shown = h.Text, id
			}
		}
	}
	d.showTemplate(w, r, c, http.StatusOK, v)
}

// editorOf returns the editor of a template that exists, or existed.
func (d *Dashboard) editorOf(r *http.Request, c workspace.Caller, name string) (templateView, error) {
	v := templateView{Name: name}
	history, err := d.Templates.History(r.Context(), c, name)
	if err != nil {
		return v, err
	}
	for i, h := range history {
		v.History = append(v.History, templateVersion{h, i == 0})
	}
	e, err := d.Templates.Find(r.Context(), c, name)
	switch {
	case workspace.CodeOf(err) == workspace.CodeNotFound && len(history) > 0: // it was deleted
		return v, nil
	case err != nil:
		return v, err
	}
	v.Text, v.Source, v.SavedAt, v.SavedBy = e.Text, e.Source, e.SavedAt, e.SavedBy
	v.Workspaces, err = d.Templates.Workspaces(r.Context(), c, name)
	return v, err
}

func (d *Dashboard) showTemplate(w http.ResponseWriter, r *http.Request, c workspace.Caller, status int, v templateView) {
	p := d.newPage(r, &c, "templates.new", v)
	if v.Name != "" && !v.New {
		p.Title = v.Name
	}
	p.Nav, p.Toast = "admin", d.noted(r, c)
	d.render(w, r, status, "template", p)
}

// saveTemplate checks the text of the editor, and shows what it would change or saves it.
func (d *Dashboard) saveTemplate(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	name := r.PathValue("template")
	v := templateView{Name: name, New: name == ""}
	if name == "" {
		name = strings.TrimSpace(r.PostFormValue("name"))
		v.Name = name
		if !template.ValidName(name) {
			v.NameBad, v.Text = true, clean(r.PostFormValue("text"))
			d.showTemplate(w, r, c, http.StatusUnprocessableEntity, v)
			return
		}
	} else {
		var err error
		if v, err = d.editorOf(r, c, name); err != nil {
			d.fail(w, r, err)
			return
		}
	}
	v.Text = clean(r.PostFormValue("text"))
	saving := r.PostFormValue("do") == "save"
	do := d.Templates.Preview
	if saving {
		do = d.Templates.Save
	}
	if v.New && saving {
		// A template that exists is shown with what changes before it is saved.
		p, err := d.Templates.Preview(r.Context(), c, name, v.Text)
		if err == nil && !p.New {
			v.New, v.Preview = false, &p
			d.showTemplate(w, r, c, http.StatusConflict, v)
			return
		}
	}
	p, err := do(r.Context(), c, name, v.Text)
	var problems template.Problems
	switch {
	case errors.As(err, &problems):
		v.Problems = problems
		d.showTemplate(w, r, c, http.StatusUnprocessableEntity, v)
	case err != nil:
		d.fail(w, r, err)
	case saving:
		d.redirect(w, r, notedAt("/admin/templates", "template_saved", ""))
	default:
		v.Preview = &p
		d.showTemplate(w, r, c, http.StatusOK, v)
	}
}

// restoreTemplate saves an earlier version again.
func (d *Dashboard) restoreTemplate(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	name := r.PathValue("template")
	v, err := d.editorOf(r, c, name)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	id, _ := strconv.ParseInt(r.PostFormValue("version"), 10, 64)
	for _, h := range v.History {
		if h.ID != id || h.Text == "" {
			continue
		}
		_, err := d.Templates.Save(r.Context(), c, name, h.Text)
		var problems template.Problems
		switch {
		case errors.As(err, &problems): // such as a size that is no longer offered
			v.Text, v.Shown, v.Problems = h.Text, id, problems
			d.showTemplate(w, r, c, http.StatusUnprocessableEntity, v)
		case err != nil:
			d.fail(w, r, err)
		default:
			d.redirect(w, r, notedAt("/admin/templates", "template_saved", ""))
		}
		return
	}
	d.fail(w, r, workspace.NotFound("template"))
}

func (d *Dashboard) deleteTemplate(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	if err := d.Templates.Delete(r.Context(), c, r.PathValue("template")); err != nil {
		d.fail(w, r, err)
		return
	}
	d.redirect(w, r, notedAt("/admin/templates", "template_deleted", ""))
}
