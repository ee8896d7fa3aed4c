package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/workspace"
)

// bareDocker is the rival: Docker's API without codehub.
type bareDocker struct {
	api     *client.Client
	label   string
	network string // of its containers; empty: Docker's default network
	ide     string // container with the IDE's volume; empty: images bring their own
	without string // image that brings its own nevertheless
	volumes []string
}

func newBareDocker() (*bareDocker, error) {
	c, err := client.New(client.FromEnv)
	if err != nil {
		return nil, err
	}
	return &bareDocker{api: c, label: fmt.Sprintf("codehub-bench-%d", os.Getpid())}, nil
}

// withIDE makes later starts run the IDE of an image in all images but one.
func (b *bareDocker) withIDE(ctx context.Context, image, without string) error {
	made, err := b.api.ContainerCreate(ctx, client.ContainerCreateOptions{
		// Docker fills the volume of a new container from its image.
		Config: &container.Config{Image: image, Labels: map[string]string{b.label: ""}, Volumes: map[string]struct{}{"/opt/codehub-ide": {}}},
	})
	b.ide, b.without = made.ID, without
	return err
}

func (b *bareDocker) close() {
	if b.ide != "" {
		_, _ = b.api.ContainerRemove(context.Background(), b.ide, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	}
	for _, v := range b.volumes {
		_, _ = b.api.VolumeRemove(context.Background(), v, client.VolumeRemoveOptions{})
	}
}

// onNetwork returns a rival whose containers are on a network of their own, without
// traffic between them, like codehub's workspaces. Docker runs a DNS server and sets
// up packet filters for each container on such a network. remove ends the network.
func (b *bareDocker) onNetwork(ctx context.Context) (isolated *bareDocker, remove func(), err error) {
	network, err := b.api.NetworkCreate(ctx, b.label, client.NetworkCreateOptions{
		Driver: "bridge", Options: map[string]string{"com.docker.network.bridge.enable_icc": "false"}, Labels: map[string]string{b.label: ""},
	})
	if err != nil {
		return nil, nil, err
	}
	remove = func() { _, _ = b.api.NetworkRemove(context.Background(), network.ID, client.NetworkRemoveOptions{}) }
	return &bareDocker{api: b.api, label: b.label, network: b.label}, remove, nil
}

// startAll starts a container for each volume in parallel, and returns the time until
// all of them answer. It then removes the containers.
func (b *bareDocker) startAll(ctx context.Context, image string, volumes []string) (time.Duration, error) {
	begun := time.Now()
	errs := make([]error, len(volumes))
	containers := make([]string, len(volumes))
	var g sync.WaitGroup
	for i, v := range volumes {
		g.Go(func() { containers[i], errs[i] = b.up(ctx, image, v) })
	}
	g.Wait()
	took := time.Since(begun)
	for _, id := range containers {
		b.down(id)
	}
	return took, errors.Join(errs...)
}

// volume creates a volume. With an image, it fills the volume by a first start.
func (b *bareDocker) volume(ctx context.Context, image string) (string, error) {
	v, err := b.api.VolumeCreate(ctx, client.VolumeCreateOptions{Labels: map[string]string{b.label: ""}})
	if err != nil {
		return "", err
	}
	b.volumes = append(b.volumes, v.Volume.Name)
	if image != "" {
		if _, err := b.start(ctx, image, v.Volume.Name); err != nil {
			return "", err
		}
	}
	return v.Volume.Name, nil
}

// start creates and starts a container, and returns the time until /healthz
// answers. It then removes the container.
func (b *bareDocker) start(ctx context.Context, image, volume string) (time.Duration, error) {
	begun := time.Now()
	id, err := b.up(ctx, image, volume)
	took := time.Since(begun)
	b.down(id)
	return took, err
}

func (b *bareDocker) up(ctx context.Context, image, volume string) (string, error) {
	options := client.ContainerCreateOptions{
		Config: &container.Config{Image: image, Labels: map[string]string{b.label: ""}, Healthcheck: &container.HealthConfig{Test: []string{"NONE"}}},
		HostConfig: &container.HostConfig{
			NetworkMode: container.NetworkMode(b.network),
			Mounts:      []mount.Mount{{Type: mount.TypeVolume, Source: volume, Target: "/home/coder"}},
		},
	}
	if b.ide != "" && image != b.without {
		options.Config.Entrypoint = []string{"/opt/codehub-ide/start"}
		options.HostConfig.VolumesFrom = []string{b.ide + ":ro"}
		options.HostConfig.Init = new(true)
	}
	made, err := b.api.ContainerCreate(ctx, options)
	if err != nil {
		return "", err
	}
	if _, err := b.api.ContainerStart(ctx, made.ID, client.ContainerStartOptions{}); err != nil {
		return made.ID, err
	}
	seen, err := b.api.ContainerInspect(ctx, made.ID, client.ContainerInspectOptions{})
	if err != nil {
		return made.ID, err
	}
	var addr string
	for _, n := range seen.Container.NetworkSettings.Networks {
		addr = n.IPAddress.String()
	}
	return made.ID, awaitHealth(ctx, "http://"+addr+":8080/healthz")
}

func awaitHealth(ctx context.Context, url string) error {
	hc := &http.Client{Timeout: time.Second}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		if resp, err := hc.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (b *bareDocker) down(id string) {
	if id != "" {
		_, _ = b.api.ContainerRemove(context.Background(), id, client.ContainerRemoveOptions{Force: true})
	}
}

// inside runs a shell script in the container of a workspace.
func inside(ctx context.Context, id, script string) error {
	_, _, err := shell(ctx, `docker exec "$0" sh -c "$1"`, workspace.ID(id).DockerName(), script)
	return err
}
