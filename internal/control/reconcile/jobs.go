package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"codehub/internal/archive"
	"codehub/internal/runtime"
	"codehub/internal/storage/storagejob"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
)

// besides reports whether the job belongs to package homebackup, which removes it. The runtime ends it
// where something needs the home alone.
func besides(j runtime.Job) bool {
	return j.Kind == runtime.JobBackup || j.Kind == runtime.JobDrill
}

// endJobs removes the storage jobs of other claims on row's workspace, because none
// of them may touch the home while this claim works on it. It returns this claim's
// own job, or nil. A running job whose bucket requests another server would have to
// relay is removed as well: that server is no longer the leader and may never
// return.
func (t *term) endJobs(ctx context.Context, row workspace.Workspace) (*runtime.Job, error) {
	jobs, err := t.cfg.Runtime.Jobs(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the storage jobs: %w", err)
	}
	var own *runtime.Job
	for _, j := range jobs {
		if j.Workspace != row.ID || besides(j) {
			continue
		}
		unreachable := j.Running && !t.cfg.Archives.Reaches(j)
		if j.Claim == row.OpID && j.VolumeClaim == row.Home.Claim && !unreachable {
			own = &j
			continue
		}
		if err := t.cfg.Runtime.RemoveJob(ctx, j.ID); err != nil {
			return nil, fmt.Errorf("end an earlier storage job: %w", err)
		}
	}
	return own, nil
}

// runJob starts the storage job that spec describes, or resumes own, which waits, runs or
// has ended. It follows the job to its end and returns it with its result.
// addAccess adds to spec how the job reaches the bucket. A failed job is removed,
// so that this claim's next attempt starts a new one.
func (t *term) runJob(ctx context.Context, own *runtime.Job, spec runtime.JobSpec, addAccess func(*runtime.JobSpec) error, w *work, started func()) (archive.Stats, *runtime.Job, error) {
	for attempt := 1; ; attempt++ {
		if own == nil || own.Waiting {
			complete := spec
			if err := addAccess(&complete); err != nil {
				return archive.Stats{}, nil, fmt.Errorf("prepare a storage job: %w", err)
			}
			w.resetReached()
			j, err := t.cfg.Runtime.StartJob(ctx, complete, w.step)
			if err != nil {
				if own != nil && ctx.Err() == nil && !errors.Is(err, runtime.ErrBusy) && !errors.Is(err, runtime.ErrUnreachable) {
					t.removeJob(ctx, *own) // it cannot begin, but another one may
				}
				return archive.Stats{}, nil, fmt.Errorf("start a storage job: %w", err)
			}
			own = &j
		}
		started()
		stats, err := t.follow(ctx, *own, w.step)
		var failed *jobError
		if err == nil || ctx.Err() != nil || errors.Is(err, runtime.ErrUnreachable) && !errors.As(err, &failed) {
			return stats, own, err
		}
		if !t.removeJob(ctx, *own) {
			return archive.Stats{}, own, err
		}
		// The server that was to send the instructions stopped while the job waited
		// for them.
		if !errors.Is(err, storagejob.ErrNoOrders) || attempt > 1 {
			return archive.Stats{}, nil, err
		}
		own = nil
	}
}

// removeJob reports whether it has removed a storage job. Another attempt removes one that stays.
func (t *term) removeJob(ctx context.Context, j runtime.Job) bool {
	err := t.cfg.Runtime.RemoveJob(ctx, j.ID)
	if err != nil {
		t.cfg.Log.Debug("storage job not removed yet", "workspace", j.Workspace, "job", j.ID, "err", err)
	}
	return err == nil
}

// follow follows a job to its end and returns its result.
func (t *term) follow(ctx context.Context, j runtime.Job, step func(runtime.Progress)) (archive.Stats, error) {
	result, err := storagejob.Follow(ctx, t.cfg.Runtime.FollowJob, j, step)
	if err == nil && result.Error != nil {
		err = &jobError{jobFailed(result.Error)}
	}
	if err != nil {
		return archive.Stats{}, err
	}
	return result.Stats, nil
}

