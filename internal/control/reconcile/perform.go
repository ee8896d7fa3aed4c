package reconcile

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"codehub/internal/archive"
	"codehub/internal/runtime"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
	"codehub/internal/workspace/imageref"
	"codehub/internal/workspace/lifecycle"
)

// perform carries out the operation that row has claimed. Any step may have been
// done before, by an earlier attempt. A nil error does not mean that the operation
// is complete: the next observation decides that.
func (t *term) perform(ctx context.Context, row workspace.Workspace, seen *runtime.Container, w *work) error {
	switch row.Operation {
	case workspace.OpProvisioning:
		if err := t.cfg.Images.CheckStart(row.ImageRef); err != nil {
			return err
		}
		if _, err := t.endJobs(ctx, row); err != nil {
			return err
		}
		spec, err := t.volumeSpec(ctx, row)
		if err != nil {
			return err
		}
		return t.cfg.Runtime.CreateVolume(ctx, spec, w.step)
	case workspace.OpStarting:
		return t.start(ctx, row, seen, w.step)
	case workspace.OpStopping:
		return t.removeContainer(ctx, row.ID, seen, t.cfg.StopGrace)
	case workspace.OpArchiving:
		return t.archive(ctx, row, w)
	case workspace.OpCreateEmptyArchive:
		return t.archiveNothing(ctx, row)
	case workspace.OpRestoring:
		return t.restore(ctx, row, w)
	case workspace.OpDeleting:
		if _, err := t.endJobs(ctx, row); err != nil {
			return err
		}
		if err := t.removeContainer(ctx, row.ID, seen, t.cfg.StopGrace); err != nil {
			return err
		}
		if row.Home.State != workspace.HomeDeleting {
			return nil
		}
		t.passed(row.ID, "delete.begin")
		if err := t.removeVolume(ctx, row, w.step); err != nil {
			return err
		}
		t.passed(row.ID, "delete.volume-removed")
		return nil
	}
	return fmt.Errorf("no executor for %s", row.Operation)
}

// volumeSpec describes the volume of row's home.
func (t *term) volumeSpec(ctx context.Context, row workspace.Workspace) (spec runtime.VolumeSpec, err error) {
	spec = runtime.VolumeSpec{Workspace: row.ID, Storage: row.StorageBackend, Claim: row.Home.Claim, Image: row.ImageRef, Name: row.Name, User: row.OwnerID, Choice: choiceOf(row), Disk: t.cfg.Sizes.Of(row.Size).Disk}
	err = t.inSession(ctx, func(ctx context.Context) (err error) {
		spec.Owner, err = t.rows.Owner(ctx, row.ID)
		return err
	})
	return spec, err
}

const (
	// The IDE is probed often at first and then less often: a fast start is noticed
	// at once, and a slow one costs little.
	probeMin       = 20 * time.Millisecond
	probeMax       = 500 * time.Millisecond
	aliveInterval  = time.Second
	runtimeTimeout = 10 * time.Second // limit for one call to the runtime
)

