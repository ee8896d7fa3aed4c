// Package ports is what owners do with the ports of their workspaces: list what listens,
// share a port, and forward one. Package proxy serves them to visitors.
package ports

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"codehub/internal/gateway/origin"
	"codehub/internal/postgres"
	"codehub/internal/running/attach"
	"codehub/internal/runtime"
	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// Config holds what a Service needs; all fields are required.
type Config struct {
	Store    *postgres.DB
	Runtime  runtime.Upstreams
	Attacher *attach.Attacher
	Layout   origin.Layout
	Settings Settings
}

// Service is safe for concurrent use.
type Service struct{ cfg Config }

// New returns a Service.
func New(cfg Config) *Service { return &Service{cfg} }

// Port is a port of a workspace that is listened on, shared, or named by its project.
type Port struct {
	agent.Port
	Listening bool
	Label     string // that the project of the workspace gives it; empty: none
	URL       string // where the proxy serves it
	// VisibleTo is who may open it, as the server's settings allow, and ExpiresAt when
	// that ends; nil: not by itself.
	VisibleTo workspace.Visibility
	ExpiresAt *time.Time
}

// Listing is the ports of a workspace, by number.
type Listing struct {
	// Running reports that the workspace runs, and Known that its agent has listed what
	// listens.
	Running, Known bool
	Ports          []Port
}

// Most is the widest visibility that a port can have.
func (s *Service) Most() workspace.Visibility {
	if s.cfg.Layout.PathMode() {
		return workspace.VisibleOwner
	}
	return s.cfg.Settings.Most()
}

// LongestShare is the longest time for which a port may be public.
func (s *Service) LongestShare() time.Duration { return s.cfg.Settings.PortShareMax }

// URL returns the address of a port.
func (s *Service) URL(id workspace.ID, port int) string {
	if s.cfg.Layout.PathMode() {
		return s.cfg.Layout.Main() + "/w/" + string(id) + "/proxy/" + strconv.Itoa(port) + "/"
	}
	return s.cfg.Layout.URL(workspace.Host{ID: id, Port: port}) + "/"
}

// List returns the ports of the caller's workspace. It starts nothing and is no use.
func (s *Service) List(ctx context.Context, caller workspace.Caller, id workspace.ID) (Listing, error) {
	shares, err := s.cfg.Store.PortShares(ctx, caller, id)
	if err != nil {
		return Listing{}, err
	}
	l := Listing{}
	var listening []agent.Port
	ws, client, err := s.agentOf(ctx, caller, id)
	switch {
	case err == nil:
		l.Running = true
		if listening, err = client.Ports(ctx); err == nil {
			l.Known = true
		} else if ctx.Err() != nil {
			return Listing{}, ctx.Err()
		}
	case errors.Is(err, errNoAgent):
		l.Running = true
	case !errors.Is(err, errNotRunning):
		return Listing{}, err
	}
	l.Ports = s.Merge(ws, listening, shares)
	return l, nil
}

// Merge returns what listens, what is shared and what the project of ws names as one list.
func (s *Service) Merge(ws workspace.Workspace, listening []agent.Port, shares []workspace.PortShare) []Port {
	by := map[int]*Port{}
	for _, p := range listening {
		if !workspace.ReservedPort(p.Port) {
			by[p.Port] = &Port{Port: p, Listening: true}
		}
	}
	at := func(port int) *Port {
		if by[port] == nil {
			by[port] = &Port{Port: agent.Port{Port: port}}
		}
		return by[port]
	}
	for _, named := range ws.Project.AllPorts() {
		at(named.Port).Label = named.Label
	}
	for _, share := range shares {
		p := at(share.Port)
		if p.VisibleTo = share.With.AtMost(s.Most()); p.VisibleTo != workspace.VisibleOwner {
			p.ExpiresAt = share.ExpiresAt
		}
	}
	list := make([]Port, 0, len(by))
	for _, p := range by {
		p.URL, p.VisibleTo = s.URL(ws.ID, p.Port.Port), cmp.Or(p.VisibleTo, workspace.VisibleOwner)
		list = append(list, *p)
	}
	slices.SortFunc(list, func(a, b Port) int { return a.Port.Port - b.Port.Port })
	return list
}

var (
	errNotRunning = errors.New("the workspace is not running")
	errNoAgent    = errors.New("the container has no agent")
)

// agentOf returns the caller's workspace and, if it runs, its agent. It starts nothing.
func (s *Service) agentOf(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, *agent.Client, error) {
	ws, err := s.cfg.Store.EnterableWorkspace(ctx, caller, id)
	if err != nil {
		return ws, nil, err
	}
	if lifecycle.OpeningOf(ws) != lifecycle.OpenNow {
		return ws, nil, errNotRunning
	}
	client, err := s.agentAt(ctx, id)
	return ws, client, err
}

func (s *Service) agentAt(ctx context.Context, id workspace.ID) (*agent.Client, error) {
	up, err := s.cfg.Runtime.Upstream(ctx, id)
	switch {
	case errors.Is(err, runtime.ErrNotFound):
		return nil, errNotRunning
	case errors.Is(err, runtime.ErrUnreachable):
		return nil, &workspace.Error{Code: workspace.CodeUnavailable, Message: "The workspace cannot be reached. Try again later.", Err: err}
	case err != nil:
		return nil, err
	case up.Agent == "":
		return nil, errNoAgent
	}
	return &agent.Client{Addr: up.Agent, Secret: up.Secret}, nil
}

// Watch calls changed with the ports that are listened on, at once and at every change,
// until ctx ends or the workspace stops. It starts nothing and is no use. The caller ends
// it with the session.
func (s *Service) Watch(ctx context.Context, caller workspace.Caller, id workspace.ID, changed func([]agent.Port)) error {
	_, client, err := s.agentOf(ctx, caller, id)
	if err != nil {
		return err
	}
	return client.WatchPorts(ctx, changed)
}

