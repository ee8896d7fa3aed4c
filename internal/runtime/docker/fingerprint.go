package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// Fingerprint implements runtime.Runtime. It runs the helper on the home,
// mounted read-only and without a network. The container's name is taken over
// from an earlier call, whose answer nobody waits for any more.
func (r *Runtime) Fingerprint(ctx context.Context, id workspace.ID, claim string, progress func(runtime.Progress)) (string, error) {
	unlock, err := r.lockHome(ctx, id)
	if err != nil {
		return "", err
	}
	defer unlock()
	home, err := r.findHome(ctx, id, claim)
	if err != nil {
		return "", err
	}
	users, err := r.users(ctx, home.source)
	if err != nil {
		return "", err
	}
	users, err = r.endLooks(ctx, users)
	if err == nil {
		err = inUse(home.what, users)
	}
	if err != nil {
		return "", err
	}
	for range startTries {
		image, err := r.ensureHelperImage(ctx)
		if err != nil {
			return "", err
		}
		made, err := r.api.ContainerCreate(ctx, r.lookOptions(id, claim, image, home))
		switch {
		case err == nil:
			return r.runLook(ctx, id, claim, home, made.ID, progress)
		case errdefs.IsConflict(err):
			found, gone, err := r.inspectOwned(ctx, lookName(id), roleLook)
			if err == nil && !gone {
				err = r.discard(ctx, found.ID)
			}
			if err != nil {
				return "", err
			}
		case errdefs.IsNotFound(err): // another server has removed the image as an old one
		default:
			return "", failed(ctx, "create helper", err)
		}
	}
	return "", comesBack("container " + lookName(id))
}

// homeRef is where a home is.
type homeRef struct {
	source string // by which its users are listed: the volume's name, or the folder on the host
	what   string // for people
	mount  mount.Mount
}

// findHome finds the home with this claim, be it a volume or a folder, and how
// a container mounts it read-only.
func (r *Runtime) findHome(ctx context.Context, id workspace.ID, claim string) (homeRef, error) {
	found, err := r.lookAtHomes(ctx, id)
	if err != nil {
		return homeRef{}, err
	}
	name := id.VolumeName()
	there, ok := found.homes[id]
	switch {
	case ok && there == claim:
		return homeRef{source: name, what: "volume " + name, mount: r.volumeMount(id, runtime.JobHomeDir, randomHex(8), true)}, nil
	case ok || r.cfg.DataDir == "":
		return homeRef{}, fmt.Errorf("volume %s: %w", name, runtime.ErrVolumeMismatch)
	}
	if err := r.verifyFolder(id, claim); err != nil {
		return homeRef{}, err
	}
	return homeRef{
		source: r.hostHomePath(id), what: "folder " + r.homePath(id),
		mount: mount.Mount{Type: mount.TypeBind, Source: r.hostHomePath(id), Target: runtime.JobHomeDir, ReadOnly: true},
	}, nil
}

// endLooks removes the containers of earlier calls, and returns the other users.
func (r *Runtime) endLooks(ctx context.Context, users []user) ([]user, error) {
	var others []user
	for _, u := range users {
		if u.role != roleLook {
			others = append(others, u)
			continue
		}
		if err := r.discard(ctx, u.id); err != nil {
			return nil, err
		}
	}
	return others, nil
}

