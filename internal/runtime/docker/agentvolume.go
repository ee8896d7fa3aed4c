package docker

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
)

// The first process of every workspace is codehub's own executable, whatever the
// image holds. It is on a volume for each version of the executable, which the
// workspaces mount read-only. The helper fills it, and a file has its name there only
// once it is complete and synced, so that a crash and a race between servers leave
// nothing to repair. Each process has the helper check the volume once, before the
// first start that uses it. A volume that was removed since then is created again by
// Docker, empty: the start fails, and the next attempt has it filled.

const (
	agentDir  = "/opt/codehub"
	agentFile = "codehub"
	agentPath = agentDir + "/" + agentFile
)

// agentEntrypoint precedes the image's own command.
var agentEntrypoint = []string{agentPath, runtime.AgentCommand, "--"}

// agentVolume is what is known of the volume.
type agentVolume struct {
	lock   chan struct{} // of capacity 1: held while the volume is checked or filled
	name   string        // guarded by Runtime.mu; empty: not known to be complete
	digest string        // of the executable on it
}

// ensureAgentVolume returns the complete volume and the digest of the executable on
// it.
func (r *Runtime) ensureAgentVolume(ctx context.Context) (name, digest string, err error) {
	if name, digest = r.knownAgentVolume(); name != "" {
		return name, digest, nil
	}
	select {
	case r.agent.lock <- struct{}{}:
		defer func() { <-r.agent.lock }()
	case <-ctx.Done():
		return "", "", wrapError(ctx, "fill the agent's volume", ctx.Err())
	}
	if name, digest = r.knownAgentVolume(); name != "" {
		return name, digest, nil // another call has filled it meanwhile
	}
	name, digest, err = r.fillAgentVolume(ctx)
	if !errors.Is(err, runtime.ErrUnreachable) && ctx.Err() == nil {
		r.noAgent.Set(err)
	}
	if err != nil {
		return "", "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.agent.name, r.agent.digest = name, digest
	return name, digest, nil
}

func (r *Runtime) knownAgentVolume() (name, digest string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.agent.name, r.agent.digest
}

// forgetAgentVolume makes the next start check the volume again.
func (r *Runtime) forgetAgentVolume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.agent.name = ""
}

// agentMissing reports whether a container could not be started because the
// executable was not on its volume.
func agentMissing(err error) bool { return strings.Contains(err.Error(), agentPath) }

func (r *Runtime) fillAgentVolume(ctx context.Context) (name, digest string, err error) {
	if _, err := r.ensureHelperImage(ctx); err != nil {
		return "", "", err
	}
	digest = r.helperDigest()
	name = r.names.agentVolume(digest)
	got, err := r.createVolume(ctx, client.VolumeCreateOptions{Name: name, Driver: "local", Labels: r.agentLabels(digest)})
	if err != nil {
		return "", "", err
	}
	if !r.owns(got, roleAgent) || got[labelDigest] != digest {
		return "", "", fmt.Errorf("volume %s does not belong to this installation; remove it", name)
	}
	err = r.runHelper(ctx, helperRun{
		args: []string{cmdInstallAgent, agentDir, digest},
		caps: []string{"DAC_OVERRIDE"}, // Docker's root is another user with userns-remap
		mounts: []mount.Mount{{
			Type: mount.TypeVolume, Source: name, Target: agentDir,
			VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: r.agentLabels(digest)},
		}},
	})
	if err != nil && noSpace(err) && !errors.Is(err, runtime.ErrNoSpace) {
		err = fmt.Errorf("%w: %w", runtime.ErrNoSpace, err)
	}
	if err != nil {
		return "", "", fmt.Errorf("fill the agent's volume: %w", err)
	}
	return name, digest, nil
}

// agentMount mounts the volume. Without NoCopy, Docker would fill an empty volume
// from the image: an image could bring the agent of all workspaces. The labels are
// those of a volume that Docker creates because it is missing.
func (r *Runtime) agentMount(name, digest string) mount.Mount {
	return mount.Mount{
		Type: mount.TypeVolume, Source: name, Target: agentDir, ReadOnly: true,
		VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: r.agentLabels(digest)},
	}
}

func (r *Runtime) agentLabels(digest string) map[string]string {
	labels := r.labels(roleAgent, "", "")
	labels[labelDigest] = digest
	return labels
}

// sweepAgentVolumes removes the volumes of earlier executables. Docker keeps those
// that a container uses.
func (r *Runtime) sweepAgentVolumes(ctx context.Context) error {
	current, _ := r.knownAgentVolume()
	if current == "" {
		return nil // not known yet which are old
	}
	list, err := r.api.VolumeList(ctx, client.VolumeListOptions{Filters: r.filter(roleAgent)})
	if err != nil {
		return wrapError(ctx, "list the agent's volumes", err)
	}
	var errs []error
	for _, v := range list.Items {
		if v.Name == current {
			continue
		}
		_, err := r.api.VolumeRemove(ctx, v.Name, client.VolumeRemoveOptions{})
		if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
			errs = append(errs, wrapError(ctx, "remove volume", err))
		}
	}
	return errors.Join(errs...)
}
