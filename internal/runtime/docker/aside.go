package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// Docker cannot rename a volume, so a container copies what is in the way into
// a volume of its own, compares the two, and only then the original is
// removed. The copy's container has one name for each workspace: it is the
// lock, and it holds the original from before the copy begins until the
// original is to go. A volume that only this container names is a partial copy,
// and the next attempt replaces it. A copy that is verified is held by a second
// container that is never started; a copy that is held is never removed.

const asideTime = "20060102T150405Z"

// SetAside implements runtime.Runtime.
func (r *Runtime) SetAside(ctx context.Context, id workspace.ID, claim, found string, progress func(runtime.Progress)) (string, error) {
	unlock, err := r.lockHome(ctx, id)
	if err != nil {
		return "", err
	}
	defer unlock()
	var name string
	for range startTries {
		if name, err = r.setVolumeAside(ctx, id, claim, found, progress); !errors.Is(err, errReplaced) {
			break
		}
	}
	if err != nil || name != "" {
		return name, err
	}
	return r.setFolderAside(ctx, id, claim, found)
}

// foreign returns the labels of the volume that is in the way of the home with
// the claim; false if none is.
func (r *Runtime) foreign(ctx context.Context, id workspace.ID, claim, found string) (map[string]string, bool, error) {
	name := id.VolumeName()
	v, err := r.api.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
	if errdefs.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, failed(ctx, "inspect volume", err)
	}
	labels := v.Volume.Labels
	// A power cut has brought a removed home back without its labels: it is listed
	// with the claim that the record of its removal has.
	homes, err := r.lookAtHomes(ctx, id)
	if err != nil {
		return nil, false, err
	}
	returned := len(homes.removalsOf(id, found)) > 0
	switch owner, labelled := labels[labelInstallation]; {
	case r.owns(labels, roleMadeUp):
		return nil, false, r.removeMadeUp(ctx, id)
	case r.owns(labels, roleHome) && claim != "" && labels[labelClaim] == claim:
		return nil, false, nil
	case labelled && owner != r.cfg.Installation:
		return nil, false, fmt.Errorf("volume %s belongs to installation %s: %w", name, owner, runtime.ErrVolumeMismatch)
	case labels[labelClaim] != found && !(len(labels) == 0 && returned):
		return nil, false, fmt.Errorf("volume %s was replaced: %w", name, runtime.ErrVolumeMismatch)
	}
	return labels, true, nil
}

func (r *Runtime) setVolumeAside(ctx context.Context, id workspace.ID, claim, found string, progress func(runtime.Progress)) (string, error) {
	if name, err := r.finishAside(ctx, id, claim, found, progress); err != nil || name != "" {
		return name, err
	}
	// Before the claim is read: what comes to hold the volume later is not
	// removed with it, and so keeps Docker from removing another home.
	users, err := r.users(ctx, id.VolumeName())
	if err != nil {
		return "", err
	}
	labels, inTheWay, err := r.foreign(ctx, id, claim, found)
	if err != nil {
		return "", err
	}
	if !inTheWay {
		// What is left of a home whose removal had begun is the record of that.
		return "", r.forgetRemoval(ctx, id, claim, found)
	}
	holders, err := idleOf(id, users, "")
	if err != nil {
		return "", err
	}
	c, err := r.startCopy(ctx, id, labels)
	if err != nil {
		return "", err
	}
	report, err := r.followCopy(ctx, c.id, progress)
	if err != nil {
		var end *copyFailed
		if errors.As(err, &end) {
			err = errors.Join(err, r.discardCopy(context.WithoutCancel(ctx), c))
		}
		return "", err // else it may still run: the next attempt goes on with it
	}
	if err := r.holdCopy(ctx, id, labels[labelClaim], c, report); err != nil {
		return "", err
	}
	// The copy is complete and held. From here on there are two of it until the
	// original is gone.
	if err := r.freeName(ctx, id, c, labels[labelClaim], holders, progress); err != nil {
		return "", err
	}
	if err := r.forgetRemoval(ctx, id, claim, found); err != nil {
		return "", err
	}
	r.log.Info("volume set aside", "workspace", id, "volume", c.target, "bytes", report.Bytes, "entries", report.Entries)
	return c.target, nil
}

