package tools

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/base/health"
	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/helper"
)

// volume is a kind of volume with programs of codehub's that all workspaces mount
// read-only. There is one for each digest of its content. The helper fills it, in such a
// way that a crash and a race between servers leave nothing to repair, and workspaces
// only mount complete ones. Each process has the helper check a volume once, before the
// first start that uses it.
type volume struct {
	role   string            // of the volumes; also part of their names
	target string            // where workspaces mount it
	failed *health.Condition // it cannot be filled
	lock   chan struct{}     // of capacity 1: held while a volume is checked or filled

	mu           sync.Mutex
	name, digest string // guarded by mu; of the complete volume, empty: not known
}

func newVolume(role, target string, failed *health.Condition) volume {
	return volume{role: role, target: target, failed: failed, lock: make(chan struct{}, 1)}
}

// fillDir is where the helper mounts the volume that it fills.
const fillDir = "/tool-volume"

func (v *volume) known() (name, digest string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.name, v.digest
}

// forget makes the next start check the volume again.
func (v *volume) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.name, v.digest = "", ""
}

// fillOnce returns the complete volume for the digest. The helper's run fills it, at
// fillDir; it does nothing if the volume is complete.
func (t *Tools) fillOnce(ctx context.Context, v *volume, digest string, run helper.Run) (string, error) {
	is := func() (string, bool) {
		name, known := v.known()
		return name, name != "" && known == digest
	}
	if name, ok := is(); ok {
		v.failed.Set(nil) // what the volume is made of may have been missing for a while
		return name, nil
	}
	select {
	case v.lock <- struct{}{}:
		defer func() { <-v.lock }()
	case <-ctx.Done():
		return "", engine.WrapError(ctx, "fill the "+v.role+"'s volume", ctx.Err())
	}
	if name, ok := is(); ok {
		return name, nil // another call has filled it meanwhile
	}
	name, err := t.fill(ctx, v, digest, run)
	if !errors.Is(err, runtime.ErrUnreachable) && ctx.Err() == nil {
		v.failed.Set(err)
	}
	if err != nil {
		return "", err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.name, v.digest = name, digest
	return name, nil
}

func (t *Tools) fill(ctx context.Context, v *volume, digest string, run helper.Run) (string, error) {
	name, labels := t.Names.Tool(v.role, digest), t.labels(v.role, digest)
	opts := client.VolumeCreateOptions{Name: name, Driver: "local", Labels: labels}
	got, err := t.EnsureVolume(ctx, opts)
	if err == nil && t.Owns(got, v.role) && got[engine.LabelDigest] == "" { // see mount
		if err := t.DropVolume(ctx, name); err != nil {
			return "", err
		}
		got, err = t.EnsureVolume(ctx, opts)
	}
	if err != nil {
		return "", err
	}
	if !t.Owns(got, v.role) || got[engine.LabelDigest] != digest {
		return "", fmt.Errorf("volume %s does not belong to this installation; remove it", name)
	}
	run.Caps = append(run.Caps, "DAC_OVERRIDE") // Docker's root is another user with userns-remap
	run.Mounts = append(run.Mounts, mount.Mount{
		Type: mount.TypeVolume, Source: name, Target: fillDir,
		VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: labels},
	})
	if err := t.helper.Run(ctx, run); err != nil {
		return "", fmt.Errorf("fill the %s's volume: %w", v.role, err)
	}
	return name, nil
}

// Mounts mounts the volumes with the agent and with the IDE, if one is named.
func (t *Tools) Mounts(agent, ide string) []mount.Mount {
	mounts := []mount.Mount{t.mount(&t.agent, agent)}
	if ide != "" {
		mounts = append(mounts, t.mount(&t.ide, ide))
	}
	return mounts
}

// mount mounts a volume. Without NoCopy, Docker would fill an empty volume from the
// image: an image could bring the programs of all workspaces. The labels are those of a
// volume that Docker creates because it is missing. It is empty and has no digest: that
// start fails, and the next one has it removed and filled.
func (t *Tools) mount(v *volume, name string) mount.Mount {
	return mount.Mount{
		Type: mount.TypeVolume, Source: name, Target: v.target, ReadOnly: true,
		VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: t.Labels(v.role, "", "")},
	}
}

// ForgetAgent makes the next start check the agent's volume again.
func (t *Tools) ForgetAgent() { t.agent.forget() }

// stillThere forgets a volume that was removed, or that Docker has made since then.
func (t *Tools) stillThere(ctx context.Context, v *volume) error {
	name, _ := v.known()
	if name == "" {
		return nil
	}
	filled, err := t.isFilled(ctx, name)
	if err == nil && !filled {
		v.forget()
	}
	return err
}

// isFilled reports whether a volume is one that the helper has filled, and not one that
// Docker has made for a container.
func (t *Tools) isFilled(ctx context.Context, name string) (bool, error) {
	found, err := t.API.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, engine.WrapError(ctx, "inspect volume", err)
	}
	return found.Volume.Labels[engine.LabelDigest] != "", nil
}

func (t *Tools) labels(role, digest string) map[string]string {
	labels := t.Labels(role, "", "")
	labels[engine.LabelDigest] = digest
	return labels
}

// Sweep removes the volumes of earlier versions. Docker keeps those that a
// container uses.
func (t *Tools) Sweep(ctx context.Context) error {
	return errors.Join(t.sweep(ctx, &t.agent), t.sweep(ctx, &t.ide))
}

func (t *Tools) sweep(ctx context.Context, v *volume) error {
	select {
	case v.lock <- struct{}{}: // none is being filled
		defer func() { <-v.lock }()
	case <-ctx.Done():
		return engine.WrapError(ctx, "remove old volumes", ctx.Err())
	}
	current, _ := v.known()
	if current == "" {
		return nil // not known yet which are old
	}
	list, err := t.API.VolumeList(ctx, client.VolumeListOptions{Filters: t.Filter(v.role)})
	if err != nil {
		return engine.WrapError(ctx, "list the "+v.role+"'s volumes", err)
	}
	var errs []error
	for _, old := range list.Items {
		if old.Name == current {
			continue
		}
		_, err := t.API.VolumeRemove(ctx, old.Name, client.VolumeRemoveOptions{})
		if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
			errs = append(errs, engine.WrapError(ctx, "remove volume", err))
		}
	}
	return errors.Join(errs...)
}

// Prepare fills the volumes of the agent and of the IDE before the first workspace
// needs them, and reads what has to be known of the default image. A failure is a
// condition, and the next start repeats the attempt.
func (t *Tools) Prepare(ctx context.Context) {
	if _, _, err := t.Agent(ctx); err != nil {
		t.Log.Debug("fill the agent's volume failed", "err", err)
		return
	}
	if t.cfg.DefaultImage == "" {
		return
	}
	image := t.cfg.DefaultImage
	if interim := t.cfg.Builds.Interim(image); interim != "" {
		image = interim
	}
	as, err := t.images.RunAs(ctx, image)
	if err == nil && !as.Missing && !as.Included {
		var built bool
		if built, err = t.images.IsBuilt(ctx, t.cfg.IDEImage); err == nil && built {
			_, _, err = t.IDE(ctx)
		}
	}
	if err != nil {
		t.Log.Debug("prepare the default image failed", "err", err)
	}
}