func (t *term) start(ctx context.Context, row workspace.Workspace, seen *runtime.Container, step func(runtime.Progress)) error {
	if err := t.cfg.Images.CheckStart(row.ImageRef); err != nil {
		return err
	}
	// One of another uid is of an earlier version, or from before a change of the range.
	if seen != nil && (seen.State == runtime.ContainerExited || seen.Claim != row.OpID || !row.Home.BelongsTo(t.cfg.UIDs.Of(row))) {
		grace := time.Duration(0)
		if seen.State == runtime.ContainerExited { // a Pod may still be ending, after an eviction for example
			grace = t.cfg.StopGrace
		}
		if err := t.removeContainer(ctx, row.ID, seen, grace); err != nil {
			return fmt.Errorf("remove the earlier container: %w", err)
		}
	}
	// The job of a cancelled operation may have started after it was cancelled.
	if _, err := t.endJobs(ctx, row); err != nil {
		return err
	}
	if row.Home.Marker != "" {
		if err := t.settleNow(ctx, row.ID, row.Home.Claim); err != nil {
			return err
		}
	}
	if startsAnother(row) {
		t.cfg.Backup(ctx, row, workspace.BackupImage, step)
	}
	row, ours, err := t.ownHome(ctx, row, step)
	if err != nil || !ours {
		return err
	}
	secret, err := newSecret()
	if err != nil {
		return err
	}
	spec := runtime.ContainerSpec{
		Workspace: row.ID, UID: row.Home.UID, Claim: row.OpID, Image: row.ImageRef, Storage: row.StorageBackend,
		VolumeClaim: row.Home.Claim, Secret: secret, User: row.OwnerID, Choice: choiceOf(row), Size: t.cfg.Sizes.Of(row.Size),
	}
	launch, err := t.addEnvironment(ctx, row, &spec)
	if err != nil {
		return err
	}
	setup, err := t.setup(ctx, row, launch)
	if err != nil {
		return err
	}
	defer setup.Clear()
	spec.Setup = !setup.Empty()
	began := time.Now()
	k, err := t.cfg.Runtime.StartContainer(ctx, spec, step)
	if err != nil {
		return err
	}
	t.recordImage(ctx, row, k)
	started := time.Now()
	if spec.Setup {
		t.passed(row.ID, SetupStep)
		if err := t.sendSetup(ctx, row.ID, setup); err != nil {
			return err
		}
	}
	step(runtime.Progress{Step: runtime.StepWaiting})
	if err := t.await(ctx, row.ID, k); err != nil {
		return err
	}
	t.cfg.Log.Debug("ide ready", "workspace", row.ID, "container_took", started.Sub(began), "ide_took", time.Since(started))
	return nil
}

// startsAnother reports whether the workspace starts with another image than last time.
func startsAnother(row workspace.Workspace) bool {
	last := row.ImagePin
	return last != nil && (last.Ref != row.ImageRef || last.Generation != row.ImageGeneration)
}

// ownHome gives row's home to the workspace's uid unless it has it, and returns row with
// that. ours is false if the operation has ended. The uid is recorded before the change as
// one that files may have, and after it as the one that they have: a change that a crash
// interrupted is completed by the next one, also if that is for another uid.
func (t *term) ownHome(ctx context.Context, row workspace.Workspace, step func(runtime.Progress)) (_ workspace.Workspace, ours bool, err error) {
	uid := t.cfg.UIDs.Of(row)
	if row.Home.BelongsTo(uid) {
		return row, true, nil
	}
	record := func(what func(context.Context, workspace.ID, string, string, uint32) (workspace.Home, bool, error)) error {
		return t.inSession(ctx, func(ctx context.Context) (err error) {
			row.Home, ours, err = what(ctx, row.ID, row.OpID, row.Home.Claim, uid)
			return err
		})
	}
	if err := record(t.rows.PlanUID); err != nil || !ours {
		return row, false, err
	}
	spec := runtime.OwnSpec{Workspace: row.ID, VolumeClaim: row.Home.Claim, UID: uid, From: row.Home.UserIDs()}
	if err := t.cfg.Runtime.OwnHome(ctx, spec, step); err != nil {
		return row, false, fmt.Errorf("change the owner of the home: %w", err)
	}
	t.passed(row.ID, OwnStep)
	err = record(t.rows.RecordUID)
	return row, ours, err
}