// finishAside goes on with the removal of an original whose copy is complete. It
// returns the copy's name; empty if there is none.
func (r *Runtime) finishAside(ctx context.Context, id workspace.ID, claim, found string, progress func(runtime.Progress)) (string, error) {
	if found == "" || found == claim {
		return "", nil
	}
	homes, err := r.lookAtHomes(ctx, id)
	if err != nil || homes.homes[id] != found || len(homes.removalsOf(id, found)) == 0 {
		return "", err
	}
	records, err := r.api.VolumeList(ctx, client.VolumeListOptions{
		Filters: r.filter(roleAsideRecord).Add("label", labelWorkspace+"="+string(id), labelClaim+"="+found),
	})
	if err != nil {
		return "", failed(ctx, "list volumes that were set aside", err)
	}
	if len(records.Items) == 0 {
		return "", nil
	}
	return records.Items[0].Labels[labelAside], r.removeHome(ctx, id, found, progress)
}

// forgetRemoval removes the records that the removal of the home with the claim
// found has begun. That home is not the workspace's, whose home has the claim,
// and a volume that comes back after a power cut can be set aside again.
func (r *Runtime) forgetRemoval(ctx context.Context, id workspace.ID, claim, found string) error {
	if found == "" || found == claim {
		return nil
	}
	homes, err := r.lookAtHomes(ctx, id)
	if err != nil {
		return err
	}
	for _, rec := range homes.removalsOf(id, found) {
		if err := r.removeOwned(ctx, rec.name, roleRemoving); err != nil {
			return err
		}
	}
	return nil
}

// copying is a container that copies a volume, and the volume it copies to.
type copying struct{ id, target string }

// idleOf returns those of the containers that hold the volume in the way which
// can be removed with it. Any other container is an error that names it;
// except may be the container of the copy.
func idleOf(id workspace.ID, users []user, except string) ([]user, error) {
	var idle []user
	for _, u := range users {
		switch {
		case u.id == except || u.role == roleCopy:
		case u.idle():
			idle = append(idle, u)
		case u.running:
			return nil, fmt.Errorf("volume %s is in use by container %s; stop and remove the container: %w", id.VolumeName(), u.name, runtime.ErrConflict)
		default:
			return nil, fmt.Errorf("volume %s is held by container %s; remove the container: %w", id.VolumeName(), u.name, runtime.ErrConflict)
		}
	}
	return idle, nil
}

// startCopy starts the copy, or returns the one that runs. What an earlier one
// left is replaced.
func (r *Runtime) startCopy(ctx context.Context, id workspace.ID, original map[string]string) (copying, error) {
	for range startTries {
		image, err := r.ensureHelperImage(ctx)
		if err != nil {
			return copying{}, err
		}
		attempt := randomHex(8)
		target := "ws-" + string(id) + "-aside-" + r.now().UTC().Format(asideTime) + "-" + randomHex(4)
		made, err := r.api.ContainerCreate(ctx, r.copyOptions(id, image, target, attempt, original[labelClaim]))
		switch {
		case err == nil:
			return r.runCopy(ctx, id, original, copying{id: made.ID, target: target})
		case errdefs.IsConflict(err):
			found, gone, err := r.inspectOwned(ctx, copyName(id), roleCopy)
			if err != nil {
				return copying{}, err
			}
			if gone {
				continue
			}
			earlier := copying{id: found.ID, target: found.Config.Labels[labelAside]}
			if stateOf(found.State.Status) == runtime.ContainerRunning {
				return earlier, nil
			}
			if err := r.discardCopy(ctx, earlier); err != nil {
				return copying{}, err
			}
		case errdefs.IsNotFound(err): // another server has removed the image as an old one
		default:
			return copying{}, failed(ctx, "create copy container", err)
		}
	}
	return copying{}, fmt.Errorf("container %s was created again after every removal", copyName(id))
}

