package importm1

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
)

const (
	// stopSeconds is what the first version gave a container to end.
	stopSeconds = 10
	// homeMount is where it mounted the home.
	homeMount = "/home/coder"
	// laterLabel is on every container that later versions make; the first put
	// none on its own.
	laterLabel = "codehub.installation"
)

// engine is the Docker Engine that the first version's containers are on.
type engine struct{ api *client.Client }

// oldContainer is one of the first version's.
type oldContainer struct {
	id      string
	running bool
	paused  bool
	started string // when last, in the engine's words
}

// find returns the container of a workspace, or nil if there is none. One of
// its name that the first version did not make for it is an error, and stays.
func (e engine) find(ctx context.Context, w SourceWorkspace, homesDir string) (*oldContainer, error) {
	if !addressable(w.ID) {
		return nil, nil // no container can have that name
	}
	name := "codehub-ws-" + w.ID
	found, err := e.api.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find the old container: %w", err)
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

// sameHome holds the folder that a container has mounted against the one that
// is about to be packed. The engine may see it by another path.
func sameHome(mounted, home, key string) error {
	if !strings.HasSuffix(filepath.Clean(mounted), "/"+key) {
		return fmt.Errorf("its home is %s, which is not a path of the first version", mounted)
	}
	there, err := os.Stat(mounted)
	if err != nil {
		return nil // not to be seen from here
	}
	if here, err := os.Stat(home); err != nil || !os.SameFile(here, there) {
		return fmt.Errorf("its home is %s, not the one in the given folder (%s)", mounted, home)
	}
	return nil
}

// stop ends a container as the first version would have.
func (e engine) stop(ctx context.Context, c *oldContainer) error {
	if c.paused {
		if _, err := e.api.ContainerUnpause(ctx, c.id, client.ContainerUnpauseOptions{}); err != nil {
			return fmt.Errorf("unpause the old container to stop it: %w", err)
		}
	}
	seconds := stopSeconds
	if _, err := e.api.ContainerStop(ctx, c.id, client.ContainerStopOptions{Timeout: &seconds}); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("stop the old container: %w", err)
	}
	return nil
}

// remove removes a container. What it had mounted stays.
func (e engine) remove(ctx context.Context, c *oldContainer) error {
	_, err := e.api.ContainerRemove(ctx, c.id, client.ContainerRemoveOptions{Force: true})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove the old container: %w", err)
	}
	return nil
}
