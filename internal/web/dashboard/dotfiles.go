package dashboard

import (
	"context"
	"errors"
	"net/http"

	"codehub/api"
	"codehub/internal/running/attach"
	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
)

// Dotfiles applies them to running workspaces (*dotfiles.Service).
type Dotfiles interface {
	Apply(ctx context.Context, id workspace.ID) (agent.SetupStatus, error)
}

// dotfilesForm returns the form about the caller's dotfiles.
func (d *Dashboard) dotfilesForm(r *http.Request, c workspace.Caller) (*form, error) {
	f := d.form("dotfiles", r, nil)
	f.Action, f.Back = "/settings/dotfiles", "/settings/account"
	now, err := d.Store.Dotfiles(r.Context(), c)
	f.Value["repo"], f.Value["branch"] = now.URL, now.Branch
	return f, err
}

func (d *Dashboard) setDotfiles(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	f, err := d.dotfilesForm(r, c)
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	if f.readRepository() == nil {
		f.fail("repo", "field.required")
	}
	if f.bad() {
		d.again(w, r, c, f)
		return
	}
	if _, err := d.Store.SetDotfiles(r.Context(), c, api.Dotfiles{URL: f.Value["repo"], Branch: f.Value["branch"]}); err != nil {
		d.refuseForm(w, r, c, f, err)
		return
	}
	d.redirect(w, r, notedAt("/settings/account", "dotfiles_saved", ""))
}

func (d *Dashboard) removeDotfiles(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	if err := d.Store.RemoveDotfiles(r.Context(), c); err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	d.redirect(w, r, notedAt("/settings/account", "dotfiles_removed", ""))
}

// applyDotfiles applies the user's dotfiles to a workspace.
func (d *Dashboard) applyDotfiles(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err == nil && (ws.Phase != workspace.PhaseRunning || d.Dotfiles == nil) {
		err = workspace.Errorf(workspace.CodeNotRunning, "The workspace is not running.")
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(r.Context(), usageTimeout)
		defer cancel()
		_, err = d.Dotfiles.Apply(ctx, ws.ID)
		var coded *workspace.Error
		switch {
		case errors.Is(err, attach.ErrSetupRuns):
			err = nil
		case err != nil && !errors.As(err, &coded):
			err = &workspace.Error{Code: workspace.CodeUnavailable, Message: "The workspace is not responding. Try again later.", Err: err}
		}
	}
	switch {
	case err != nil:
		d.refuse(w, r, c, ws.ID, err)
	case isHTMX(r):
		d.showSetup(w, r, c, ws)
	default:
		d.done(w, r, c, ws.ID, "dotfiles_applied")
	}
}