func (r *Runtime) copyOptions(id workspace.ID, image, target, attempt, claim string) client.ContainerCreateOptions {
	labels := r.labels(roleCopy, id, claim)
	labels[labelAside] = target
	aside := r.labels(roleAside, id, claim)
	aside[labelSince] = r.now().UTC().Format(time.RFC3339)
	pids := int64(jobPids)
	return client.ContainerCreateOptions{
		Name: copyName(id),
		Config: &container.Config{
			Image:       image,
			Entrypoint:  []string{"/codehub", runtime.CopyCommand},
			User:        "0:0",
			Env:         []string{"GOMEMLIMIT=" + jobGoMemory},
			Labels:      labels,
			Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
		},
		HostConfig: &container.HostConfig{
			NetworkMode:    "none",
			UsernsMode:     "host",
			CapDrop:        []string{"ALL"},
			CapAdd:         []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETFCAP"},
			ReadonlyRootfs: true,
			SecurityOpt:    []string{"no-new-privileges:true"},
			RestartPolicy:  container.RestartPolicy{Name: container.RestartPolicyDisabled},
			LogConfig:      container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": jobLogMax}},
			Mounts: []mount.Mount{
				r.volumeMount(id, runtime.CopyFromDir, attempt, true),
				{
					Type: mount.TypeVolume, Source: target, Target: runtime.CopyToDir,
					VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: aside},
				},
			},
			Resources: container.Resources{
				Memory: jobMemory, MemorySwap: jobMemory, PidsLimit: &pids, CPUShares: jobCPUShares,
			},
		},
	}
}

// runCopy starts a copy that was made, once it is sure that the volume it holds
// is the one in the way; otherwise it removes the copy.
func (r *Runtime) runCopy(ctx context.Context, id workspace.ID, original map[string]string, c copying) (copying, error) {
	err := r.admitCopy(ctx, id, original, c)
	if err == nil {
		_, err = r.api.ContainerStart(ctx, c.id, client.ContainerStartOptions{})
		if err == nil {
			return c, nil
		}
		err = failed(ctx, "start container that copies a volume", err)
		if errors.Is(err, runtime.ErrUnreachable) || ctx.Err() != nil {
			return copying{}, err // it may run; the next call finds out
		}
	}
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	defer cancel()
	return copying{}, errors.Join(err, r.discardCopy(cleanup, c), r.removeMadeUp(cleanup, id))
}

// errReplaced: another call has removed or replaced the volume meanwhile.
var errReplaced = errors.New("replaced by another call")

func (r *Runtime) admitCopy(ctx context.Context, id workspace.ID, original map[string]string, c copying) error {
	v, err := r.api.VolumeInspect(ctx, id.VolumeName(), client.VolumeInspectOptions{})
	if err != nil {
		return failed(ctx, "inspect volume", err)
	}
	if !maps.Equal(v.Volume.Labels, original) {
		return fmt.Errorf("volume %s: %w: %w", id.VolumeName(), errReplaced, runtime.ErrVolumeMismatch)
	}
	return r.onlyIdle(ctx, id, c)
}

// onlyIdle makes sure that nothing but the copy uses the volume in the way.
func (r *Runtime) onlyIdle(ctx context.Context, id workspace.ID, c copying) error {
	users, err := r.users(ctx, id.VolumeName())
	if err != nil {
		return err
	}
	_, err = idleOf(id, users, c.id)
	return err
}

// discardCopy removes a copy that is not complete, and what it has copied. One
// that is held is complete, and stays.
func (r *Runtime) discardCopy(ctx context.Context, c copying) error {
	if err := r.discard(ctx, c.id); err != nil {
		return err
	}
	if c.target == "" {
		return nil
	}
	users, err := r.users(ctx, c.target)
	if err != nil || len(users) > 0 {
		return err
	}
	err = r.removeOwned(ctx, c.target, roleAside)
	if errors.Is(err, runtime.ErrBusy) {
		return nil // another copy began to use it after the list of its users
	}
	return err
}

// copyFailed is a copy that ended without success.
type copyFailed struct {
	code  int
	words string
}

