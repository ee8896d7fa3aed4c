package runtimetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// StartContainer implements runtime.Runtime.
func (f *Fake) StartContainer(ctx context.Context, spec runtime.ContainerSpec, progress func(runtime.Progress)) (runtime.Container, error) {
	if spec.UID == 0 {
		return runtime.Container{}, errors.New("a workspace cannot run as root")
	}
	if err := f.enter(ctx, "StartContainer", spec.Workspace); err != nil {
		return runtime.Container{}, err
	}
	report(progress, runtime.StepCreating)
	img, err := f.chooseImage(ctx, "StartContainer/pull", spec.Workspace, spec.Image, spec.Choice, progress)
	if err != nil {
		return runtime.Container{}, err
	}
	c, err := f.makeContainer(spec, img)
	if err != nil || c.State == runtime.ContainerRunning {
		return c, err
	}
	report(progress, runtime.StepStarting)
	if err := f.step(ctx, "StartContainer/start", spec.Workspace); err != nil {
		return runtime.Container{}, err
	}
	if c, err = f.run(c.ID, spec.Workspace); err != nil {
		return runtime.Container{}, err
	}
	if err := f.step(ctx, "StartContainer/done", spec.Workspace); err != nil {
		return runtime.Container{}, err
	}
	return c, nil
}

// makeContainer creates the container, or returns the one to adopt.
func (f *Fake) makeContainer(spec runtime.ContainerSpec, img chosen) (runtime.Container, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	c := f.w.containers[spec.Workspace]
	if c != nil && (c.installation != f.installation || c.Claim != spec.Claim || c.State == runtime.ContainerExited) {
		return runtime.Container{}, fmt.Errorf("container of %s: %w", spec.Workspace, runtime.ErrConflict)
	}
	if c != nil && c.State == runtime.ContainerRunning {
		return c.Container, nil
	}
	v := f.w.volumes[spec.Workspace]
	if !f.owns(v, spec.VolumeClaim) || v.Storage != spec.Storage {
		delete(f.w.containers, spec.Workspace)
		f.w.change()
		return runtime.Container{}, fmt.Errorf("volume of %s: %w", spec.Workspace, runtime.ErrVolumeMismatch)
	}
	for _, j := range f.w.jobsOf(spec.Workspace) {
		switch j.state {
		case jobCreated:
			f.w.dropJob(j)
		case jobRunning:
			delete(f.w.containers, spec.Workspace)
			f.w.change()
			return runtime.Container{}, f.w.inUse(spec.Workspace)
		}
	}
	if v.Limit > 0 && spec.Size.Disk > v.Limit {
		v.Limit = spec.Size.Disk
	}
	if c == nil {
		c = &fakeContainer{
			Container: runtime.Container{
				ID: f.w.nextID(), Workspace: spec.Workspace, Claim: spec.Claim, Image: spec.Image, EnvDigest: spec.EnvDigest, Size: spec.Size.Name,
				ImageID: img.id, ImageDigest: img.digest, ImageNote: img.note, ImageGeneration: spec.Choice.Generation,
				State: runtime.ContainerCreated, Detail: "Created",
			},
			installation: f.installation, uid: int(spec.UID),
			secret:   spec.Secret,
			hostname: spec.Hostname,
			env:      environment(spec),
		}
		f.w.containers[spec.Workspace] = c
		f.w.change()
	}
	return c.Container, nil
}

// environment returns the variables of a container; the images of a Fake have none.
func environment(spec runtime.ContainerSpec) map[string]string {
	env := map[string]string{}
	if spec.TimeZone != "" {
		env["TZ"] = spec.TimeZone
	}
	maps.Copy(env, spec.Env)
	env[runtime.SecretEnv] = spec.Secret
	if spec.Setup {
		env[runtime.SetupEnv] = "1"
	}
	return env
}

// Environment returns the hostname and the variables of a workspace's container.
func (f *Fake) Environment(id workspace.ID) (hostname string, env map[string]string) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	c := f.w.containers[id]
	if c == nil {
		return "", nil
	}
	return c.hostname, maps.Clone(c.env)
}

