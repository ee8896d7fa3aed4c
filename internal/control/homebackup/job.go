package homebackup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"codehub/internal/archive"
	"codehub/internal/runtime"
	"codehub/internal/storage/bucket"
	"codehub/internal/storage/storagejob"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
)

const (
	// manyPacks are signed for a job that used up those that are signed by default.
	manyPacks = 30_000
	// maxAttempts is how many attempts at a backup may be interrupted before it has failed: a job that
	// needs too much memory is killed each time.
	maxAttempts = 5
	// cleanUpWithin is how long the removal of a job may take after its end.
	cleanUpWithin = 30 * time.Second
)

// backUp claims a backup, makes it and records how it ended. An error means that this is not recorded.
func (t *term) backUp(ctx context.Context, d due, b workspace.Backup) error {
	row, claimed, err := t.rows.Claim(ctx, b)
	if err != nil || !claimed {
		return err
	}
	former := d.LastKey
	if d.LastDamaged {
		former = ""
	}
	began := time.Now()
	made, former, err := t.make(ctx, row, b, former)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return t.notMade(ctx, row, b, err)
	}
	t.completed(row.ID)
	took := time.Since(began)
	t.metrics.made(made, took)
	if made.Unchanged {
		return t.rows.Unchanged(ctx, b.ID, former)
	}
	done, err := t.rows.Finish(ctx, b.ID, made.Digest, made.Size, made.BackupFigures)
	if err != nil || !done {
		return err
	}
	t.cfg.Log.Info("home backed up", "workspace", b.WorkspaceID, "backup", b.ID, "cause", b.Cause, "stored", made.Stored, "changed", made.Changed,
		"problems", made.Problems, "took", took)
	if err := t.keep(ctx, b.WorkspaceID); err != nil {
		t.cfg.Log.Debug("let backups of a home expire failed", "workspace", b.WorkspaceID, "err", err)
	}
	return nil
}

// notMade records that a backup failed, unless the home is gone or in the way of another operation.
func (t *term) notMade(ctx context.Context, row workspace.Workspace, b workspace.Backup, why error) error {
	list, _, err := t.rows.Candidates(ctx, false, row.ID)
	if err != nil {
		return err
	}
	gone := len(list) == 0 || !accessible(list[0])
	var failed *jobError
	interrupted := gone || errors.Is(why, runtime.ErrUnreachable) && !errors.As(why, &failed)
	if gone {
		t.completed(row.ID)
	}
	if !interrupted && (errors.Is(why, errInterrupted) || errors.Is(why, runtime.ErrBusy) || errors.Is(why, runtime.ErrVolumeMismatch)) {
		interrupted = t.interrupted(row.ID)
	}
	log := t.cfg.Log.With("workspace", row.ID, "backup", b.ID, "cause", b.Cause, "err", why)
	switch {
	case interrupted && (b.Cause == workspace.BackupRequested || b.Cause == workspace.BackupHandOver):
		log.Debug("backup of a home interrupted; retrying")
		t.delay(row.ID, t.cfg.Retry)
		return t.rows.Wait(ctx, b.ID)
	case interrupted:
		log.Debug("backup of a home interrupted")
		t.delay(row.ID, 6*t.cfg.Retry)
		return t.rows.Drop(ctx, b.ID)
	}
	t.completed(row.ID)
	log.Warn("backup of a home failed")
	t.metrics.failed.Inc()
	return t.rows.Fail(ctx, b.ID, withReason(why, failures))
}

// make runs the jobs of one backup. It returns the key of the backup that it was compared with, too.
func (t *term) make(ctx context.Context, row workspace.Workspace, b workspace.Backup, former string) (made storagejob.Made, compared string, err error) {
	ctx, cancel := t.limited(ctx)
	defer cancel()
	defer func() {
		if err != nil && errors.Is(context.Cause(ctx), errTooLong) {
			err = errTooLong
		}
	}()
	g := bucket.NewGeneration{Claim: b.ID, Manifest: b.Key, Former: former, SkipUnchanged: b.Cause != workspace.BackupRequested, Paced: b.Cause == workspace.BackupScheduled}
	if former != "" {
		switch m, _, err := t.cfg.Bucket.Generation(ctx, former); {
		case isDamaged(err):
			t.cfg.Log.Warn("last backup of a home cannot be used; the next one stores everything", "workspace", row.ID, "key", former, "err", err)
			g.Former = ""
		case err != nil:
			return made, "", err
		default:
			g.FullRead = m.FullReadDue(*b.BegunAt)
		}
	}
	spec := runtime.JobSpec{Workspace: row.ID, Claim: b.ID, Kind: runtime.JobBackup, Storage: row.StorageBackend, VolumeClaim: row.Home.Claim, Key: b.Key}
	for ordered := false; ; {
		result, err := t.runJob(ctx, spec, t.stepOf(b.ID), func(spec *runtime.JobSpec) error { return t.cfg.Bucket.BackupJob(ctx, row, g, spec) })
		switch {
		case errors.Is(err, errMorePacks) && g.Packs == 0:
			g.Packs = manyPacks
		case isDamaged(err) && g.Former != "":
			t.cfg.Log.Warn("last backup of a home cannot be used; this one stores everything", "workspace", row.ID, "key", g.Former, "err", err)
			g.Former = ""
		case errors.Is(err, storagejob.ErrNoOrders) && !ordered:
			ordered = true
		case err != nil:
			return made, "", err
		case result.Made == nil:
			return made, "", errors.New("the storage job reports no backup")
		default:
			return *result.Made, g.Former, nil
		}
	}
}