func (e *copyFailed) Error() string {
	return fmt.Sprintf("copying the volume failed (exit code %d): %s", e.code, e.words)
}

// followCopy waits for the copy's end and returns its result.
func (r *Runtime) followCopy(ctx context.Context, containerID string, progress func(runtime.Progress)) (runtime.CopyReport, error) {
	var last runtime.CopyReport
	line := func(b []byte) {
		var report runtime.CopyReport
		if json.Unmarshal(b, &report) != nil {
			return
		}
		if last = report; progress != nil && !report.Done {
			progress(runtime.Progress{Step: report.Step, Done: report.Bytes, Entries: report.Entries})
		}
	}
	words := &lastWords{log: func(s string) { r.log.Debug("copy output", "container", containerID, "line", s) }}
	given := 0
	for try := 0; ; try++ {
		c, err := r.api.ContainerInspect(ctx, containerID, client.ContainerInspectOptions{})
		if err != nil {
			return last, failed(ctx, "inspect container that copies a volume", err)
		}
		ended := stateOf(c.Container.State.Status) == runtime.ContainerExited
		words.lines = nil
		err = r.readReport(ctx, containerID, !ended, &given, line, words)
		switch {
		case ctx.Err() != nil:
			return last, failed(ctx, "follow copy", ctx.Err())
		case err != nil && try >= 50:
			return last, failed(ctx, "follow copy", err)
		case err == nil && ended:
			if code := c.Container.State.ExitCode; code != 0 || !last.Done {
				return last, &copyFailed{code: code, words: strings.Join(words.lines, "\n")}
			}
			return last, nil
		}
		if try > 0 || err == nil {
			r.pause(ctx, containerID)
		}
	}
}

func asideHolderName(target string) string {
	return "codehub-aside-" + strings.TrimPrefix(target, "ws-")
}

// holdCopy makes the container that holds a complete copy, or finds it, and
// records that the copy is complete. The container keeps docker volume prune away.
func (r *Runtime) holdCopy(ctx context.Context, id workspace.ID, claim string, c copying, report runtime.CopyReport) error {
	if err := r.holdAside(ctx, id, c.target); err != nil {
		return err
	}
	labels := r.labels(roleAsideRecord, id, claim)
	labels[labelAside] = c.target
	labels[labelBytes] = strconv.FormatInt(report.Bytes, 10)
	labels[labelFiles] = strconv.FormatInt(report.Entries, 10)
	labels[labelDigest] = report.Digest
	name := asideRecordName(c.target)
	if _, err := r.api.VolumeCreate(ctx, client.VolumeCreateOptions{Name: name, Labels: labels}); err != nil {
		return failed(ctx, "create volume", err)
	}
	v, err := r.api.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
	if err != nil {
		return failed(ctx, "inspect volume", err)
	}
	if !r.owns(v.Volume.Labels, roleAsideRecord) {
		return fmt.Errorf("volume %s is not the record of a copy", name)
	}
	return nil
}

// asideRecordName is the volume that says that the volume target is complete.
func asideRecordName(target string) string { return target + "-complete" }

// holdAside makes the container that holds a volume that was set aside, or finds it.
func (r *Runtime) holdAside(ctx context.Context, id workspace.ID, target string) error {
	labels := r.labels(roleAside, id, "")
	labels[labelAside] = target
	opts := client.ContainerCreateOptions{
		Name:   asideHolderName(target),
		Config: &container.Config{Image: r.names.holder, Cmd: []string{"never-started"}, Labels: labels},
		HostConfig: &container.HostConfig{
			NetworkMode: "none",
			Mounts: []mount.Mount{{
				Type: mount.TypeVolume, Source: target, Target: runtime.HomeDir,
				VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: r.labels(roleMadeUp, id, "")},
			}},
		},
	}
	holder, err := r.makeHolder(ctx, opts)
	if err != nil {
		return err
	}
	v, err := r.api.VolumeInspect(ctx, target, client.VolumeInspectOptions{})
	if err != nil {
		return failed(ctx, "inspect volume", err)
	}
	if r.owns(v.Volume.Labels, roleAside) {
		return nil
	}
	err = r.discard(ctx, holder)
	return errors.Join(fmt.Errorf("volume %s was removed by another call", target), err, r.removeOwned(ctx, target, roleMadeUp))
}

