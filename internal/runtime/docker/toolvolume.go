package docker

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

// toolVolume is a kind of volume with programs of codehub's that all workspaces mount
// read-only. There is one for each digest of its content. The helper fills it, in such a
// way that a crash and a race between servers leave nothing to repair, and workspaces
// only mount complete ones. Each process has the helper check a volume once, before the
// first start that uses it.
type toolVolume struct {
	role   string            // of the volumes; also part of their names
	target string            // where workspaces mount it
	failed *health.Condition // it cannot be filled
	lock   chan struct{}     // of capacity 1: held while a volume is checked or filled

	mu           sync.Mutex
	name, digest string // guarded by mu; of the complete volume, empty: not known
}

func newToolVolume(role, target string, failed *health.Condition) toolVolume {
	return toolVolume{role: role, target: target, failed: failed, lock: make(chan struct{}, 1)}
}

// fillDir is where the helper mounts the volume that it fills.
const fillDir = "/tool-volume"

func (v *toolVolume) known() (name, digest string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.name, v.digest
}

// forget makes the next start check the volume again.
func (v *toolVolume) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.name, v.digest = "", ""
}

// fillOnce returns the complete volume for the digest. The helper's run fills it, at
// fillDir; it does nothing if the volume is complete.
func (r *Runtime) fillOnce(ctx context.Context, v *toolVolume, digest string, run helper.Run) (string, error) {
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
	name, err := r.fill(ctx, v, digest, run)
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

func (r *Runtime) fill(ctx context.Context, v *toolVolume, digest string, run helper.Run) (string, error) {
	name, labels := r.engine.Names.Tool(v.role, digest), r.toolLabels(v.role, digest)
	opts := client.VolumeCreateOptions{Name: name, Driver: "local", Labels: labels}
	got, err := r.engine.CreateVolume(ctx, opts)
	if err == nil && r.engine.Owns(got, v.role) && got[engine.LabelDigest] == "" { // see toolMount
		if err := r.engine.RemoveVolume(ctx, name); err != nil {
			return "", err
		}
		got, err = r.engine.CreateVolume(ctx, opts)
	}
	if err != nil {
		return "", err
	}
	if !r.engine.Owns(got, v.role) || got[engine.LabelDigest] != digest {
		return "", fmt.Errorf("volume %s does not belong to this installation; remove it", name)
	}
	run.Caps = append(run.Caps, "DAC_OVERRIDE") // Docker's root is another user with userns-remap
	run.Mounts = append(run.Mounts, mount.Mount{
		Type: mount.TypeVolume, Source: name, Target: fillDir,
		VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: labels},
	})
	if err := r.helper.Run(ctx, run); err != nil {
		return "", fmt.Errorf("fill the %s's volume: %w", v.role, err)
	}
	return name, nil
}

// toolMount mounts a volume. Without NoCopy, Docker would fill an empty volume from the
// image: an image could bring the programs of all workspaces. The labels are those of a
// volume that Docker creates because it is missing. It is empty and has no digest: that
// start fails, and the next one has it removed and filled.
func (r *Runtime) toolMount(v *toolVolume, name string) mount.Mount {
	return mount.Mount{
		Type: mount.TypeVolume, Source: name, Target: v.target, ReadOnly: true,
		VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: r.engine.Labels(v.role, "", "")},
	}
}

// stillThere forgets a volume that was removed, or that Docker has made since then.
func (r *Runtime) stillThere(ctx context.Context, v *toolVolume) error {
	name, _ := v.known()
	if name == "" {
		return nil
	}
	filled, err := r.isFilled(ctx, name)
	if err == nil && !filled {
		v.forget()
	}
	return err
}

// isFilled reports whether a volume is one that the helper has filled, and not one that
// Docker has made for a container.
func (r *Runtime) isFilled(ctx context.Context, name string) (bool, error) {
	found, err := r.engine.API.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, engine.WrapError(ctx, "inspect volume", err)
	}
	return found.Volume.Labels[engine.LabelDigest] != "", nil
}

func (r *Runtime) toolLabels(role, digest string) map[string]string {
	labels := r.engine.Labels(role, "", "")
	labels[engine.LabelDigest] = digest
	return labels
}

// sweepToolVolumes removes the volumes of earlier versions. Docker keeps those that a
// container uses.
func (r *Runtime) sweepToolVolumes(ctx context.Context) error {
	return errors.Join(r.sweepToolVolume(ctx, &r.agent), r.sweepToolVolume(ctx, &r.ide))
}

func (r *Runtime) sweepToolVolume(ctx context.Context, v *toolVolume) error {
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
	list, err := r.engine.API.VolumeList(ctx, client.VolumeListOptions{Filters: r.engine.Filter(v.role)})
	if err != nil {
		return engine.WrapError(ctx, "list the "+v.role+"'s volumes", err)
	}
	var errs []error
	for _, old := range list.Items {
		if old.Name == current {
			continue
		}
		_, err := r.engine.API.VolumeRemove(ctx, old.Name, client.VolumeRemoveOptions{})
		if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
			errs = append(errs, engine.WrapError(ctx, "remove volume", err))
		}
	}
	return errors.Join(errs...)
}
