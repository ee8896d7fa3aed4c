package home

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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

// Docker cannot rename a volume. A container copies the volume in the way to a new
// one and compares both, and only then the original is removed. The container's
// name is the same for all attempts of a workspace, which makes it a lock, and it
// holds the original until that is removed. A volume used only by this container is
// a partial copy, which the next attempt replaces. A verified copy is held by a
// second container that is never started; a held copy is never removed.

const asideTime = "20060102T150405Z"

// SetAside implements runtime.Runtime.
func (h *Homes) SetAside(ctx context.Context, id workspace.ID, claim, found string, progress func(runtime.Progress)) (string, error) {
	unlock, err := h.LockHome(ctx, id)
	if err != nil {
		return "", err
	}
	defer unlock()
	var name string
	for range engine.MaxTries {
		if name, err = h.setVolumeAside(ctx, id, claim, found, progress); !errors.Is(err, errReplaced) {
			break
		}
	}
	if err != nil || name != "" {
		return name, err
	}
	return h.setFolderAside(ctx, id, claim, found)
}

// foreign returns the labels of the volume in the way of the home with the claim,
// and false if there is none.
func (h *Homes) foreign(ctx context.Context, id workspace.ID, claim, found string) (map[string]string, bool, error) {
	name := id.VolumeName()
	v, err := h.API.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
	if errdefs.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, engine.WrapError(ctx, "inspect volume", err)
	}
	labels := v.Volume.Labels
	// A power cut can bring a removed home back without its labels. It is listed
	// with the claim in its removal record.
	homes, err := h.listHomes(ctx, id)
	if err != nil {
		return nil, false, err
	}
	returned := len(homes.removalsOf(id, found)) > 0
	switch owner, labelled := labels[engine.LabelInstallation]; {
	case h.Owns(labels, engine.RoleImplicit):
		return nil, false, h.removeImplicit(ctx, id)
	case h.Owns(labels, engine.RoleHome) && claim != "" && labels[engine.LabelClaim] == claim:
		return nil, false, nil
	case labelled && owner != h.Installation:
		return nil, false, fmt.Errorf("volume %s belongs to installation %s: %w", name, owner, runtime.ErrVolumeMismatch)
	case labels[engine.LabelClaim] != found && !(len(labels) == 0 && returned):
		return nil, false, fmt.Errorf("volume %s was replaced: %w", name, runtime.ErrVolumeMismatch)
	}
	return labels, true, nil
}

func (h *Homes) setVolumeAside(ctx context.Context, id workspace.ID, claim, found string, progress func(runtime.Progress)) (string, error) {
	if name, err := h.finishAside(ctx, id, claim, found, progress); err != nil || name != "" {
		return name, err
	}
	// List the users before reading the claim: a container that starts using the
	// volume later is not removed with it, and then prevents Docker from removing
	// the wrong volume.
	users, err := h.Users(ctx, id.VolumeName())
	if err != nil {
		return "", err
	}
	labels, inTheWay, err := h.foreign(ctx, id, claim, found)
	if err != nil {
		return "", err
	}
	if !inTheWay {
		// Only the removal record is left of a home whose removal had begun.
		return "", h.forgetRemoval(ctx, id, claim, found)
	}
	holders, err := idleOf(id, users, "")
	if err != nil {
		return "", err
	}
	c, err := h.startCopy(ctx, id, labels)
	if err != nil {
		return "", err
	}
	report, err := h.followCopy(ctx, c.id, progress)
	if err != nil {
		var end *copyFailed
		if errors.As(err, &end) {
			err = errors.Join(err, h.discardCopy(context.WithoutCancel(ctx), c))
		}
		return "", err // the copy may still run; the next attempt resumes it
	}
	if err := h.holdCopy(ctx, id, labels[engine.LabelClaim], c, report); err != nil {
		return "", err
	}
	// The copy is complete and held, so the original can be removed.
	if err := h.freeName(ctx, id, c, labels[engine.LabelClaim], holders, progress); err != nil {
		return "", err
	}
	if err := h.forgetRemoval(ctx, id, claim, found); err != nil {
		return "", err
	}
	h.Log.Info("volume set aside", "workspace", id, "volume", c.target, "bytes", report.Bytes, "entries", report.Entries)
	return c.target, nil
}

