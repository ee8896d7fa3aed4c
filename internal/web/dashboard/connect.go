package dashboard

import (
	"html/template"
	"net"
	"net/url"
	"strconv"
	"strings"

	"codehub/internal/running/service"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// connectView is the ways into a workspace.
type connectView struct {
	ID, Name string
	Shown    bool // the workspace exists
	Opens    bool // it can be entered in its state
	Starts   bool // entering starts it
	Entry    string
	SSH      string // a command; empty: there is no SSH listener
	CLI      string // the command that needs none
	VSCode   template.URL
	Toolbox  template.URL // of JetBrains
	Apps     []appLink
	OOB      bool
}

// appLink opens a port that the workspace's project names.
type appLink struct {
	Port       int
	Label, URL string
}

// projectDir is the folder that the IDE opens (images/ide/start), so editors open the same.
const projectDir = runtime.HomeDir + "/project"

// connectOf returns the ways into w. owner is empty for the owner, who may name it without.
func (d *Dashboard) connectOf(w workspace.Workspace, owner string) connectView {
	opening := lifecycle.OpeningOf(w)
	v := connectView{ID: string(w.ID), Name: w.Name, Shown: opening != lifecycle.OpenDeleted, Entry: entryPath(w.ID, ""),
		Starts: opening == lifecycle.OpenStarts || opening == lifecycle.OpenQueues}
	switch opening {
	case lifecycle.OpenNow, lifecycle.OpenStarts, lifecycle.OpenQueues, lifecycle.OpenWaits:
		v.Opens = true
	}
	if d.Ports != nil && owner == "" {
		for _, p := range w.Project.AllPorts() {
			if p.Open {
				v.Apps = append(v.Apps, appLink{p.Port, p.Label, d.Ports.URL(w.ID, p.Port)})
			}
		}
	}
	name := w.Name
	if !service.PlainName(name) {
		name = string(w.ID)
	} else if owner != "" {
		name = owner + "/" + name
	}
	v.CLI = "codehub ssh " + name
	if owner != "" {
		w.Name = string(w.ID) // SSH clients name the workspaces of others by their ids
	}
	v.SSH = d.SSH.Command(w)
	if v.SSH == "" {
		return v
	}
	user := w.Name
	if !service.PlainName(user) || user != strings.ToLower(user) { // VS Code makes it small
		user = string(w.ID)
	}
	port := strconv.Itoa(d.SSH.Port)
	// Remote - SSH reads user@host:port after the +.
	v.VSCode = template.URL("vscode://vscode-remote/ssh-remote+" + user + "@" + net.JoinHostPort(d.SSH.Host, port) + projectDir)
	// JetBrains Toolbox adds the connection, and its user chooses the IDE. A link for Gateway
	// would have to name a version of an IDE.
	v.Toolbox = template.URL("jetbrains://gateway/ssh/environment?" + url.Values{"h": {d.SSH.Host}, "p": {port}, "u": {user}, "projectHint": {projectDir}}.Encode())
	return v
}
