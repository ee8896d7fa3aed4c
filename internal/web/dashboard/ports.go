package dashboard

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"codehub/internal/gateway/origin"
	"codehub/internal/running/ports"
	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// portsView is the ports on a workspace's page.
type portsView struct {
	Shown   bool // the server has ports
	Running bool
	Known   bool // the agent has listed what listens
	Ports   []portView
	// Shares reports that the owner may share ports, and InPath that no port can be shared
	// because workspaces share the dashboard's origin.
	Shares, InPath bool
}

type portView struct{ ports.Port }

// At is when the port was first seen.
func (p portView) At() time.Time {
	if p.Since == 0 {
		return time.Time{}
	}
	return time.Unix(p.Since, 0).UTC()
}

// Shared reports that others than the owner may open the port.
func (p portView) Shared() bool { return p.VisibleTo != workspace.VisibleOwner }

// portsWithin limits the wait for a workspace's agent.
const portsWithin = 2 * time.Second

// readPorts reads the ports of w for its page. An agent that does not respond leaves them unknown.
func (d *Dashboard) readPorts(ctx context.Context, c workspace.Caller, w workspace.Workspace) portsView {
	v := d.newPortsView(w)
	if !v.Shown {
		return v
	}
	bounded, cancel := context.WithTimeout(ctx, portsWithin)
	defer cancel()
	l, err := d.Ports.List(bounded, c, w.ID)
	if err != nil {
		d.Log.Debug("list ports failed", "workspace", w.ID, "err", err)
		return v
	}
	v.Known = l.Known
	v.set(l.Ports)
	return v
}

func (d *Dashboard) newPortsView(w workspace.Workspace) portsView {
	v := portsView{Shown: d.Ports != nil && w.DeletedAt == nil, Running: lifecycle.OpeningOf(w) == lifecycle.OpenNow, InPath: d.PathMode}
	v.Shares = v.Shown && d.Ports.Most() != workspace.VisibleOwner
	return v
}

func (v *portsView) set(list []ports.Port) {
	for _, p := range list {
		v.Ports = append(v.Ports, portView{p})
	}
}

// firstEnd is when the next share ends; zero if none does.
func (v portsView) firstEnd() (first time.Time) {
	for _, p := range v.Ports {
		if p.ExpiresAt != nil && (first.IsZero() || p.ExpiresAt.Before(first)) {
			first = *p.ExpiresAt
		}
	}
	return first
}

// portWatcher follows the ports of a workspace for one page, while it runs. It starts nothing.
type portWatcher struct {
	d       *Dashboard
	c       workspace.Caller
	id      workspace.ID
	changed func() // is called after a change
	pageTask

	mu    sync.Mutex
	known bool
	ports []agent.Port
}

// start watches until ctx or the container ends, unless it does already. It waits a moment for the
// first result.
func (p *portWatcher) start(ctx context.Context) {
	first := make(chan struct{})
	begun := sync.OnceFunc(func() { close(first) })
	if !p.begin(&p.d.watching, p.c.UserID, func() {
		defer begun()
		err := p.d.Ports.Watch(ctx, p.c, p.id, func(list []agent.Port) {
			p.set(list, true)
			begun()
			p.changed()
		})
		if err != nil && ctx.Err() == nil {
			p.d.Log.Debug("watching ports failed", "workspace", p.id, "err", err)
		}
		p.set(nil, false)
	}) {
		return
	}
	select {
	case <-first:
	case <-time.After(portsWithin):
	case <-ctx.Done():
	}
}

func (p *portWatcher) set(list []agent.Port, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ports, p.known = list, known
}

// read returns the ports of w as the watcher has seen them last.
func (p *portWatcher) read(ctx context.Context, w workspace.Workspace) portsView {
	v := p.d.newPortsView(w)
	if !v.Shown {
		return v
	}
	shares, err := p.d.Ports.Shares(ctx, p.c, p.id)
	if err != nil {
		p.d.Log.Debug("read shared ports failed", "workspace", p.id, "err", err)
	}
	var listening []agent.Port
	if v.Running {
		p.start(ctx)
		p.mu.Lock()
		listening, v.Known = p.ports, p.known
		p.mu.Unlock()
	}
	v.set(p.d.Ports.Merge(w, listening, shares))
	return v
}

// shareFor returns the choices of how long a port is shared, in seconds, at most longest.
func shareFor(longest time.Duration) []int {
	most := int(longest / time.Second)
	var out []int
	for _, hours := range []int{1, 2, 8, 24, 72} {
		if hours*3600 < most {
			out = append(out, hours*3600)
		}
	}
	return append(out, most)
}

// shareForever is the choice of a share without an end.
const shareForever = "0"

// showShare fills in the form that shares a port.
func (d *Dashboard) showShare(f *form, r *http.Request) {
	f.Value["port"] = r.FormValue("port")
	f.Value["with"], f.Value["for"] = string(workspace.VisibleUsers), shareForever
	if d.Ports == nil {
		return
	}
	f.Lasting, f.Public = shareFor(d.Ports.LongestShare()), d.Ports.Most() == workspace.VisiblePublic
}

// sharePort shares a port with other users.
func (d *Dashboard) sharePort(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	if d.Ports == nil {
		d.refuse(w, r, c, ws.ID, workspace.NotFound("port"))
		return
	}
	f := d.form("share-port", r, &ws)
	f.Value["with"], f.Value["for"] = r.PostFormValue("with"), r.PostFormValue("for")
	port, ok := origin.ParsePort(f.Value["port"])
	if !ok || workspace.ReservedPort(port) {
		f.fail("port", "field.port_bad")
	}
	seconds, err := strconv.Atoi(f.Value["for"])
	with := workspace.Visibility(f.Value["with"])
	switch longest := int(d.Ports.LongestShare() / time.Second); {
	case err != nil || seconds < 0 || seconds > longest:
		f.fail("for", "field.required")
	case with == workspace.VisiblePublic && seconds == 0:
		f.fail("for", "field.share_ends")
	}
	if f.bad() {
		d.again(w, r, c, f)
		return
	}
	d.carryOut(w, r, c, func(ctx context.Context, c workspace.Caller, id workspace.ID, _ *http.Request) (string, error) {
		_, err := d.Ports.Share(ctx, c, id, port, with, time.Duration(seconds)*time.Second)
		return "port_shared", err
	})
}

// unsharePort ends the share of a port.
func (d *Dashboard) unsharePort(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	d.carryOut(w, r, c, func(ctx context.Context, c workspace.Caller, id workspace.ID, r *http.Request) (string, error) {
		port, ok := origin.ParsePort(r.PostFormValue("port"))
		if !ok || d.Ports == nil {
			return "", workspace.NotFound("port")
		}
		err := d.Ports.Unshare(ctx, c, id, port)
		if workspace.CodeOf(err) == workspace.CodeNotFound {
			if _, err := d.Store.Workspace(ctx, c, id); err != nil {
				return "", err
			}
			err = nil // another tab was faster, or it has ended
		}
		return "port_unshared", err
	})
}
