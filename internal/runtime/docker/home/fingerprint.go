package home

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/helper"
	"codehub/internal/workspace"
)

// homeTask is what the helper does with a home, whose path is its last argument. It has
// no network. The helper of an earlier call is removed, since its result is not needed
// any more; a home has one at a time.
type homeTask struct {
	args        []string
	step        string // of its progress, the number of entries that it prints
	caps        []string
	writes      bool // otherwise the home is mounted read-only
	mappedUsers bool // owners are those that workspaces see, also where Docker maps them (userns-remap)
	// here does it in this process and reports whether it could; nil: the helper does it.
	here func(ctx context.Context, home homeRef, progress func(runtime.Progress)) (done bool, err error)
}

// Fingerprint implements runtime.Runtime.
func (h *Homes) Fingerprint(ctx context.Context, id workspace.ID, claim string, progress func(runtime.Progress)) (string, error) {
	print, err := h.onHome(ctx, id, claim, fingerprintTask(), progress)
	if err == nil && print == "" {
		err = errors.New("the helper printed no fingerprint")
	}
	return print, err
}

// fingerprintTask has the privileges of an archive job.
func fingerprintTask() homeTask {
	return homeTask{args: []string{helper.CmdFingerprint}, step: runtime.StepChecking, caps: []string{"DAC_OVERRIDE", "FOWNER"}}
}

// onHome runs the helper on a home that nothing else uses, and returns the last line
// that it prints.
func (h *Homes) onHome(ctx context.Context, id workspace.ID, claim string, task homeTask, progress func(runtime.Progress)) (string, error) {
	unlock, err := h.LockHome(ctx, id)
	if err != nil {
		return "", err
	}
	defer unlock()
	home, err := h.findHome(ctx, id, claim, !task.writes)
	if err != nil {
		return "", err
	}
	users, err := h.Users(ctx, home.source)
	if err != nil {
		return "", err
	}
	users, err = h.removeFingerprinters(ctx, users)
	if err == nil {
		err = engine.InUse(home.what, users)
	}
	if err == nil {
		err = h.EndBackups(ctx, users)
	}
	if err != nil {
		return "", err
	}
	if task.here != nil {
		if done, err := task.here(ctx, home, progress); done || err != nil {
			return "", err
		}
	}
	for range engine.MaxTries {
		image, err := h.helper.Image(ctx)
		if err != nil {
			return "", err
		}
		made, err := h.API.ContainerCreate(ctx, h.taskOptions(id, claim, image, home, task))
		switch {
		case err == nil:
			return h.runTask(ctx, id, claim, home, made.ID, task.step, progress)
		case errdefs.IsConflict(err):
			found, gone, err := h.InspectOwned(ctx, engine.FingerprintName(id), engine.RoleFingerprint)
			if err == nil && !gone {
				err = h.discard(ctx, found.ID)
			}
			if err != nil {
				return "", err
			}
		case errdefs.IsNotFound(err): // another server removed it as an old image
		default:
			return "", engine.WrapError(ctx, "create helper", err)
		}
	}
	return "", engine.ErrRecreated("container " + engine.FingerprintName(id))
}

// homeRef identifies where a home is stored.
type homeRef struct {
	source string // to list its users: the volume's name, or the directory on the host
	what   string // for messages
	mount  mount.Mount
}

// findHome finds the volume or directory with this claim, and how to mount it.
func (h *Homes) findHome(ctx context.Context, id workspace.ID, claim string, readOnly bool) (homeRef, error) {
	found, err := h.listHomes(ctx, id)
	if err != nil {
		return homeRef{}, err
	}
	name := id.VolumeName()
	there, ok := found.homes[id]
	switch {
	case ok && there == claim:
		return homeRef{source: name, what: "volume " + name, mount: h.VolumeMount(id, runtime.JobHomeDir, engine.RandomHex(8), readOnly)}, nil
	case ok || h.cfg.DataDir == "":
		return homeRef{}, fmt.Errorf("volume %s: %w", name, runtime.ErrVolumeMismatch)
	}
	if err := h.verifyFolder(id, claim); err != nil {
		return homeRef{}, err
	}
	if err := h.openFolder(id); err != nil {
		return homeRef{}, err
	}
	return homeRef{
		source: h.HostPath(id), what: "folder " + h.Path(id),
		mount: mount.Mount{Type: mount.TypeBind, Source: h.HostPath(id), Target: runtime.JobHomeDir, ReadOnly: readOnly},
	}, nil
}

// removeFingerprinters removes the containers of earlier calls and returns the
// other users.
func (h *Homes) removeFingerprinters(ctx context.Context, users []engine.User) ([]engine.User, error) {
	var others []engine.User
	for _, u := range users {
		if u.Role != engine.RoleFingerprint {
			others = append(others, u)
			continue
		}
		if err := h.discard(ctx, u.ID); err != nil {
			return nil, err
		}
	}
	return others, nil
}

// taskOptions returns the container that does the task, with the limits of an archive
// job.
func (h *Homes) taskOptions(id workspace.ID, claim, image string, home homeRef, task homeTask) client.ContainerCreateOptions {
	return helper.Confined{
		Name: engine.FingerprintName(id), Image: image, Cmd: slices.Concat(task.args, []string{runtime.JobHomeDir}),
		Labels: h.Labels(engine.RoleFingerprint, id, claim), Caps: task.caps, MappedUsers: task.mappedUsers,
		Mounts: []mount.Mount{home.mount}, Limits: helper.JobLimits(),
	}.Options()
}

// runTask starts a created helper if it holds the right home and no other
// container uses it, and removes the helper afterwards.
func (h *Homes) runTask(ctx context.Context, id workspace.ID, claim string, home homeRef, container, step string, progress func(runtime.Progress)) (printed string, err error) {
	defer h.Abandon(ctx, container) // otherwise it would count as a user of the home
	users, err := h.Users(ctx, home.source)
	if err != nil {
		return "", err
	}
	users = slices.DeleteFunc(users, func(u engine.User) bool { return u.ID == container })
	if err := engine.InUse(home.what, users); err != nil {
		return "", err
	}
	if err := h.EndBackups(ctx, users); err != nil {
		return "", err
	}
	if home.source == id.VolumeName() {
		err = h.checkVolume(ctx, id, claim, container)
	} else {
		err = h.verifyFolder(id, claim)
	}
	if err != nil {
		return "", err
	}
	engine.Report(progress, step)
	var line func([]byte)
	if progress != nil {
		line = func(printed []byte) {
			if n, err := strconv.ParseInt(string(printed), 10, 64); err == nil {
				progress(runtime.Progress{Step: step, Entries: n})
			}
		}
	}
	if err := h.helper.Await(ctx, container, line); err != nil {
		return "", fmt.Errorf("helper: %w", err)
	}
	return h.helper.Printed(ctx, container), nil
}

// changing returns the fingerprint of a home that changes while it is read. It
// differs from all others.
func changing() string {
	return fmt.Sprintf("changing-%d-%s", time.Now().UnixNano(), engine.RandomHex(8))
}
