package docker

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// tinyNetwork gives an installation a network with five addresses.
func tinyNetwork(t *testing.T, r *Runtime) {
	t.Helper()
	subnet := netip.PrefixFrom(r.cfg.Subnet.Addr(), 29)
	must(t)(r.engine.API.NetworkCreate(t.Context(), r.engine.Names.Network, r.network.Options(engine.RoleNetwork, subnet)))
}

// A start without a free address is ErrBusy and leaves nothing behind; it succeeds
// once an address is free.
func TestStartWithoutFreeAddressIsBusy(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	r := newRuntime(t, nil)
	tinyNetwork(t, r)
	check(t, r.Prepare(t.Context()))
	var others []string
	for range 5 {
		c, err := r.engine.API.ContainerCreate(t.Context(), client.ContainerCreateOptions{
			Config:     &container.Config{Image: harness.TestImage(), Labels: r.engine.Labels("test", "", "")},
			HostConfig: &container.HostConfig{NetworkMode: container.NetworkMode(r.engine.Names.Network)},
		})
		if err == nil {
			_, err = r.engine.API.ContainerStart(t.Context(), c.ID, client.ContainerStartOptions{})
		}
		check(t, err)
		others = append(others, c.ID)
	}
	spec := seededHome(t, r)
	_, err := r.StartContainer(t.Context(), spec, nil)
	if !errors.Is(err, runtime.ErrBusy) {
		t.Fatalf("StartContainer: %v", err)
	}
	t.Log(err)
	// With Docker's message when Docker chooses the address.
	one, err := r.engine.API.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Config:     &container.Config{Image: harness.TestImage(), Labels: r.engine.Labels("test", "", "")},
		HostConfig: &container.HostConfig{NetworkMode: container.NetworkMode(r.engine.Names.Network)},
	})
	check(t, err)
	_, err = r.engine.API.ContainerStart(t.Context(), one.ID, client.ContainerStartOptions{})
	if err = engine.WrapError(t.Context(), "start container", err); !errors.Is(err, runtime.ErrBusy) {
		t.Fatalf("ContainerStart: %v", err)
	}
	t.Log(err)
	if list, err := r.Containers(t.Context()); err != nil || len(list) != 0 {
		t.Fatalf("containers = %+v, %v", list, err)
	}
	check(t, r.engine.Discard(t.Context(), others[0]))
	for tries := 1; ; tries++ { // each takes a few of the addresses
		c, err := r.StartContainer(t.Context(), spec, nil)
		if err == nil {
			awaitHealthy(t, r, c)
			return
		}
		if !errors.Is(err, runtime.ErrBusy) || tries > 3 {
			t.Fatalf("StartContainer with a free address: %v", err)
		}
	}
}

// Docker's refusal to lift limits costs none of the attempts to find a free address.
func TestRefusedLimitsCostNoAttempt(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	e := newFaultProxy(t)
	r := newRuntime(t, func(cfg *Config) { cfg.Host = e.host })
	check(t, r.Prepare(t.Context()))
	spec := seededHome(t, r)
	answers := make(chan string, engine.MaxTries)
	for range engine.MaxTries - 1 {
		answers <- "Address already in use"
	}
	answers <- "error setting rlimits for ready process"
	f := func(w http.ResponseWriter, req *http.Request) bool {
		if req.Method != http.MethodPost || !strings.HasSuffix(req.URL.Path, "/start") {
			return false
		}
		select {
		case message := <-answers:
			answer(http.StatusInternalServerError, message)(w, req)
			return true
		default:
			return false
		}
	}
	e.fault.Store(&f)
	start(t, r, spec)
	if len(answers) != 0 {
		t.Errorf("%d of the answers were not asked for", len(answers))
	}
}

// A container that starts using a home between the check of its users and the
// operation is detected, and what was created is removed.
func TestNewUserOfHomeIsDetected(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	job := func(r *Runtime, id workspace.ID) error {
		_, err := r.jobs.StartJob(t.Context(), runtime.JobSpec{
			Workspace: id, Claim: "op", Kind: runtime.JobArchive, Storage: workspace.StorageDockerVolume,
			VolumeClaim: "home-1", Key: "key", Input: []byte("exit 0\n"),
		}, nil)
		return err
	}
	for _, c := range []struct {
		name, method, path string
		call               func(r *Runtime, id workspace.ID) error
	}{
		{"archive", http.MethodPost, "/containers/create", job},
		{"fingerprint", http.MethodPost, "/containers/create", func(r *Runtime, id workspace.ID) error {
			_, err := r.Fingerprint(t.Context(), id, "home-1", nil)
			return err
		}},
		{"removal", http.MethodDelete, "-home", func(r *Runtime, id workspace.ID) error { return r.RemoveVolume(t.Context(), id, "home-1", nil) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := newFaultProxy(t)
			r := newRuntime(t, func(cfg *Config) { cfg.Host = e.host })
			check(t, r.Prepare(t.Context()))
			h := direct{r: r, storage: workspace.StorageDockerVolume}
			id := newHome().Workspace
			err := r.CreateVolume(t.Context(), runtime.VolumeSpec{Workspace: id, Storage: h.storage, Claim: "home-1", Image: harness.TestImage()}, nil)
			if err == nil {
				err = r.SettleVolume(t.Context(), id, "home-1")
			}
			check(t, err)
			name := "reader-" + string(id)
			leave := func() {}
			var came atomic.Bool
			f := func(_ http.ResponseWriter, req *http.Request) bool {
				if req.Method == c.method && strings.HasSuffix(req.URL.Path, c.path) && came.CompareAndSwap(false, true) {
					leave = h.use(t, id, name, true)
				}
				return false
			}
			e.fault.Store(&f)
			var busy *runtime.BusyError
			if err := c.call(r, id); !errors.As(err, &busy) || busy.Container != name {
				t.Fatalf("%v", err)
			}
			if list := ownHomes(t, r); len(list) != 1 {
				t.Fatalf("volumes = %+v", list)
			}
			leave()
			check(t, c.call(r, id))
		})
	}
}

// A fingerprint interrupted by the end of its server leaves a container that blocks
// nothing.
func TestInterruptedFingerprintBlocksNothing(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	r := newRuntime(t, nil)
	h := direct{r: r, storage: workspace.StorageDockerVolume}
	for name, call := range map[string]func(id workspace.ID) error{
		"fingerprint": func(id workspace.ID) error { _, err := r.Fingerprint(t.Context(), id, "home-1", nil); return err },
		"removal":     func(id workspace.ID) error { return r.RemoveVolume(t.Context(), id, "home-1", nil) },
	} {
		id := newHome().Workspace
		err := r.CreateVolume(t.Context(), runtime.VolumeSpec{Workspace: id, Storage: h.storage, Claim: "home-1", Image: harness.TestImage()}, nil)
		check(t, err)
		made, err := r.engine.API.ContainerCreate(t.Context(), client.ContainerCreateOptions{
			Name:       engine.FingerprintName(id),
			Config:     &container.Config{Image: harness.TestImage(), Labels: r.engine.Labels(engine.RoleFingerprint, id, "home-1")},
			HostConfig: &container.HostConfig{Mounts: []mount.Mount{h.homeMount(id, true)}},
		})
		check(t, err)
		if err := call(id); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := r.engine.API.ContainerInspect(context.Background(), made.ID, client.ContainerInspectOptions{}); !errdefs.IsNotFound(err) {
			t.Errorf("%s: the container was not removed: %v", name, err)
		}
	}
}