// Shares lists the shares of the caller's workspace.
func (s *Service) Shares(ctx context.Context, caller workspace.Caller, id workspace.ID) ([]workspace.PortShare, error) {
	return s.cfg.Store.PortShares(ctx, caller, id)
}

// Share shares a port for lasting; 0: until it is unshared, which public ports cannot be. It
// does not ask whether something listens on the port.
func (s *Service) Share(ctx context.Context, caller workspace.Caller, id workspace.ID, port int, with workspace.Visibility, lasting time.Duration) (Port, error) {
	if err := s.check(port, with, lasting); err != nil {
		return Port{}, err
	}
	share, err := s.cfg.Store.SharePort(ctx, caller, id, port, with, lasting)
	if err != nil {
		return Port{}, err
	}
	ws, err := s.cfg.Store.Workspace(ctx, caller, id)
	if err != nil {
		return Port{}, err
	}
	list := s.Merge(ws, nil, []workspace.PortShare{share})
	return list[slices.IndexFunc(list, func(p Port) bool { return p.Port.Port == port })], nil
}

func (s *Service) check(port int, with workspace.Visibility, lasting time.Duration) error {
	longest := s.cfg.Settings.PortShareMax
	if err := workspace.CheckPort(port); err != nil {
		return err
	}
	switch {
	case with != workspace.VisibleUsers && with != workspace.VisiblePublic:
		return workspace.InvalidField("with", "must be users or public.")
	case s.cfg.Layout.PathMode():
		return workspace.Errorf(workspace.CodeNotSupported, "Ports cannot be shared on this server: workspaces are on the same address as the dashboard.")
	case with.AtMost(s.Most()) != with:
		return workspace.Errorf(workspace.CodeForbidden, "Administrators do not allow this: ports can be visible to %s at most.", s.Most())
	case with == workspace.VisiblePublic && lasting == 0:
		return workspace.InvalidField("expires_in_seconds", "is required for a public port.")
	case lasting < 0 || lasting > longest:
		return workspace.InvalidField("expires_in_seconds", "must be between 1 and "+strconv.Itoa(int(longest/time.Second))+" seconds.")
	}
	return nil
}

// Unshare ends the share of a port.
func (s *Service) Unshare(ctx context.Context, caller workspace.Caller, id workspace.ID, port int) error {
	return s.cfg.Store.UnsharePort(ctx, caller, id, port)
}

// Connection is a connection to a port, which ends with the caller's access.
type Connection struct {
	*agent.Conn
	*attach.Attachment
}

// Close closes both.
func (c *Connection) Close() {
	_ = c.Conn.Close() // it is abandoned
	c.Attachment.Close()
}

// Connect connects the caller to a port of a running workspace: on a loopback address, or
// else on one of the container's own. It starts no workspace: CodeNotRunning. CodeUnavailable
// if nothing listens. The caller must close the connection.
func (s *Service) Connect(ctx context.Context, caller workspace.Caller, id workspace.ID, port int) (*Connection, error) {
	if err := workspace.CheckPort(port); err != nil {
		return nil, err
	}
	_, client, err := s.agentOf(ctx, caller, id)
	switch {
	case errors.Is(err, errNotRunning):
		return nil, workspace.Errorf(workspace.CodeNotRunning, "The workspace is not running.")
	case errors.Is(err, errNoAgent):
		return nil, restartFirst()
	case err != nil:
		return nil, err
	}
	x, err := s.attach(ctx, caller, id)
	if err != nil {
		return nil, err
	}
	conn, err := dial(ctx, x.Agent, client.Addr, port)
	if err != nil {
		x.Close()
		return nil, err
	}
	return &Connection{conn, x}, nil
}

func (s *Service) attach(ctx context.Context, caller workspace.Caller, id workspace.ID) (*attach.Attachment, error) {
	x, err := s.cfg.Attacher.AttachRunning(ctx, caller, id)
	var closed *attach.NotOpen
	switch {
	case err == nil:
		return x, nil
	case errors.Is(err, attach.ErrTooMany):
		return nil, workspace.Errorf(workspace.CodeTooManyAttempts, "Too many connections to workspaces are open for this account.")
	case errors.Is(err, attach.ErrNoAgent):
		return nil, restartFirst()
	case errors.As(err, &closed):
		return nil, workspace.Errorf(workspace.CodeNotRunning, "The workspace is not running.")
	case errors.Is(err, agent.ErrUnreachable):
		return nil, &workspace.Error{Code: workspace.CodeUnavailable, Message: "The workspace is not responding.", Err: err}
	}
	return nil, err
}

func restartFirst() error {
	return workspace.Errorf(workspace.CodeNotSupported, "The workspace was started by another version of codehub. Its owner has to restart it first.")
}

// dial connects to a port inside the workspace.
func dial(ctx context.Context, client *agent.Client, own string, port int) (*agent.Conn, error) {
	hosts := []string{"127.0.0.1", "::1"}
	if host, _, err := net.SplitHostPort(own); err == nil && !net.ParseIP(host).IsLoopback() {
		hosts = append(hosts, host)
	}
	for _, host := range hosts {
		conn, err := client.Dial(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		var refused *agent.RefusedError
		switch {
		case err == nil:
			return conn, nil
		case !errors.As(err, &refused), refused.Status == http.StatusUnauthorized:
			return nil, &workspace.Error{Code: workspace.CodeUnavailable, Message: "The workspace is not responding.", Err: err}
		}
	}
	e := workspace.Errorf(workspace.CodeUnavailable, "Nothing listens on port %d of the workspace.", port)
	e.Details = map[string]any{"port": port}
	return nil, e
}
