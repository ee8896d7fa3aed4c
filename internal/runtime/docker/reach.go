package docker

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/account"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/workspace"
)

const (
	probeTimeout = 2 * time.Second
)

// Each probe has a connection of its own: addresses are reused, connections must not be.
var prober = &http.Client{
	Timeout:       probeTimeout,
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// Probe implements runtime.Runtime.
func (r *Runtime) Probe(ctx context.Context, c runtime.Container) error {
	if c.Addr == "" {
		return fmt.Errorf("probe workspace %s: its container has no address", c.Workspace)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.Addr+"/healthz", nil)
	if err != nil {
		return fmt.Errorf("probe workspace %s: %w", c.Workspace, err)
	}
	res, err := prober.Do(req)
	if err != nil {
		return fmt.Errorf("probe workspace %s: %w", c.Workspace, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("probe workspace %s: /healthz answered %s", c.Workspace, res.Status)
	}
	return nil
}

// Upstream implements runtime.Runtime.
func (r *Runtime) Upstream(ctx context.Context, id workspace.ID) (runtime.Upstream, error) {
	found, err := r.find(ctx, id)
	if err != nil {
		return runtime.Upstream{}, err
	}
	c := r.inspected(found)
	if c.Addr == "" {
		return runtime.Upstream{}, fmt.Errorf("container of workspace %s is %s: %w", id, c.Detail, runtime.ErrNotFound)
	}
	up := runtime.Upstream{ContainerID: c.ID, Addr: c.Addr}
	if found.Config.Labels[engine.LabelAgent] != "" {
		up.Agent = r.reachable(found, runtime.AgentPort)
	}
	for _, e := range found.Config.Env {
		if value, ok := strings.CutPrefix(e, runtime.SecretEnv+"="); ok {
			up.Secret = value
		}
	}
	return up, nil
}

// find inspects the workspace's container.
func (r *Runtime) find(ctx context.Context, id workspace.ID) (container.InspectResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, engine.AskTimeout)
	defer cancel()
	found, err := r.inspectNamed(ctx, id)
	if err == nil && !r.engine.Owns(found.Container.Config.Labels, engine.RoleWorkspace) || errdefs.IsNotFound(err) {
		return container.InspectResponse{}, fmt.Errorf("workspace %s: %w", id, runtime.ErrNotFound)
	}
	if err != nil {
		return container.InspectResponse{}, engine.WrapError(ctx, "inspect container", err)
	}
	return found.Container, nil
}

// Logs implements runtime.Runtime.
func (r *Runtime) Logs(ctx context.Context, id workspace.ID, tail int, follow bool, w io.Writer) error {
	found, err := r.find(ctx, id)
	if err != nil {
		return err
	}
	lines := "all"
	if tail > 0 {
		lines = strconv.Itoa(tail)
	}
	stream, err := r.engine.API.ContainerLogs(ctx, found.ID, client.ContainerLogsOptions{
		ShowStdout: true, ShowStderr: true, Follow: follow, Tail: lines,
	})
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("workspace %s: %w", id, runtime.ErrNotFound)
	}
	if err != nil {
		return engine.WrapError(ctx, "read logs", err)
	}
	defer stream.Close()
	if found.Config.Tty {
		_, err = io.Copy(w, stream)
	} else {
		_, err = stdcopy.StdCopy(w, w, stream)
	}
	if err != nil && follow && ctx.Err() != nil {
		return nil // ended by the caller
	}
	return engine.WrapError(ctx, "read logs", err)
}

// portEnv returns the environment of a workspace that names the addresses of its ports.
func (r *Runtime) portEnv(id workspace.ID) []string {
	if r.cfg.PortURI == nil {
		return nil
	}
	if uri := r.cfg.PortURI(id); uri != "" {
		return []string{account.PortURIEnv + "=" + uri}
	}
	return nil
}