// finishAside resumes the removal of an original whose copy is complete. It returns
// the copy's name, or "" if there is none.
func (h *Homes) finishAside(ctx context.Context, id workspace.ID, claim, found string, progress func(runtime.Progress)) (string, error) {
	if found == "" || found == claim {
		return "", nil
	}
	homes, err := h.listHomes(ctx, id)
	if err != nil || homes.homes[id] != found || len(homes.removalsOf(id, found)) == 0 {
		return "", err
	}
	records, err := h.API.VolumeList(ctx, client.VolumeListOptions{
		Filters: h.Filter(engine.RoleAsideRecord).Add("label", engine.LabelWorkspace+"="+string(id), engine.LabelClaim+"="+found),
	})
	if err != nil {
		return "", engine.WrapError(ctx, "list volumes that were set aside", err)
	}
	if len(records.Items) == 0 {
		return "", nil
	}
	return records.Items[0].Labels[engine.LabelAside], h.removeHome(ctx, id, found, progress)
}

// forgetRemoval deletes the removal records of the home with the claim found, which
// is not the workspace's home. If a power cut brings its volume back, it can be set
// aside again.
func (h *Homes) forgetRemoval(ctx context.Context, id workspace.ID, claim, found string) error {
	if found == "" || found == claim {
		return nil
	}
	homes, err := h.listHomes(ctx, id)
	if err != nil {
		return err
	}
	for _, rec := range homes.removalsOf(id, found) {
		if err := h.RemoveOwned(ctx, rec.name, engine.RoleRemoving); err != nil {
			return err
		}
	}
	return nil
}

// copying is a container that copies a volume, and its target volume.
type copying struct{ id, target string }

// idleOf returns the containers that hold the volume in the way and can be removed
// with it. Any other container, except the copy's, is an error that names it.
func idleOf(id workspace.ID, users []engine.User, except string) ([]engine.User, error) {
	var idle []engine.User
	for _, u := range users {
		switch {
		case u.ID == except || u.Role == engine.RoleCopy:
		case u.Idle():
			idle = append(idle, u)
		case u.Running:
			return nil, fmt.Errorf("volume %s is in use by container %s; stop and remove the container: %w", id.VolumeName(), u.Name, runtime.ErrConflict)
		default:
			return nil, fmt.Errorf("volume %s is held by container %s; remove the container: %w", id.VolumeName(), u.Name, runtime.ErrConflict)
		}
	}
	return idle, nil
}

// startCopy starts the copy, or returns the running one. It replaces the leftovers
// of an earlier attempt.
func (h *Homes) startCopy(ctx context.Context, id workspace.ID, original map[string]string) (copying, error) {
	for range engine.MaxTries {
		image, err := h.helper.Image(ctx)
		if err != nil {
			return copying{}, err
		}
		attempt := engine.RandomHex(8)
		target := "ws-" + string(id) + "-aside-" + h.Now().UTC().Format(asideTime) + "-" + engine.RandomHex(4)
		made, err := h.API.ContainerCreate(ctx, h.copyOptions(id, image, target, attempt, original[engine.LabelClaim]))
		switch {
		case err == nil:
			return h.runCopy(ctx, id, original, copying{id: made.ID, target: target})
		case errdefs.IsConflict(err):
			found, gone, err := h.InspectOwned(ctx, engine.CopyName(id), engine.RoleCopy)
			if err != nil {
				return copying{}, err
			}
			if gone {
				continue
			}
			earlier := copying{id: found.ID, target: found.Config.Labels[engine.LabelAside]}
			if engine.StateOf(found.State.Status) == runtime.ContainerRunning {
				return earlier, nil
			}
			if err := h.discardCopy(ctx, earlier); err != nil {
				return copying{}, err
			}
		case errdefs.IsNotFound(err): // another server removed it as an old image
		default:
			return copying{}, engine.WrapError(ctx, "create copy container", err)
		}
	}
	return copying{}, fmt.Errorf("container %s was created again after every removal", engine.CopyName(id))
}

func (h *Homes) copyOptions(id workspace.ID, image, target, attempt, claim string) client.ContainerCreateOptions {
	labels := h.Labels(engine.RoleCopy, id, claim)
	labels[engine.LabelAside] = target
	aside := h.Labels(engine.RoleAside, id, claim)
	aside[engine.LabelSince] = h.Now().UTC().Format(time.RFC3339)
	return helper.Confined{
		Name: engine.CopyName(id), Image: image, Entrypoint: []string{"/codehub", runtime.CopyCommand},
		Labels: labels, Caps: []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETFCAP"},
		Mounts: []mount.Mount{
			h.VolumeMount(id, runtime.CopyFromDir, attempt, true),
			{
				Type: mount.TypeVolume, Source: target, Target: runtime.CopyToDir,
				VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: aside},
			},
		},
		Limits: helper.JobLimits(),
	}.Options()
}