// await probes until the IDE responds or the container has ended.
func (t *term) await(ctx context.Context, id workspace.ID, k runtime.Container) error {
	began := time.Now()
	tick := time.NewTimer(0)
	defer tick.Stop()
	checkAt := began.Add(aliveInterval)
	for {
		if t.cfg.Runtime.Probe(ctx, k) == nil {
			t.markAnswered(k.ID)
			return nil
		}
		if now := time.Now(); now.After(checkAt) {
			if t.ended(ctx, id) {
				return fmt.Errorf("the container exited before the IDE responded%s", t.containerOutput(ctx, id))
			}
			checkAt = time.Now().Add(aliveInterval)
		}
		tick.Reset(min(max(probeMin, time.Since(began)/40), probeMax))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// ended reports whether the workspace has no running container.
func (t *term) ended(ctx context.Context, id workspace.ID) bool {
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	_, err := t.cfg.Runtime.Upstream(ctx, id)
	return errors.Is(err, runtime.ErrNotFound)
}

// containerOutput returns the end of the container's log as a clause to append to
// an error.
func (t *term) containerOutput(ctx context.Context, id workspace.ID) string {
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	var b strings.Builder
	if err := t.cfg.Runtime.Logs(ctx, id, 10, false, &b); err != nil || b.Len() == 0 {
		return ""
	}
	s := strings.ToValidUTF8(b.String(), "\uFFFD")
	if len(s) > 2000 {
		s = strings.ToValidUTF8(s[len(s)-2000:], "")
	}
	return "; it printed: " + strings.TrimSpace(s)
}

func (t *term) removeContainer(ctx context.Context, id workspace.ID, seen *runtime.Container, grace time.Duration) error {
	if seen == nil {
		return nil
	}
	t.cfg.Routes.CloseRoute(id)
	if err := t.cfg.Runtime.RemoveContainer(ctx, seen.ID, grace); err != nil {
		return fmt.Errorf("remove the container: %w", err)
	}
	return nil
}

func newSecret() (string, error) {
	var b [32]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("make the container's secret: %w", err)
	}
	return hex.EncodeToString(b[:]), nil
}

// passed calls Config.Step, which only tests set.
func (t *term) passed(id workspace.ID, step string) {
	if t.cfg.Step != nil {
		t.cfg.Step(id, step)
	}
}

// lacksSpace reports whether Docker or this process ran out of disk space. That
// does not count as a failed attempt.
func lacksSpace(err error) bool {
	return errors.Is(err, runtime.ErrNoSpace) || errors.Is(err, syscall.ENOSPC)
}

// failure classifies an executor's error by the reasons in docs/states.md. It
// truncates the message for the row, the API and the log.
func failure(err error) *lifecycle.Failure {
	f := classify(err)
	if f != nil {
		f.Message = workspace.Cut(f.Message)
	}
	return f
}

func classify(err error) *lifecycle.Failure {
	var pull *runtime.PullError
	var slow *runtime.SlowPullError
	var refused *imageref.NotAllowed
	switch {
	case err == nil:
		return nil
	case errors.Is(err, archive.ErrCorrupted):
		return &lifecycle.Failure{Reason: workspace.ErrArchiveCorrupted, Message: err.Error()}
	case errors.Is(err, archive.ErrUnrestorable):
		return &lifecycle.Failure{Reason: workspace.ErrUnrestorable, Message: err.Error()}
	case errors.Is(err, runtime.ErrUnreachable), errors.Is(err, store.ErrUnavailable), lacksSpace(err):
		return &lifecycle.Failure{Outage: true, Message: err.Error()}
	case errors.Is(err, runtime.ErrBusy), errors.Is(err, errHomeChanged):
		var busy *runtime.BusyError
		inUse := errors.As(err, &busy) && busy.Container != ""
		return &lifecycle.Failure{Reason: workspace.ErrActionFailed, Message: err.Error(), Passing: true, InUse: inUse}
	case errors.As(err, &refused):
		return &lifecycle.Failure{Reason: workspace.ErrImageNotAllowed, Message: refused.Error()}
	case errors.As(err, &slow):
		return &lifecycle.Failure{Reason: workspace.ErrImagePullTooSlow, Message: slow.Error()}
	case errors.As(err, &pull):
		return &lifecycle.Failure{Reason: workspace.ErrImagePullFailed, Message: pull.Error()}
	}
	return &lifecycle.Failure{Reason: workspace.ErrActionFailed, Message: err.Error()}
}
