package httpapi

import (
	"cmp"
	"net/http"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/running/service"
	"codehub/internal/running/templates"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
	"codehub/internal/workspace/template"
)

func templateView(e templates.Entry) api.Template {
	v := api.Template{
		Name: e.Name, Title: texts(e.Title), Description: texts(e.Description), Icon: e.Icon, Image: e.Image, Size: cmp.Or(e.Size, workspace.DefaultSize),
		Env: texts(e.Env), StandbyTTLSeconds: e.Stop, ArchiveTTLSeconds: e.Archive,
		BackupIntervalSeconds: e.BackupInterval, BackupKeep: e.BackupKeep, Groups: listed(e.Groups), Hidden: e.Hidden,
		Version: e.Version(), Source: e.Source, SavedBy: e.SavedBy,
		Repositories: each(e.Project.Repositories, func(r workspace.Repository) api.Repository { return api.Repository(r) }),
		Scripts:      service.Scripts(e.Project.Scripts), Extensions: listed(e.Project.Extensions), Ports: service.Ports(&e.Project),
		RequiredSecrets: listed(e.Project.Secrets),
		Parameters: each(e.Parameters, func(p template.Parameter) api.TemplateParameter {
			return api.TemplateParameter{
				Name: p.Name, Title: texts(p.Title), Description: texts(p.Description), Type: p.Type, Default: p.Default, Required: p.Required,
				Pattern: p.Pattern, Options: listed(p.Options),
			}
		}),
	}
	if !e.SavedAt.IsZero() {
		at := e.SavedAt.UTC()
		v.SavedAt = &at
	}
	return v
}

// texts is m, never null.
func texts[M ~map[string]string](m M) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// listed is list, never null.
func listed(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

func (s *server) listTemplates(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	list, err := s.cfg.Templates.List(r.Context(), id.Caller)
	return reply(w, http.StatusOK, api.TemplateList{Templates: each(list, templateView), Problems: s.cfg.Templates.Problems(id.Caller)}, err)
}

func (s *server) getTemplate(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	e, err := s.cfg.Templates.Find(r.Context(), id.Caller, r.PathValue("name"))
	if err != nil {
		return err
	}
	v := templateView(e)
	if v.MissingSecrets, err = s.cfg.Templates.Lacked(r.Context(), id.Caller, e); err != nil {
		return err
	}
	if id.Caller.Admin {
		n, err := s.cfg.Templates.Workspaces(r.Context(), id.Caller, e.Name)
		if err != nil {
			return err
		}
		history, err := s.cfg.Templates.History(r.Context(), id.Caller, e.Name)
		if err != nil {
			return err
		}
		v.Text, v.Workspaces = e.Text, &n
		v.History = each(history, func(h postgres.SavedTemplate) api.TemplateVersion {
			return api.TemplateVersion{ID: h.ID, SavedAt: h.SavedAt.UTC(), SavedBy: h.SavedBy, Deleted: h.Text == "", Text: h.Text}
		})
	}
	return reply(w, http.StatusOK, v, nil)
}

func (s *server) saveTemplate(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.SaveTemplate) error {
	save := s.cfg.Templates.Save
	if in.DryRun {
		save = s.cfg.Templates.Preview
	}
	p, err := save(r.Context(), id.Caller, r.PathValue("name"), in.Text)
	return reply(w, http.StatusOK, api.SavedTemplate{
		Template: templateView(p.Entry), New: p.New, Workspaces: p.Workspaces,
		Changes: each(p.Changes, func(c template.Change) api.TemplateChange { return api.TemplateChange(c) }),
	}, err)
}

func (s *server) deleteTemplate(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	return replyNothing(w, s.cfg.Templates.Delete(r.Context(), id.Caller, r.PathValue("name")))
}

func (s *server) workspaceTemplate(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	ws, err := s.find(r, id)
	return reply(w, http.StatusOK, api.TemplateText{Text: template.Of("", ws)}, err)
}

func (s *server) updateTemplate(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.UpdateTemplate) error {
	ws, err := s.cfg.Templates.Apply(r.Context(), id.Caller, pathID(r), in.Parameters)
	return s.answer(w, http.StatusOK, ws, err)
}

func (s *server) revertTemplate(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	ws, err := s.cfg.Templates.Revert(r.Context(), id.Caller, pathID(r))
	return s.answer(w, http.StatusOK, ws, err)
}

// settle sets what a new workspace gets from its template and from the workspace that it is like,
// in this order of precedence after the request itself.
func (s *server) settle(r *http.Request, id auth.Identity, in api.CreateWorkspace, n *postgres.NewWorkspace) error {
	if in.Template != "" {
		use, err := s.cfg.Templates.Use(r.Context(), id.Caller, in.Template, in.Parameters)
		if err != nil {
			return err
		}
		templates.Fill(n, use)
	} else if len(in.Parameters) > 0 {
		return workspace.InvalidField("parameters", "are those of a template, and none is given.")
	}
	if in.Like != "" {
		if in.Template != "" {
			return workspace.InvalidField("like", "cannot be given with a template.")
		}
		from, err := s.cfg.Store.Workspace(r.Context(), id.Caller, workspace.ID(in.Like))
		if err != nil {
			return err
		}
		templates.Copy(n, from)
	}
	if in.Size != "" {
		n.Size = workspace.SizeNamed(in.Size)
	}
	return nil
}
