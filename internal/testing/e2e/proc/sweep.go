package proc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/image"
	"github.com/moby/moby/client"
)

var installationID = regexp.MustCompile(`msg=installation id=([0-9a-f-]{36})`)

// Installation returns the id in the labels of this server's Docker resources,
// "" if the server has not started yet.
func (s *Server) Installation() string {
	log := s.Log()
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := installationID.FindStringSubmatch(log); m != nil && s.installation == "" {
		s.installation = m[1]
	}
	return s.installation
}

// Label returns the label, with its value, of an installation's resources.
func Label(installation string) string { return "codehub.installation=" + installation }

// Sweep removes the resources of an installation from Docker, including its
// network, wall and helper image. The server must have ended. Requests that
// Docker was still executing then may create resources later, so Sweep repeats
// until it has found none twice.
func Sweep(ctx context.Context, docker *client.Client, installation string) error {
	if installation == "" {
		return nil
	}
	// A removal can fail while Docker creates a container with the resource.
	// The next pass repeats it, so only the errors of the last pass count.
	var err error
	for quiet, times := 0, 0; quiet < 2 && times < 20 && ctx.Err() == nil; times++ {
		var found int
		found, err = sweepOnce(ctx, docker, installation)
		quiet++
		if found > 0 {
			quiet = 0
		}
		time.Sleep(200 * time.Millisecond)
	}
	return err
}

func sweepOnce(ctx context.Context, docker *client.Client, installation string) (found int, err error) {
	mine := client.Filters{}.Add("label", Label(installation))
	var errs []error
	containers, err := docker.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: mine})
	errs = append(errs, err)
	for _, c := range containers.Items {
		_, err := docker.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		errs = append(errs, err)
	}
	volumes, err := docker.VolumeList(ctx, client.VolumeListOptions{Filters: mine})
	errs = append(errs, err)
	for _, v := range volumes.Items {
		_, err := docker.VolumeRemove(ctx, v.Name, client.VolumeRemoveOptions{Force: true})
		errs = append(errs, err)
	}
	networks, err := docker.NetworkList(ctx, client.NetworkListOptions{Filters: mine})
	errs = append(errs, err)
	for _, n := range networks.Items {
		_, err := docker.NetworkRemove(ctx, n.ID, client.NetworkRemoveOptions{})
		errs = append(errs, err)
		// The wall has the network's name. A server that was killed early has no wall.
		if exec.CommandContext(ctx, "nft", "list", "table", "inet", n.Name).Run() != nil {
			continue
		}
		if out, err := exec.CommandContext(ctx, "nft", "delete", "table", "inet", n.Name).CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("remove the wall %s: %w: %s", n.Name, err, out))
		}
	}
	images, err := docker.ImageList(ctx, client.ImageListOptions{Filters: mine})
	errs = append(errs, err)
	// An image before those that it was built from, which then may go with it.
	slices.SortFunc(images.Items, func(a, b image.Summary) int { return cmp.Compare(b.Created, a.Created) })
	for _, i := range images.Items {
		_, err := docker.ImageRemove(ctx, i.ID, client.ImageRemoveOptions{Force: true, PruneChildren: true})
		if !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
			errs = append(errs, err)
		}
	}
	return len(containers.Items) + len(volumes.Items) + len(networks.Items) + len(images.Items), errors.Join(errs...)
}