// runCopy starts the created copy if the volume that it holds is the one in the
// way. Otherwise it removes the copy.
func (h *Homes) runCopy(ctx context.Context, id workspace.ID, original map[string]string, c copying) (copying, error) {
	err := h.admitCopy(ctx, id, original, c)
	if err == nil {
		_, err = h.API.ContainerStart(ctx, c.id, client.ContainerStartOptions{})
		if err == nil {
			return c, nil
		}
		err = engine.WrapError(ctx, "start container that copies a volume", err)
		if errors.Is(err, runtime.ErrUnreachable) || ctx.Err() != nil {
			return copying{}, err // it may be running; the next call checks
		}
	}
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), engine.AskTimeout)
	defer cancel()
	return copying{}, errors.Join(err, h.discardCopy(cleanup, c), h.removeImplicit(cleanup, id))
}

// errReplaced means that another call has removed or replaced the volume in the
// meantime.
var errReplaced = errors.New("replaced by another call")

func (h *Homes) admitCopy(ctx context.Context, id workspace.ID, original map[string]string, c copying) error {
	v, err := h.API.VolumeInspect(ctx, id.VolumeName(), client.VolumeInspectOptions{})
	if err != nil {
		return engine.WrapError(ctx, "inspect volume", err)
	}
	if !maps.Equal(v.Volume.Labels, original) {
		return fmt.Errorf("volume %s: %w: %w", id.VolumeName(), errReplaced, runtime.ErrVolumeMismatch)
	}
	return h.onlyIdle(ctx, id, c)
}

// onlyIdle checks that only the copy uses the volume in the way.
func (h *Homes) onlyIdle(ctx context.Context, id workspace.ID, c copying) error {
	users, err := h.Users(ctx, id.VolumeName())
	if err != nil {
		return err
	}
	_, err = idleOf(id, users, c.id)
	return err
}

// discardCopy removes an incomplete copy and its target. A held target is complete
// and is kept.
func (h *Homes) discardCopy(ctx context.Context, c copying) error {
	if err := h.discard(ctx, c.id); err != nil {
		return err
	}
	if c.target == "" {
		return nil
	}
	users, err := h.Users(ctx, c.target)
	if err != nil || len(users) > 0 {
		return err
	}
	err = h.RemoveOwned(ctx, c.target, engine.RoleAside)
	if errors.Is(err, runtime.ErrBusy) {
		return nil // another copy has begun to use it since the users were listed
	}
	return err
}

// copyFailed is the error of a copy that ended without success.
type copyFailed struct {
	code  int
	words string
}

func (e *copyFailed) Error() string {
	return fmt.Sprintf("copying the volume failed (exit code %d): %s", e.code, e.words)
}

// followCopy waits for the end of the copy and returns its result.
func (h *Homes) followCopy(ctx context.Context, containerID string, progress func(runtime.Progress)) (runtime.CopyReport, error) {
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
	code, words, err := h.helper.Follow(ctx, engine.RoleCopy, containerID, line)
	if err == nil && (code != 0 || !last.Done) {
		err = &copyFailed{code: code, words: words}
	}
	return last, err
}

// holdCopy creates or finds the container that holds a complete copy, which
// protects it from docker volume prune, and records that the copy is complete.
func (h *Homes) holdCopy(ctx context.Context, id workspace.ID, claim string, c copying, report runtime.CopyReport) error {
	if err := h.holdAside(ctx, id, c.target); err != nil {
		return err
	}
	labels := h.Labels(engine.RoleAsideRecord, id, claim)
	labels[engine.LabelAside] = c.target
	labels[engine.LabelBytes] = strconv.FormatInt(report.Bytes, 10)
	labels[engine.LabelFiles] = strconv.FormatInt(report.Entries, 10)
	labels[engine.LabelDigest] = report.Digest
	name := engine.AsideRecordName(c.target)
	if _, err := h.API.VolumeCreate(ctx, client.VolumeCreateOptions{Name: name, Labels: labels}); err != nil {
		return engine.WrapError(ctx, "create volume", err)
	}
	v, err := h.API.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
	if err != nil {
		return engine.WrapError(ctx, "inspect volume", err)
	}
	if !h.Owns(v.Volume.Labels, engine.RoleAsideRecord) {
		return fmt.Errorf("volume %s is not the record of a copy", name)
	}
	return nil
}

