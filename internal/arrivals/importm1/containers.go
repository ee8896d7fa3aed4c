package importm1

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"codehub/internal/arrivals"
)

const (
	// stopSeconds is the stop timeout of the first version.
	stopSeconds = 10
	// homeMount is where the first version mounted the home.
	homeMount = "/home/coder"
	// laterLabel is a label of every container of later versions; those of the
	// first have none.
	laterLabel = "codehub.installation"
)

// engine is the Docker that runs the first version's containers.
type engine struct{ api *client.Client }

// oldContainer is a container of the first version.
type oldContainer struct {
	id      string
	running bool
	paused  bool
	started string // its last start, as Docker reports it
}

// find returns the container of a workspace, or nil if there is none. A
// container with its name that the first version did not create for it is an
// error and is not changed.
func (e engine) find(ctx context.Context, w SourceWorkspace, homesDir string) (*oldContainer, error) {
	if !addressable(w.ID) {
		return nil, nil // not a valid name of a container
	}
	name := "codehub-ws-" + w.ID
	found, err := e.api.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, e.failed(ctx, "find the old container", err)
	}
	c := found.Container
	if c.Name != "/"+name {
		return nil, nil
	}
	if _, later := c.Config.Labels[laterLabel]; later {
		return nil, fmt.Errorf("the container %s is not the first version's: it has the label %s", name, laterLabel)
	}
	for _, m := range c.Mounts {
		if m.Destination != homeMount {
			continue
		}
		if err := sameHome(m.Source, filepath.Join(homesDir, w.HomeStoreKey), w.HomeStoreKey); err != nil {
			return nil, fmt.Errorf("the container %s: %w", name, err)
		}
		return &oldContainer{id: c.ID, running: c.State.Running, paused: c.State.Paused, started: c.State.StartedAt}, nil
	}
	return nil, fmt.Errorf("the container %s is not the first version's: it has nothing mounted at %s", name, homeMount)
}

// sameHome compares the folder that a container has mounted with the one to
// pack. Docker may have another path for it.
func sameHome(mounted, home, key string) error {
	if !strings.HasSuffix(filepath.Clean(mounted), "/"+key) {
		return fmt.Errorf("its home is %s, which is not a path of the first version", mounted)
	}
	there, err := os.Stat(mounted)
	if err != nil {
		return nil // not visible here
	}
	if here, err := os.Stat(home); err != nil || !os.SameFile(here, there) {
		return fmt.Errorf("its home is %s, not the one in the given folder (%s)", mounted, home)
	}
	return nil
}

// stop stops a container as the first version did.
func (e engine) stop(ctx context.Context, c *oldContainer) error {
	if c.paused {
		if _, err := e.api.ContainerUnpause(ctx, c.id, client.ContainerUnpauseOptions{}); err != nil {
			return e.failed(ctx, "unpause the old container to stop it", err)
		}
	}
	seconds := stopSeconds
	if _, err := e.api.ContainerStop(ctx, c.id, client.ContainerStopOptions{Timeout: &seconds}); err != nil && !errdefs.IsNotFound(err) {
		return e.failed(ctx, "stop the old container", err)
	}
	return nil
}

// remove removes a container and keeps its mounts.
func (e engine) remove(ctx context.Context, c *oldContainer) error {
	_, err := e.api.ContainerRemove(ctx, c.id, client.ContainerRemoveOptions{Force: true})
	if err != nil && !errdefs.IsNotFound(err) {
		return e.failed(ctx, "remove the old container", err)
	}
	return nil
}

// failed tells a failure of Docker, so that no further container is stopped, from that of one call.
func (e engine) failed(ctx context.Context, verb string, err error) error {
	err = fmt.Errorf("%s: %w", verb, err)
	if _, down := e.api.Ping(ctx, client.PingOptions{}); down != nil {
		return arrivals.SourceError{Err: err}
	}
	return err
}