// limited returns a context in which a job is followed. One that takes longer could store a backup whose
// packs, or those of the backup before, are removed meanwhile.
func (t *term) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, t.cfg.Within, errTooLong)
}

func isDamaged(err error) bool {
	return errors.Is(err, archive.ErrCorrupted) || errors.Is(err, store.ErrNotFound)
}

var (
	errMorePacks   = errors.New("the storage job needs more signed requests")
	errInterrupted = errors.New("the storage job was ended")
	errTooLong     = errors.New("the storage job took too long")
)

// reason is a sentence for an error, which pages translate.
type reason struct {
	err  error
	text string
}

var (
	// failures are why a backup is not made.
	failures = []reason{
		{errTooLong, "The backup took too long."},
		{errInterrupted, "The backup was interrupted too often."},
		{archive.ErrUnrestorable, "The home has a file that no restore could recreate."},
		{archive.ErrChanged, "Folders were moved while they were read."},
		{store.ErrUnavailable, "The archive storage did not respond, or it is full."},
	}
	// damages are what a drill finds.
	damages = []reason{
		{store.ErrNotFound, "A part of it is missing from the archive storage."},
		{archive.ErrCorrupted, "It differs from what was stored."},
		{archive.ErrUnrestorable, "It could not be restored on this server."},
	}
)

const msgNoHome = "The workspace has no home that is in use."

// Messages returns the sentences about backups that pages translate.
func Messages() []string {
	out := []string{msgNoHome}
	for _, r := range slices.Concat(failures, damages) {
		out = append(out, r.text)
	}
	return out
}

// withReason is the text of an error that pages show, after the reason if there is one.
func withReason(err error, reasons []reason) string {
	for _, r := range reasons {
		switch {
		case err == r.err:
			return r.text
		case errors.Is(err, r.err):
			return workspace.Cut(r.text + " " + err.Error())
		}
	}
	return workspace.Cut(err.Error())
}

// jobError is an error that a job itself reported.
type jobError struct {
	kind    storagejob.ErrorKind
	message string
}

func (e *jobError) Error() string { return e.message }

// Is reports the error that the kind stands for.
func (e *jobError) Is(target error) bool {
	switch e.kind {
	case storagejob.Corrupted:
		return target == archive.ErrCorrupted
	case storagejob.NotFound:
		return target == store.ErrNotFound
	case storagejob.Changed:
		return target == archive.ErrChanged
	case storagejob.Unrestorable:
		return target == archive.ErrUnrestorable
	case storagejob.Unavailable:
		return target == store.ErrUnavailable
	case storagejob.MorePacks:
		return target == errMorePacks
	case storagejob.Stopped:
		return target == errInterrupted
	}
	return false
}

// runJob starts a job, follows it to its end and removes it.
func (t *term) runJob(ctx context.Context, spec runtime.JobSpec, step func(runtime.Progress), addAccess func(*runtime.JobSpec) error) (storagejob.Result, error) {
	if err := addAccess(&spec); err != nil {
		return storagejob.Result{}, fmt.Errorf("prepare a storage job: %w", err)
	}
	j, err := t.cfg.Runtime.StartJob(ctx, spec, step)
	if errors.Is(err, runtime.ErrConflict) {
		if err := t.removeJobs(ctx, spec.Workspace, spec.Kind); err != nil {
			return storagejob.Result{}, err
		}
		j, err = t.cfg.Runtime.StartJob(ctx, spec, step)
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpWithin)
		defer cancel()
		if err := t.removeJobs(clean, spec.Workspace, spec.Kind); err != nil {
			t.cfg.Log.Debug("storage job not removed yet", "workspace", spec.Workspace, "kind", spec.Kind, "err", err)
		}
	}()
	if err != nil {
		return storagejob.Result{}, fmt.Errorf("start a storage job: %w", err)
	}
	return t.follow(ctx, j, step)
}

// removeJobs removes the jobs of a kind of a workspace.
func (t *term) removeJobs(ctx context.Context, id workspace.ID, kind runtime.JobKind) error {
	jobs, err := t.cfg.Runtime.Jobs(ctx)
	if err != nil {
		return err
	}
	for _, j := range jobs {
		if j.Workspace == id && j.Kind == kind {
			if err := t.cfg.Runtime.RemoveJob(ctx, j.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// follow follows a job to its end and returns its result.
func (t *term) follow(ctx context.Context, j runtime.Job, step func(runtime.Progress)) (storagejob.Result, error) {
	result, err := storagejob.Follow(ctx, t.cfg.Runtime.FollowJob, j, step)
	var none *storagejob.NoResultError
	switch {
	case errors.Is(err, storagejob.ErrRemoved):
		err = errInterrupted
	case errors.As(err, &none) && none.Output == "": // killed
		err = fmt.Errorf("%w (exit code %d)", errInterrupted, none.Exit)
	case err == nil && result.Error != nil:
		err = &jobError{result.Error.Kind, workspace.Cut(result.Error.Message)}
	}
	return result, err
}
