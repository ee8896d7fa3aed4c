package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
	"codehub/internal/runtime/agent"
)

// workspaceVariable names the workspace in which a program runs.
const workspaceVariable = "CODEHUB_WORKSPACE_ID"

// errNoServer is the error of a request from inside a workspace that reaches no server.
var errNoServer = errors.New("no server of codehub is connected to this workspace at the moment; try again in a few seconds, or use: codehub login https://SERVER")

// insideTimeout limits how long a server takes to answer a request from inside a workspace.
const insideTimeout = 8 * time.Second

// inside returns the id of the workspace in which the command runs, if it uses the workspace's own
// connection to its server: neither an address nor a credential is given.
func (f serverFlags) inside(known savedLogin) string {
	if f.URL != "" || known.URL != "" || os.Getenv(tokenVariable) != "" {
		return ""
	}
	return os.Getenv(workspaceVariable)
}

func (f serverFlags) isInside() bool {
	known, err := readLogin()
	return err == nil && f.inside(known) != ""
}

// connectInside returns a client that reaches the server by the agent of this workspace, for answers
// that take no longer than timeout. It has no credential: the server knows the workspace by the
// connection.
func (f serverFlags) connectInside(timeout time.Duration) (*client.Client, error) {
	socket := filepath.Join(filepath.Dir(busySocket()), filepath.Base(agent.ClientSocket))
	return client.New("http://codehub", "", f.userAgent(), client.WithHTTPClient(&http.Client{Transport: byAgent{&http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
		ResponseHeaderTimeout: timeout,
	}}}))
}

// byAgent has errNoServer in place of the errors of the transport.
type byAgent struct{ http.RoundTripper }

func (t byAgent) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := t.RoundTripper.RoundTrip(r)
	if err != nil && r.Context().Err() == nil {
		err = fmt.Errorf("%w (%w)", errNoServer, err)
	}
	return res, err
}

// onThisWorkspace is onWorkspace for what a workspace may do with itself: inside it, the
// argument may be left out.
type onThisWorkspace struct {
	serverFlags
	terminal.Format
	Workspace string `arg:"" optional:"" help:"A workspace's name or id. Inside a workspace: this one, if it is left out."`
}

func (o onThisWorkspace) run(ctx context.Context, k *kong.Context, deleted bool, do func(c *client.Client, id string) (any, string, error)) error {
	if o.Workspace == "" {
		if o.Workspace = os.Getenv(workspaceVariable); o.Workspace == "" {
			return terminal.Exit(terminal.ExitUsage, errors.New("give the name of a workspace, or use the command inside one"))
		}
	}
	return onWorkspace(o).run(ctx, k, deleted, do)
}

// find resolves the name or id of a workspace. A workspace knows only itself.
func (f serverFlags) find(ctx context.Context, c *client.Client, ref string, deleted bool) (api.Workspace, error) {
	if f.isInside() {
		if w, err := c.Get(ctx, os.Getenv(workspaceVariable)); err != nil || w.Name == ref {
			return w, err
		}
	}
	return resolve(ctx, c, ref, deleted)
}
