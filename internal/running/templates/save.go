package templates

import (
	"context"
	"errors"
	"strings"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
	"codehub/internal/workspace/template"
)

// Preview is what saving a template would do.
type Preview struct {
	Entry      Entry
	New        bool // there is no template with this name
	Changes    []template.Change
	Workspaces int // that get an update: they were created from it, and what it gives changes
}

// Preview checks a template. CodeInvalid, with template.Problems, for one with mistakes. Only
// administrators may call it.
func (s *Service) Preview(ctx context.Context, caller workspace.Caller, name, text string) (Preview, error) {
	var p Preview
	users, err := s.cfg.Store.TemplateWorkspaces(ctx, caller, name) // CodeForbidden
	if err != nil {
		return p, err
	}
	text = strings.ReplaceAll(text, "\r\n", "\n")
	t, err := template.Parse(name, []byte(text))
	if err == nil {
		err = s.check(t)
	}
	if err != nil {
		return p, refused(err)
	}
	c, err := s.read(ctx)
	if err != nil {
		return p, err
	}
	p.Entry = Entry{Template: t, Text: text, Source: FromSaved, SavedBy: caller.Username}
	var before template.Template
	if e := c.find(name); e != nil {
		before = e.Template
	} else {
		p.New = true
	}
	p.Changes = template.Diff(before, t)
	if before.Version() != t.Version() && !t.Hidden {
		p.Workspaces = users
	}
	return p, nil
}

// refused is CodeInvalid of template.Problems.
func refused(err error) error {
	var list template.Problems
	if !errors.As(err, &list) {
		return err
	}
	details := make([]map[string]any, len(list))
	for i, p := range list {
		details[i] = map[string]any{"line": p.Line, "field": p.Field, "problem": p.Text}
	}
	return &workspace.Error{Code: workspace.CodeInvalid, Message: "The template is not valid: " + list.Error() + ".",
		Details: map[string]any{"field": "text", "problems": details}, Err: err}
}

// Save adds a version of a template, in place of another one of its name. See Preview.
func (s *Service) Save(ctx context.Context, caller workspace.Caller, name, text string) (Preview, error) {
	p, err := s.Preview(ctx, caller, name, text)
	if err != nil {
		return p, err
	}
	if err := s.cfg.Store.SaveTemplate(ctx, caller, name, p.Entry.Text); err != nil {
		return p, err
	}
	c, err := s.read(ctx)
	if err != nil {
		return p, err
	}
	if e := c.find(name); e != nil {
		p.Entry = *e
	}
	return p, nil
}

// Delete deletes a saved template; that of the folder or the built-in one of its name is offered
// again. CodeNotFound; CodeInvalid for one that is not saved. Only administrators may call it.
func (s *Service) Delete(ctx context.Context, caller workspace.Caller, name string) error {
	err := s.cfg.Store.SaveTemplate(ctx, caller, name, "")
	if workspace.CodeOf(err) == workspace.CodeNotFound && s.current.Load().find(name) != nil {
		return workspace.InvalidField("template", "is built in or a file of the folder. To hide it, save one of its name with hidden: true.")
	}
	if err == nil {
		_, err = s.read(ctx)
	}
	return err
}

// History returns the versions of a saved template, newest first. Only administrators may call it.
func (s *Service) History(ctx context.Context, caller workspace.Caller, name string) ([]postgres.SavedTemplate, error) {
	return s.cfg.Store.TemplateHistory(ctx, caller, name)
}

// Workspaces counts the workspaces that were created from a template. Only administrators may call
// it.
func (s *Service) Workspaces(ctx context.Context, caller workspace.Caller, name string) (int, error) {
	return s.cfg.Store.TemplateWorkspaces(ctx, caller, name)
}
