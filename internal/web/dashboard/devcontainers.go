package dashboard

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"

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
	for _, i := range f.Ignored {
		v.Reasons = append(v.Reasons, devcontainerReason{i.Property, l.T("templates.line", i.Line), l.Known("devcontainer.reason.", i.Reason)})
	}
	return v
}

// usesDevcontainer returns the file that a workspace uses, or "".
func usesDevcontainer(w workspace.Workspace) string {
	if w.Project == nil || w.Project.Devcontainer == nil {
		return ""
	}
	return w.Project.Devcontainer.File
}

// useDevcontainer has the next start use a file, or none.
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
	if r.PostFormValue("do") == "stop" {
		note = "devcontainer_stop"
		_, err = d.Devcontainers.Stop(ctx, c, id)
	} else {
		_, err = d.Devcontainers.Use(ctx, c, id, clean(r.PostFormValue("file")), r.PostFormValue("digest"))
	}
	if err != nil {
		d.refuse(w, r, c, id, err)
		return
	}
	d.redirect(w, r, notedAt("/workspaces/"+string(id)+"/devcontainer", note, id))
}
