package proc

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"time"

	"github.com/moby/moby/client"
)

var installationID = regexp.MustCompile(`msg=installation id=([0-9a-f-]{36})`)

// Installation is the id that labels everything of this server in Docker;
// empty if it has not started yet.
func (s *Server) Installation() string {
	log := s.Log()
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := installationID.FindStringSubmatch(log); m != nil && s.installation == "" {
		s.installation = m[1]
	}
	return s.installation
}

// Label is the label, with its value, of everything of an installation.
func Label(installation string) string { return "codehub.installation=" + installation }

// Sweep removes from the engine whatever an installation has made there, its
// network, its wall and its helper's image included. The server has ended;
// what the engine was still making for it then appears a moment later, so
// Sweep looks until it has found nothing twice.
func Sweep(ctx context.Context, docker *client.Client, installation string) error {
	if installation == "" {
		return nil
	}
	// What cannot be removed, as the engine is making something of it, can be
	// the next time: what went wrong before counts for nothing then.
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
		// The wall has the network's name. A server that was killed early has none yet.
		if exec.CommandContext(ctx, "nft", "list", "table", "inet", n.Name).Run() != nil {
			continue
		}
		if out, err := exec.CommandContext(ctx, "nft", "delete", "table", "inet", n.Name).CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("remove the wall %s: %w: %s", n.Name, err, out))
		}
	}
	images, err := docker.ImageList(ctx, client.ImageListOptions{Filters: mine})
	errs = append(errs, err)
	for _, i := range images.Items {
		_, err := docker.ImageRemove(ctx, i.ID, client.ImageRemoveOptions{Force: true})
		errs = append(errs, err)
	}
	return len(containers.Items) + len(volumes.Items) + len(networks.Items) + len(images.Items), errors.Join(errs...)
}
