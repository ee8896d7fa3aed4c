package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"path"
	"slices"
	"time"

	"codehub/internal/runtime"
	"codehub/internal/runtime/agent"
	"codehub/internal/users/gitapps"
	"codehub/internal/workspace"
)

// Setups asks running workspaces how far their setup is (*attach.Attacher). Asking is no use of a
// workspace, and wakes nothing.
type Setups interface {
	Setup(ctx context.Context, id workspace.ID) (agent.SetupStatus, error)
	RetrySetup(ctx context.Context, id workspace.ID) (agent.SetupStatus, error)
}

// setupView is what a workspace does while its IDE starts. Without steps there is nothing to
// show.
type setupView struct {
	ID, From string
	Steps    []setupStep
	// Described reports that a repository describes its environment, and Uses is the file of it that
	// the workspace uses.
	Described bool
	Uses      string
	// Build is "building" or "failed", for an image from such a file; empty: neither.
	Build           string
	Running, Failed bool
	Retries         bool // "Try again" would run a step
	Dotfiles        bool // "Apply dotfiles" would apply some
}

// setupStep is one step, with the texts steps.kind.<Kind>, steps.state.<State> and
// steps.reason.<Reason>.
type setupStep struct {
	agent.StepStatus
	Connect string       // see connectsTo
	App     *gitapps.App // that connects to it with a button; nil: a token does
}

func (d *Dashboard) setupOf(w workspace.Workspace, from string, s agent.SetupStatus) setupView {
	v := setupView{ID: string(w.ID), From: from, Running: s.Running(), Failed: s.Failed(), Retries: s.Retries()}
	for _, st := range s.Steps {
		host := connectsTo(w, st)
		v.Steps = append(v.Steps, setupStep{st, host, d.gitAppFor(host)})
		v.Described = v.Described || st.Described
	}
	return v
}

// opens is the query by which the IDE opens what the workspace was set up with; empty: what it
// opens anyway.
func opens(s agent.SetupStatus) string {
	var only agent.StepStatus
	for _, st := range s.Steps {
		switch {
		case st.Folder == "":
		case only.Folder != "":
			return "" // several repositories
		default:
			only = st
		}
	}
	switch {
	case only.File != "":
		return url.Values{"workspace": {only.File}}.Encode()
	case only.Folder != "":
		return url.Values{"folder": {only.Folder}}.Encode()
	}
	return ""
}

// readSetup returns the setup of a workspace that runs; nothing if its agent does not respond.
func (d *Dashboard) readSetup(ctx context.Context, id workspace.ID) agent.SetupStatus {
	if d.Setups == nil {
		return agent.SetupStatus{}
	}
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	s, err := d.Setups.Setup(ctx, id)
	if err != nil {
		d.Log.Debug("read a workspace's setup failed", "workspace", id, "err", err)
	}
	return s
}

// withSetup makes the page that enters a workspace wait for the steps of its setup that the IDE needs.
func (d *Dashboard) withSetup(ctx context.Context, w workspace.Workspace, v waitView) waitView {
	if v.Kind != waitReady || w.Project.Empty() {
		return v
	}
	s := d.readSetup(ctx, w.ID)
	v.Opens = opens(s)
	if c := w.Project.Devcontainer; c != nil && !slices.ContainsFunc(w.Project.Repositories, func(r workspace.Repository) bool { return r.Folder() == c.Folder }) {
		v.Opens = url.Values{"folder": {path.Join(runtime.HomeDir, c.Folder)}}.Encode()
	}
	v.Setup = d.setupOf(w, fromWait, s)
	s.Steps = slices.DeleteFunc(slices.Clone(s.Steps), func(st agent.StepStatus) bool { return st.Kind == agent.KindScript || st.Kind == agent.KindDotfiles })
	switch {
	case s.Running():
		v.Kind = waitSetup
	case s.Failed():
		v.Kind = waitSetupFailed
	}
	return v
}

// enters sets the address that the page enters.
func (v *waitView) enters(entry string) {
	v.Entry = entry
	if v.Opens != "" && entry == entryPath(v.W.ID, "") {
		v.Entry += "?" + v.Opens
	}
}

// setup is the part of a workspace's page that shows its setup.
func (d *Dashboard) setupState(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	d.showSetup(w, r, c, ws)
}

func (d *Dashboard) showSetup(w http.ResponseWriter, r *http.Request, c workspace.Caller, ws workspace.Workspace) {
	v := setupView{ID: string(ws.ID), From: fromDetail}
	if ws.Phase == workspace.PhaseRunning {
		v = d.setupOf(ws, fromDetail, d.readSetup(r.Context(), ws.ID))
		own, err := d.Store.Dotfiles(r.Context(), c)
		if err != nil {
			d.fail(w, r, err)
			return
		}
		v.Dotfiles = own.URL != "" && d.Dotfiles != nil && !v.Running
	}
	v.Uses, v.Described = usesDevcontainer(ws), v.Described && d.Devcontainers != nil
	if d.Devcontainers != nil && !ws.Project.Empty() {
		b, err := d.devcontainerBuildOf(r.Context(), r, c, ws)
		switch {
		case err != nil:
			d.fail(w, r, err)
			return
		case b == nil:
		case b.Runs:
			v.Build = "building"
		case b.State == "failed" && d.Now().Sub(*b.EndedAt) < 24*time.Hour:
			v.Build = "failed"
		}
	}
	d.fragments(w, r, http.StatusOK, part{"setup", v})
}

// retrySetup runs the failed steps again.
func (d *Dashboard) retrySetup(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err == nil {
		err = d.retry(r.Context(), ws)
	}
	switch {
	case err != nil:
		d.refuse(w, r, c, ws.ID, err)
	case isHTMX(r) && fromOf(r) == fromDetail:
		d.showSetup(w, r, c, ws)
	default:
		d.done(w, r, c, ws.ID, "setup_retry")
	}
}
