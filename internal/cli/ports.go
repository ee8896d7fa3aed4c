package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/base/flow"
	"codehub/internal/cli/terminal"
	"codehub/internal/gateway/tunnel"
)

type portsCmd struct {
	List    portsListCmd    `cmd:"" aliases:"ls" default:"withargs" help:"List the ports of a workspace."`
	Share   portsShareCmd   `cmd:"" help:"Share a port with other users."`
	Unshare portsUnshareCmd `cmd:"" help:"Stop sharing a port."`
}

type portsListCmd struct{ onThisWorkspace }

// Help describes the list.
func (portsListCmd) Help() string {
	return `Lists the ports on which programs of a running workspace listen, those that are shared, and those that its template names. It does not start the workspace.`
}

func (p portsListCmd) Run(ctx context.Context, k *kong.Context) error {
	return p.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		list, err := c.Ports(ctx, id)
		if err != nil {
			return list, "", err
		}
		switch {
		case !list.Running:
			fmt.Fprintln(k.Stderr, "The workspace is not running.")
		case !list.Known:
			fmt.Fprintln(k.Stderr, "The agent of the workspace did not report its listening ports. If another version of codehub started it, restart it.")
		}
		return list, portTable(list.Ports, time.Now()), nil
	})
}

func portTable(list []api.Port, now time.Time) string {
	rows := [][]string{{"PORT", "LABEL", "PROCESS", "SINCE", "VISIBLE TO", "URL"}}
	for _, p := range list {
		process, since := "not listening", ""
		if p.Listening {
			if process = p.Process; process == "" {
				process = "unknown"
			}
			if p.Since != nil {
				since = age(now.Sub(*p.Since))
			}
		}
		rows = append(rows, []string{strconv.Itoa(p.Port), p.Label, process, since, visibleTo(p, now), p.URL})
	}
	return terminal.Table(rows)
}

func visibleTo(p api.Port, now time.Time) string {
	if p.ExpiresAt == nil {
		return p.VisibleTo
	}
	return p.VisibleTo + " for " + ahead(p.ExpiresAt.Sub(now))
}

type portsShareCmd struct {
	serverFlags
	terminal.Format
	Workspace string `arg:"" help:"A workspace's name or id."`
	Port      int    `arg:"" help:"The port."`
	With      string `enum:"users,public" required:"" placeholder:"users|public" help:"Audience: users (all who are logged in) or public (anyone)."`
	For       span   `default:"0" placeholder:"2h" help:"How long, like 2h or 7d; required with public."`
}

// Help says what may be relied on.
func (portsShareCmd) Help() string {
	return `Visitors reach only this port, not the IDE or another port, and only while the workspace runs: opening the port does not start it. Administrators set how far a port can be shared, and for how long.`
}

func (p portsShareCmd) Run(ctx context.Context, k *kong.Context) error {
	return onWorkspace{serverFlags: p.serverFlags, Format: p.Format, Workspace: p.Workspace}.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		in := api.SharePort{With: p.With}
		if p.For > 0 {
			seconds := int(time.Duration(p.For) / time.Second)
			in.ExpiresInSeconds = &seconds
		}
		port, err := c.SharePort(ctx, id, p.Port, in)
		if err != nil {
			return port, "", err
		}
		return port, port.URL + "   visible to " + visibleTo(port, time.Now()), nil
	})
}

type portsUnshareCmd struct {
	serverFlags
	Workspace string `arg:"" help:"A workspace's name or id."`
	Port      int    `arg:"" help:"The port."`
}

func (p portsUnshareCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	w, err := resolve(ctx, c, p.Workspace, false)
	if err != nil {
		return err
	}
	if err := c.UnsharePort(ctx, w.ID, p.Port); err != nil {
		return err
	}
	fmt.Fprintln(k.Stderr, "The port is visible to the owner only.")
	return nil
}

type portForwardCmd struct {
	serverFlags
	Workspace string        `arg:"" help:"A workspace's name or id; OWNER/NAME if another user shares it."`
	Address   string        `name:"address" default:"127.0.0.2" placeholder:"IP" help:"Address of this machine to listen on. At 127.0.0.1 browsers send the workspace the cookies of every program on localhost."`
	Ports     []portMapping `arg:"" placeholder:"[LOCAL:]PORT" help:"Port in the workspace, after the port on this machine if that differs, like 8080:3000."`
}

// Help says what may be relied on.
func (portForwardCmd) Help() string {
	return `Listens on 127.0.0.2, where browsers send no cookies of programs on localhost, and carries each connection to the port in the workspace, until the command is interrupted. A stopped workspace is started once, by the command itself; later connections do not start it. A workspace that another user shares has to run already. After a restart of the workspace new connections work again. What is sent to the workspace counts as activity; an idle connection does not.`
}

// portMapping is [LOCAL:]PORT, in the order of ssh -L and of docker run -p.
type portMapping struct{ local, remote int }

// UnmarshalText reads "3000" or "8080:3000".
func (m *portMapping) UnmarshalText(b []byte) error {
	local, remote, found := strings.Cut(string(b), ":")
	if !found {
		remote = local
	}
	var err error
	if m.remote, err = parsePort(remote); err == nil {
		m.local, err = parsePort(local)
	}
	if err != nil {
		return fmt.Errorf("%q is not a port or LOCAL:PORT, like 3000 or 8080:3000", b)
	}
	return nil
}

func parsePort(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err == nil && n == 0 {
		err = strconv.ErrRange
	}
	return int(n), err
}