func (f *Fake) run(containerID string, id workspace.ID) (runtime.Container, error) {
	f.mu.Lock()
	agent := f.agent
	f.mu.Unlock()
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	c := f.w.containers[id]
	if c == nil || c.ID != containerID {
		return runtime.Container{}, fmt.Errorf("start container of %s: it was removed", id)
	}
	if f.w.noAddress != "" {
		delete(f.w.containers, id)
		f.w.change()
		return runtime.Container{}, &runtime.BusyError{Reason: "start container: " + f.w.noAddress}
	}
	c.State, c.Detail = runtime.ContainerRunning, "Up"
	c.log = append(c.log, "listening", "ready")
	f.w.serial++ // addresses are never reused
	c.Addr = fmt.Sprintf("10.%d.%d.%d:%d", f.w.serial>>16&255, f.w.serial>>8&255, f.w.serial&255, runtime.IDEPort)
	if agent != nil {
		c.agent = agent(id, c.secret)
	}
	if f.w.exitOnStart[id] {
		c.end("Exited (1)")
	}
	f.w.change()
	// The caller learns of its end from the next list.
	out := c.Container
	out.State = runtime.ContainerRunning
	return out, nil
}

func (c *fakeContainer) end(detail string) {
	c.State, c.Detail, c.Addr = runtime.ContainerExited, detail, ""
	c.log = append(c.log, "ended")
}

// RemoveContainer implements runtime.Runtime.
func (f *Fake) RemoveContainer(ctx context.Context, containerID string, grace time.Duration) error {
	f.mu.Lock()
	f.graces = append(f.graces, grace)
	f.mu.Unlock()
	if err := f.enter(ctx, "RemoveContainer", f.workspaceOf(containerID)); err != nil {
		return err
	}
	id := f.workspaceOf(containerID)
	f.w.mu.Lock()
	c := f.w.containers[id]
	if c == nil || c.ID != containerID {
		f.w.mu.Unlock()
		return nil
	}
	if c.installation != f.installation {
		f.w.mu.Unlock()
		return fmt.Errorf("container %s is not this installation's", containerID)
	}
	if c.State == runtime.ContainerRunning {
		c.end("Exited (143)")
		f.w.change()
	}
	f.w.mu.Unlock()

	if err := f.step(ctx, "RemoveContainer/remove", id); err != nil {
		return err
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if c := f.w.containers[id]; c != nil && c.ID == containerID {
		delete(f.w.containers, id)
		f.w.change()
	}
	return nil
}

func (f *Fake) workspaceOf(containerID string) workspace.ID {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	for id, c := range f.w.containers {
		if c.ID == containerID {
			return id
		}
	}
	return ""
}

// Probe implements runtime.Runtime.
func (f *Fake) Probe(ctx context.Context, c runtime.Container) error {
	if err := f.step(ctx, "Probe", c.Workspace); err != nil {
		return err
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	real := f.w.containers[c.Workspace]
	if real == nil || real.State != runtime.ContainerRunning || c.Addr == "" || real.Addr != c.Addr {
		return fmt.Errorf("probe %s: connection refused", c.Workspace)
	}
	if f.w.neverHealthy[c.Workspace] {
		return fmt.Errorf("probe %s: 503", c.Workspace)
	}
	return nil
}

// Upstream implements runtime.Runtime.
func (f *Fake) Upstream(ctx context.Context, id workspace.ID) (runtime.Upstream, error) {
	if err := f.enter(ctx, "Upstream", id); err != nil {
		return runtime.Upstream{}, err
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	c := f.w.containers[id]
	if c == nil || c.installation != f.installation || c.State != runtime.ContainerRunning {
		return runtime.Upstream{}, fmt.Errorf("workspace %s: %w", id, runtime.ErrNotFound)
	}
	return runtime.Upstream{ContainerID: c.ID, Addr: c.Addr, Agent: c.agent, Secret: c.secret}, nil
}

// Logs implements runtime.Runtime.
func (f *Fake) Logs(ctx context.Context, id workspace.ID, tail int, follow bool, w io.Writer) error {
	if err := f.enter(ctx, "Logs", id); err != nil {
		return err
	}
	f.w.mu.Lock()
	c := f.w.containers[id]
	if c == nil || c.installation != f.installation {
		f.w.mu.Unlock()
		return fmt.Errorf("workspace %s: %w", id, runtime.ErrNotFound)
	}
	from := 0
	if tail > 0 {
		from = max(0, len(c.log)-tail)
	}
	for {
		lines := c.log[from:]
		from = len(c.log)
		ended := f.w.containers[id] != c || c.State == runtime.ContainerExited
		changed := f.w.changed
		f.w.mu.Unlock()
		for _, line := range lines {
			if _, err := fmt.Fprintln(w, line); err != nil {
				return fmt.Errorf("write logs: %w", err)
			}
		}
		if ended || !follow {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
		f.w.mu.Lock()
	}
}