// makeHolder makes a container that holds a copy, or finds it, and returns its
// id. One that another server is making cannot be inspected yet: it is waited
// for.
func (r *Runtime) makeHolder(ctx context.Context, opts client.ContainerCreateOptions) (string, error) {
	for try := 0; ; try++ {
		made, err := r.api.ContainerCreate(ctx, opts)
		switch {
		case err == nil:
			return made.ID, nil
		case errdefs.IsNotFound(err) && try < startTries:
			if err := r.ensureHolderImage(ctx); err != nil {
				return "", err
			}
			continue
		case !errdefs.IsConflict(err):
			return "", failed(ctx, "create container that holds a volume", err)
		}
		found, gone, err := r.inspectOwned(ctx, opts.Name, roleAside)
		if err != nil || !gone {
			return found.ID, err
		}
		select {
		case <-ctx.Done():
			return "", failed(ctx, "create container that holds a volume", ctx.Err())
		case <-time.After(reopenAfter):
		}
		if try >= 50 {
			return "", fmt.Errorf("container %s can neither be inspected nor created", opts.Name)
		}
	}
}

// freeName removes the original of a copy that is complete and held, and the
// holders that it had when its claim was read.
func (r *Runtime) freeName(ctx context.Context, id workspace.ID, c copying, claim string, holders []user, progress func(runtime.Progress)) error {
	if err := r.onlyIdle(ctx, id, c); err != nil {
		return err
	}
	for _, u := range append(holders, user{id: c.id}) {
		if err := r.discard(ctx, u.id); err != nil {
			return err
		}
	}
	if claim == "" {
		return r.removeVolume(ctx, id.VolumeName())
	}
	// As any home, which may be nested deeper than Docker can remove.
	return r.removeHome(ctx, id, claim, progress)
}

// Asides implements runtime.Runtime. The holder of a complete copy that was
// removed is made again.
func (r *Runtime) Asides(ctx context.Context) ([]runtime.Aside, error) {
	volumes, err := r.api.VolumeList(ctx, client.VolumeListOptions{Filters: r.filter("")})
	if err != nil {
		return nil, failed(ctx, "list volumes that were set aside", err)
	}
	holders, err := r.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: r.filter(roleAside)})
	if err != nil {
		return nil, failed(ctx, "list containers that hold volumes", err)
	}
	held, records := map[string]bool{}, map[string]map[string]string{}
	for _, c := range holders.Items {
		held[c.Labels[labelAside]] = true
	}
	for _, v := range volumes.Items {
		if v.Labels[labelRole] == roleAsideRecord {
			records[v.Labels[labelAside]] = v.Labels
		}
	}
	var out []runtime.Aside
	for _, v := range volumes.Items {
		if v.Labels[labelRole] != roleAside {
			continue
		}
		a := runtime.Aside{Name: v.Name, Workspace: workspace.ID(v.Labels[labelWorkspace]), Storage: workspace.StorageDockerVolume}
		// A label that cannot be read leaves its field unknown.
		a.Since, _ = time.Parse(time.RFC3339, v.Labels[labelSince])
		if labels, ok := records[v.Name]; ok {
			a.Complete = true
			a.Bytes, _ = strconv.ParseInt(labels[labelBytes], 10, 64)
			a.Entries, _ = strconv.ParseInt(labels[labelFiles], 10, 64)
			if !held[v.Name] {
				if err := r.holdAside(ctx, a.Workspace, v.Name); err != nil {
					r.log.Warn("holder of a set-aside volume not created", "volume", v.Name, "err", err)
				}
			}
		}
		delete(records, v.Name)
		out = append(out, a)
	}
	for target := range records { // people have removed the copy
		if err := r.removeOwned(ctx, asideRecordName(target), roleAsideRecord); err != nil {
			return nil, err
		}
	}
	folders, err := r.foldersAside()
	return append(out, folders...), err
}