// jobError is an error that the job itself reported.
type jobError struct{ error }

func (e *jobError) Unwrap() error { return e.error }

// jobFailed translates a job's error to the errors of the archive and runtime
// packages.
func jobFailed(e *storagejob.Error) error {
	if e.Room != nil {
		return &noRoom{needs: e.Room.Needs, free: e.Room.Free}
	}
	cause := errors.New(workspace.Cut(e.Message))
	switch e.Kind {
	case storagejob.Corrupted:
		return fmt.Errorf("%w: %w", archive.ErrCorrupted, cause)
	case storagejob.NotFound:
		return fmt.Errorf("%w: %w", store.ErrNotFound, cause)
	case storagejob.Changed:
		return fmt.Errorf("%w: %w", archive.ErrChanged, cause)
	case storagejob.Unrestorable:
		return fmt.Errorf("%w: %w", archive.ErrUnrestorable, cause)
	case storagejob.Unavailable:
		return fmt.Errorf("%w: %w", store.ErrUnavailable, cause)
	case storagejob.Stopped:
		return &jobStoppedError{cause}
	case storagejob.DiskFull:
		return &diskFullError{cause}
	case storagejob.SharedDiskFull: // a larger size does not help
		return fmt.Errorf("%s: %w", fullDisk, cause)
	}
	return cause
}

// jobStoppedError is the end of a storage job because the runtime or the machine shut down. As
// runtime.ErrUnreachable, it does not count as a failure.
type jobStoppedError struct{ error }

func (e *jobStoppedError) Unwrap() error { return e.error }

func (e *jobStoppedError) Is(target error) bool { return target == runtime.ErrUnreachable }

const fullDisk = "the disk of the homes is full"

// diskFullError is a job's report that its home does not fit on the disk.
type diskFullError struct{ cause error }

func (e *diskFullError) Error() string { return fullDisk + ": " + e.cause.Error() }
func (e *diskFullError) Unwrap() error { return e.cause }

// sweepJobs removes the jobs that belong to no running operation: it was cancelled,
// it failed, or another server started it. rows are the rows as this tick has
// written them. The job that a home was restored by stays as long as the home.
func (t *term) sweepJobs(ctx context.Context, rows []*workspace.Workspace, seen observation) {
	there := make(map[string]bool)
	for _, jobs := range seen.jobs {
		for _, j := range jobs {
			there[j.ID] = true
		}
	}
	for _, row := range rows {
		for _, j := range seen.jobs[row.ID] {
			if besides(j) || row.Operation != workspace.OpNone && j.Claim == row.OpID || holds(j, seen.volumes[row.ID]) {
				continue
			}
			t.endJob(ctx, j)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for id := range t.jobRetryAt {
		if !there[id] {
			delete(t.jobRetryAt, id)
		}
	}
}

// holds reports whether the volume is the one that the job has restored.
func holds(j runtime.Job, v *runtime.Volume) bool {
	return j.Kind == runtime.JobRestore && !j.Running && v != nil && v.Claim == j.VolumeClaim && v.Marker != "" && v.Marker == j.Key
}

func (t *term) endJob(ctx context.Context, j runtime.Job) {
	t.mu.Lock()
	wait := time.Now().Before(t.jobRetryAt[j.ID])
	t.mu.Unlock()
	if wait {
		return
	}
	t.effect(ctx, "job/"+j.ID, t.sideTasks, func(ctx context.Context) bool {
		if err := t.cfg.Runtime.RemoveJob(ctx, j.ID); err != nil {
			t.cfg.Log.Debug("storage job not removed yet", "workspace", j.Workspace, "job", j.ID, "err", err)
		} else {
			t.cfg.Log.Info("orphaned storage job removed", "workspace", j.Workspace, "kind", j.Kind, "running", j.Running)
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		// Try again later if it still exists.
		t.jobRetryAt[j.ID] = time.Now().Add(t.cfg.IdleInterval)
		return false
	})
}