func (p portForwardCmd) Run(ctx context.Context, k *kong.Context) error {
	address, err := netip.ParseAddr(p.Address)
	if err != nil {
		return fmt.Errorf("--address: %q is not an IP address", p.Address)
	}
	c, err := p.connect()
	if err != nil {
		return err
	}
	w, err := resolveEnterable(ctx, c, p.Workspace)
	if err != nil {
		return err
	}
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			_ = l.Close() // no listener of a failed command stays open
		}
	}()
	for _, m := range p.Ports {
		l, err := net.Listen("tcp", net.JoinHostPort(address.String(), strconv.Itoa(m.local)))
		if errors.Is(err, syscall.EADDRNOTAVAIL) {
			return fmt.Errorf("this machine does not have the address %s: %w; add it (on macOS: sudo ifconfig lo0 alias %[1]s), or choose another one with --address", address, err)
		}
		if err != nil {
			return fmt.Errorf("listen for port %d: %w; give another local port, as in %d:%d", m.remote, err, m.local+1, m.remote)
		}
		listeners = append(listeners, l)
	}
	switch {
	case isShared(w):
		if err := p.runsForGuest(w); err != nil {
			return err
		}
	case w.Phase != "RUNNING":
		if w.Phase != "STANDBY" {
			return fmt.Errorf("the workspace is %s; start it first: codehub start %s", state(w), terminal.Plain(w.Name))
		}
		if _, err := c.Want(ctx, w.ID, "RUNNING", true); err != nil {
			return err
		}
		if _, err := reach(ctx, k, c, w, "RUNNING"); err != nil {
			return err
		}
	}
	f := &forwarder{out: k.Stderr, connect: func(ctx context.Context, port int) (flow.Conn, error) { return c.ConnectPort(ctx, w.ID, port) }}
	var all sync.WaitGroup
	for i, l := range listeners {
		remote := p.Ports[i].remote
		fmt.Fprintf(k.Stderr, "%s leads to port %d of %s.\n", l.Addr(), remote, terminal.Plain(w.Name))
		all.Go(func() { f.serve(ctx, l, remote) })
	}
	if leadsToLocalhost(address) {
		fmt.Fprintln(k.Stderr, "Browsers send the workspace all cookies of localhost, which can include logins. Open this address only if you trust the workspace.")
	} else {
		fmt.Fprintf(k.Stderr, "Use %s instead of localhost, so that browsers do not send the workspace cookies of other programs.\n", address)
	}
	<-ctx.Done()
	for _, l := range listeners {
		_ = l.Close()
	}
	all.Wait()
	return nil
}

// leadsToLocalhost reports whether localhost and the names below it lead to a listener at this
// address.
func leadsToLocalhost(a netip.Addr) bool {
	a = a.Unmap()
	return a.IsUnspecified() || a == netip.AddrFrom4([4]byte{127, 0, 0, 1}) || a == netip.IPv6Loopback()
}

// runsForGuest returns an error unless a workspace of another user runs. A guest starts it by
// opening it.
func (p portForwardCmd) runsForGuest(w api.Workspace) error {
	name := terminal.Plain(p.Workspace)
	switch w.State {
	case "running":
		return nil
	case "stopped":
		return fmt.Errorf("%s is stopped; open it first, which starts it: %s", name, terminal.Plain(w.URL))
	}
	return fmt.Errorf("%s is %s; it has to run first", name, state(w))
}

// forwarder carries connections to ports of a workspace.
type forwarder struct {
	connect func(ctx context.Context, port int) (flow.Conn, error)

	mu   sync.Mutex
	out  io.Writer
	last string
}

// restartWait is how long a connection waits for a workspace that is not running or not
// responding, because it may be restarting.
const restartWait = 30 * time.Second

func (f *forwarder) serve(ctx context.Context, l net.Listener, port int) {
	var open sync.WaitGroup
	defer open.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
				f.say(fmt.Sprintf("accept a connection: %v", err))
				select {
				case <-ctx.Done():
				case <-time.After(time.Second):
				}
				continue
			}
			return
		}
		open.Go(func() { f.carry(ctx, conn.(*net.TCPConn), port) })
	}
}

func (f *forwarder) carry(ctx context.Context, conn *net.TCPConn, port int) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	remote, err := f.reach(ctx, port)
	if err != nil {
		if ctx.Err() == nil {
			f.say(fmt.Sprintf("port %d: %s", port, redacted(explain(err).Error())))
		}
		return
	}
	f.say("")
	tunnel.Relay(conn, remote, nil)
}

// reach connects to a port. It tries again for a while if the workspace may be restarting.
func (f *forwarder) reach(ctx context.Context, port int) (flow.Conn, error) {
	give, pause := time.Now().Add(restartWait), 250*time.Millisecond
	for {
		conn, err := f.connect(ctx, port)
		if err == nil || !mayRestart(err) || time.Now().Add(pause).After(give) {
			return conn, err
		}
		f.say(fmt.Sprintf("port %d: %s Waiting for it.", port, err))
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
		pause = min(2*pause, 4*time.Second)
	}
}

// mayRestart reports whether a connection failed because of the workspace, and not
// because of its port or the access to it.
func mayRestart(err error) bool {
	var e *client.Error
	if !errors.As(err, &e) {
		return false
	}
	_, nothingListens := e.Details["port"]
	return e.Code == "not_running" || e.Code == "unavailable" && !nothingListens
}

// say prints a message unless it was the last one; "" after a success.
func (f *forwarder) say(message string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if message != "" && message != f.last {
		fmt.Fprintln(f.out, "codehub:", message)
	}
	f.last = message
}