// holdAside creates or finds the container that holds a set-aside volume.
func (h *Homes) holdAside(ctx context.Context, id workspace.ID, target string) error {
	labels := h.Labels(engine.RoleAside, id, "")
	labels[engine.LabelAside] = target
	holder, err := h.makeHolder(ctx, engine.AsideHolderName(target), labels, mount.Mount{
		Type: mount.TypeVolume, Source: target, Target: runtime.HomeDir,
		VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: h.Labels(engine.RoleImplicit, id, "")},
	})
	if err != nil {
		return err
	}
	v, err := h.API.VolumeInspect(ctx, target, client.VolumeInspectOptions{})
	if err != nil {
		return engine.WrapError(ctx, "inspect volume", err)
	}
	if h.Owns(v.Volume.Labels, engine.RoleAside) {
		return nil
	}
	err = h.discard(ctx, holder)
	return errors.Join(fmt.Errorf("volume %s was removed by another call", target), err, h.RemoveOwned(ctx, target, engine.RoleImplicit))
}

// makeHolder creates or finds the container that holds a copy, and returns its ID.
// A container that another server is creating cannot be inspected yet, so it waits
// for that.
func (h *Homes) makeHolder(ctx context.Context, name string, labels map[string]string, m mount.Mount) (string, error) {
	for try := 0; ; try++ {
		made, err := h.createHeld(ctx, name, labels, m)
		if err == nil {
			return made, nil
		}
		if !errdefs.IsConflict(err) {
			return "", engine.WrapError(ctx, "create container that holds a volume", err)
		}
		found, gone, err := h.InspectOwned(ctx, name, engine.RoleAside)
		if err != nil || !gone {
			return found.ID, err
		}
		select {
		case <-ctx.Done():
			return "", engine.WrapError(ctx, "create container that holds a volume", ctx.Err())
		case <-time.After(helper.ReopenAfter):
		}
		if try >= 50 {
			return "", fmt.Errorf("container %s can neither be inspected nor created", name)
		}
	}
}

// freeName removes the original of a complete, held copy, and the containers that
// held the original when its claim was read.
func (h *Homes) freeName(ctx context.Context, id workspace.ID, c copying, claim string, holders []engine.User, progress func(runtime.Progress)) error {
	if err := h.onlyIdle(ctx, id, c); err != nil {
		return err
	}
	for _, u := range append(holders, engine.User{ID: c.id}) {
		if err := h.discard(ctx, u.ID); err != nil {
			return err
		}
	}
	if claim == "" {
		return h.DropVolume(ctx, id.VolumeName())
	}
	// Like any home, it may be nested too deeply for Docker to remove.
	return h.removeHome(ctx, id, claim, progress)
}

// Asides implements runtime.Runtime. It creates missing holders of complete copies
// again.
func (h *Homes) Asides(ctx context.Context) ([]runtime.Aside, error) {
	volumes, err := h.API.VolumeList(ctx, client.VolumeListOptions{Filters: h.Filter("")})
	if err != nil {
		return nil, engine.WrapError(ctx, "list volumes that were set aside", err)
	}
	holders, err := h.API.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: h.Filter(engine.RoleAside)})
	if err != nil {
		return nil, engine.WrapError(ctx, "list containers that hold volumes", err)
	}
	held, records := map[string]bool{}, map[string]map[string]string{}
	for _, c := range holders.Items {
		held[c.Labels[engine.LabelAside]] = true
	}
	for _, v := range volumes.Items {
		if v.Labels[engine.LabelRole] == engine.RoleAsideRecord {
			records[v.Labels[engine.LabelAside]] = v.Labels
		}
	}
	var out []runtime.Aside
	for _, v := range volumes.Items {
		if v.Labels[engine.LabelRole] != engine.RoleAside {
			continue
		}
		a := runtime.Aside{Name: v.Name, Workspace: workspace.ID(v.Labels[engine.LabelWorkspace]), Storage: workspace.StorageDockerVolume}
		// A field whose label cannot be parsed stays unset.
		a.Since, _ = time.Parse(time.RFC3339, v.Labels[engine.LabelSince])
		if labels, ok := records[v.Name]; ok {
			a.Complete = true
			a.Bytes, _ = strconv.ParseInt(labels[engine.LabelBytes], 10, 64)
			a.Entries, _ = strconv.ParseInt(labels[engine.LabelFiles], 10, 64)
			if !held[v.Name] {
				if err := h.holdAside(ctx, a.Workspace, v.Name); err != nil {
					h.Log.Warn("holder of a set-aside volume not created", "volume", v.Name, "err", err)
				}
			}
		}
		delete(records, v.Name)
		out = append(out, a)
	}
	for target := range records { // the copy was removed by hand
		if err := h.RemoveOwned(ctx, engine.AsideRecordName(target), engine.RoleAsideRecord); err != nil {
			return nil, err
		}
	}
	folders, err := h.foldersAside()
	return append(out, folders...), err
}