// lookOptions is the container that takes a fingerprint: as privileged as a job
// that archives, and as bounded.
func (r *Runtime) lookOptions(id workspace.ID, claim, image string, home homeRef) client.ContainerCreateOptions {
	pids := int64(jobPids)
	return client.ContainerCreateOptions{
		Name: lookName(id),
		Config: &container.Config{
			Image:       image,
			Cmd:         []string{cmdFingerprint, runtime.JobHomeDir},
			User:        "0:0",
			Env:         []string{"GOMEMLIMIT=" + jobGoMemory},
			Labels:      r.labels(roleLook, id, claim),
			Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
		},
		HostConfig: &container.HostConfig{
			NetworkMode:    "none",
			UsernsMode:     "host",
			CapDrop:        []string{"ALL"},
			CapAdd:         []string{"DAC_OVERRIDE", "FOWNER"},
			ReadonlyRootfs: true,
			SecurityOpt:    []string{"no-new-privileges:true"},
			RestartPolicy:  container.RestartPolicy{Name: container.RestartPolicyDisabled},
			LogConfig:      container.LogConfig{Type: "json-file"},
			Mounts:         []mount.Mount{home.mount},
			Resources: container.Resources{
				Memory: jobMemory, MemorySwap: jobMemory, PidsLimit: &pids, CPUShares: jobCPUShares,
			},
		},
	}
}

// runLook starts a helper that was made, once it is sure that the home in it is
// the one that is meant and that nothing else uses it, and removes it again.
func (r *Runtime) runLook(ctx context.Context, id workspace.ID, claim string, home homeRef, container string, progress func(runtime.Progress)) (print string, err error) {
	defer func() {
		// Also when the caller gave up: it would be a user of the home.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
		defer cancel()
		if gone := r.discard(ctx, container); gone != nil {
			r.log.Warn("helper container not removed", "container", container, "err", gone)
		}
	}()
	users, err := r.users(ctx, home.source)
	if err != nil {
		return "", err
	}
	users = slices.DeleteFunc(users, func(u user) bool { return u.id == container })
	if err := inUse(home.what, users); err != nil {
		return "", err
	}
	if home.source == id.VolumeName() {
		err = r.checkVolume(ctx, id, claim, container)
	} else {
		err = r.verifyFolder(id, claim)
	}
	if err != nil {
		return "", err
	}
	report(progress, runtime.StepChecking)
	err = r.awaitLook(ctx, container, func() {
		if n, err := strconv.ParseInt(r.printed(ctx, container), 10, 64); err == nil && progress != nil {
			progress(runtime.Progress{Step: runtime.StepChecking, Entries: n})
		}
	})
	if err != nil {
		return "", err
	}
	if print = r.printed(ctx, container); print == "" {
		return "", errors.New("the helper printed no fingerprint")
	}
	return print, nil
}

// awaitLook starts the helper and waits for its end; meanwhile, now and then, is
// called.
func (r *Runtime) awaitLook(ctx context.Context, id string, meanwhile func()) error {
	wait := r.api.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionNextExit})
	if _, err := r.api.ContainerStart(ctx, id, client.ContainerStartOptions{}); err != nil {
		return failed(ctx, "start helper", err)
	}
	tick := time.NewTicker(2 * printEvery)
	defer tick.Stop()
	for {
		select {
		case err := <-wait.Error:
			return failed(ctx, "wait for helper", err)
		case end := <-wait.Result:
			if end.StatusCode != 0 {
				return fmt.Errorf("helper %s ended with code %d: %s", cmdFingerprint, end.StatusCode, r.helperWords(ctx, id))
			}
			return nil
		case <-tick.C:
			meanwhile()
		}
	}
}

// printed returns the last line of a helper's standard output; empty if it cannot be
// read.
func (r *Runtime) printed(ctx context.Context, id string) string {
	stream, err := r.api.ContainerLogs(ctx, id, client.ContainerLogsOptions{ShowStdout: true, Tail: "1"})
	if err != nil {
		r.log.Debug("a helper's output is not to be had", "container", id, "err", err)
		return ""
	}
	defer stream.Close()
	var b bytes.Buffer
	if _, err := stdcopy.StdCopy(&b, io.Discard, io.LimitReader(stream, 16<<10)); err != nil {
		r.log.Debug("a helper's output is not to be had", "container", id, "err", err)
		return ""
	}
	return strings.TrimSpace(b.String())
}

// changing is the fingerprint of a home that changes while it is read: it equals
// no other.
func changing() string { return fmt.Sprintf("changing-%d-%s", time.Now().UnixNano(), randomHex(8)) }
