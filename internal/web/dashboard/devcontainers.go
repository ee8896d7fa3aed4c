package dashboard

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"codehub/api"
	"codehub/internal/web/dashboard/catalogue"
	"codehub/internal/workspace"
)

// devcontainerView is the page of the files by which the repositories of a workspace describe their
// environment.
type devcontainerView struct {
	ID, Name string
	Files    []devcontainerFile
	More     bool
	// Trouble is why the files cannot be read: "not_running" or "unavailable"; empty: they were.
	Trouble string
	Uses    string // the file that the workspace uses; empty: none
	Running bool
	Build   *devcontainerBuild // the last one; nil: there was none
}

// devcontainerBuild is the build of an image from a file, with the texts devcontainer.build.<State>.
type devcontainerBuild struct {
	api.DevcontainerBuild
	ID      string // of the workspace
	Runs    bool
	Restart bool // the workspace runs, and uses the image after a restart
	Took    time.Duration
	Reasons []devcontainerReason
}

type devcontainerFile struct {
	api.Devcontainer
	Vars     []string // NAME=value
	Settings []string // name: value
	Commands []devcontainerCommand
	Reasons  []devcontainerReason
}

type devcontainerCommand struct {
	Hook, Name, Text string
	Once             bool
}

// devcontainerReason is a property that is not used. Line is empty if it is not of the file.
type devcontainerReason struct{ Property, Line, Text string }

func (d *Dashboard) devcontainerPage(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err == nil && d.Devcontainers == nil {
		err = workspace.NotFound("page")
	}
	if err != nil {
		d.fail(w, r, err)
		return
	}
	v := devcontainerView{ID: string(ws.ID), Name: ws.Name, Running: ws.Phase == workspace.PhaseRunning, Uses: usesDevcontainer(ws)}
	ctx, cancel := context.WithTimeout(r.Context(), usageTimeout)
	defer cancel()
	list, err := d.Devcontainers.List(ctx, c, ws.ID)
	switch workspace.CodeOf(err) {
	case "":
		if err != nil {
			d.fail(w, r, err)
			return
		}
	case workspace.CodeNotRunning:
		v.Trouble = "not_running"
	case workspace.CodeUnavailable:
		d.Log.Debug("read the descriptions of a workspace's repositories failed", "workspace", ws.ID, "err", err)
		v.Trouble = "unavailable"
	default:
		d.fail(w, r, err)
		return
	}
	if v.Build, err = d.devcontainerBuildOf(ctx, r, c, ws); err != nil {
		d.fail(w, r, err)
		return
	}
	v.More = list.More
	for _, f := range list.Files {
		v.Files = append(v.Files, devcontainerFileOf(d.set(r).lang, f))
	}
	p := d.newPage(r, &c, "devcontainer.title", v)
	p.Nav, p.Toast = "workspaces", d.noted(r, c)
	d.render(w, r, http.StatusOK, "devcontainer", p)
}

func devcontainerFileOf(l *catalogue.Language, f api.Devcontainer) devcontainerFile {
	v := devcontainerFile{Devcontainer: f}
	for _, name := range slices.Sorted(maps.Keys(f.Env)) {
		v.Vars = append(v.Vars, name+"="+f.Env[name])
	}
	for _, name := range slices.Sorted(maps.Keys(f.Settings)) {
		value, _ := json.Marshal(f.Settings[name])
		v.Settings = append(v.Settings, name+": "+string(value))
	}
	for _, s := range f.Scripts {
		for _, c := range s.Commands {
			text := c.Shell
			if len(c.Args) > 0 {
				args, _ := json.Marshal(c.Args)
				text = string(args)
			}
			v.Commands = append(v.Commands, devcontainerCommand{s.Name, c.Name, strings.TrimSpace(text), s.Once})
		}
	}
	v.Reasons = devcontainerReasons(l, f.Ignored)
	return v
}

// Builds reports that an image is built from the file.
func (f devcontainerFile) Builds() bool { return f.Dockerfile != "" || len(f.Features) > 0 }

func devcontainerReasons(l *catalogue.Language, ignored []api.DevcontainerIgnored) (list []devcontainerReason) {
	for _, i := range ignored {
		line := ""
		if i.Line > 0 {
			line = l.T("templates.line", i.Line)
		}
		list = append(list, devcontainerReason{i.Property, line, l.Known("devcontainer.reason.", i.Reason)})
	}
	return list
}

// devcontainerBuildOf returns the last build for a workspace, or nil.
func (d *Dashboard) devcontainerBuildOf(ctx context.Context, r *http.Request, c workspace.Caller, ws workspace.Workspace) (*devcontainerBuild, error) {
	b, err := d.Devcontainers.Build(ctx, c, ws.ID)
	switch {
	case workspace.CodeOf(err) == workspace.CodeNotFound:
		return nil, nil
	case err != nil:
		return nil, err
	}
	v := &devcontainerBuild{DevcontainerBuild: b, ID: string(ws.ID), Runs: b.EndedAt == nil, Reasons: devcontainerReasons(d.set(r).lang, b.Ignored)}
	end := d.Now()
	if b.EndedAt != nil {
		end = *b.EndedAt
		v.Restart = b.State == "done" && usesDevcontainer(ws) == b.File && ws.Phase == workspace.PhaseRunning && ws.PhaseChangedAt.Before(end)
	}
	v.Took, v.Log = max(0, end.Sub(b.StartedAt)), readable(b.Log)
	return v, nil
}

// devcontainerBuildState is the part of the page that follows a build. At its end the whole page
// has changed.
func (d *Dashboard) devcontainerBuildState(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	var b *devcontainerBuild
	if err == nil && d.Devcontainers != nil {
		b, err = d.devcontainerBuildOf(r.Context(), r, c, ws)
	}
	switch {
	case err != nil:
		d.fail(w, r, err)
	case b == nil || !b.Runs || !isHTMX(r):
		d.redirect(w, r, devcontainerPath(ws.ID))
	default:
		d.fragments(w, r, http.StatusOK, part{"devcontainer-build", b})
	}
}

func devcontainerPath(id workspace.ID) string { return "/workspaces/" + string(id) + "/devcontainer" }

// usesDevcontainer returns the file that a workspace uses, or "".
func usesDevcontainer(w workspace.Workspace) string {
	if w.Project == nil || w.Project.Devcontainer == nil {
		return ""
	}
	return w.Project.Devcontainer.File
}

// useDevcontainer has the next start use a file, or none, or cancels the build of an image.
func (d *Dashboard) useDevcontainer(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	id, err := idOf(r)
	if err == nil && d.Devcontainers == nil {
		err = workspace.NotFound("page")
	}
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), usageTimeout)
	defer cancel()
	note := "devcontainer"
	switch r.PostFormValue("do") {
	case "stop":
		note = "devcontainer_stop"
		_, err = d.Devcontainers.Stop(ctx, c, id)
	case "cancel":
		note = "devcontainer_cancel"
		_, err = d.Devcontainers.CancelBuild(ctx, c, id)
	default:
		var builds bool
		_, builds, err = d.Devcontainers.Use(ctx, c, id, clean(r.PostFormValue("file")), r.PostFormValue("digest"))
		if workspace.CodeOf(err) == workspace.CodeOperationInProgress {
			d.refuseWith(w, r, c, id, err, d.set(r).lang.T("devcontainer.build.another"))
			return
		}
		if builds {
			note = "devcontainer_build"
		}
	}
	if err != nil {
		d.refuse(w, r, c, id, err)
		return
	}
	d.redirect(w, r, notedAt(devcontainerPath(id), note, id))
}
