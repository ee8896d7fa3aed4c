package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"codehub/internal/archive"
	"codehub/internal/runtime"
	"codehub/internal/storagejob"
	"codehub/internal/workspace"
)

// endJobs ends the storage jobs of other claims on row's workspace: none of
// them may touch the home while this claim works on it. It returns the job
// that this claim has already, nil if there is none. One that runs and waits
// for another server to relay what it asks of the bucket is ended as well: that
// server leads no more, and may never come back.
func (t *term) endJobs(ctx context.Context, row workspace.Workspace) (*runtime.Job, error) {
	jobs, err := t.cfg.Runtime.Jobs(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the storage jobs: %w", err)
	}
	var own *runtime.Job
	for _, j := range jobs {
		if j.Workspace != row.ID {
			continue
		}
		mute := j.Running && t.cfg.Archives != nil && !t.cfg.Archives.Reaches(j)
		if j.Claim == row.OpID && j.VolumeClaim == row.Home.Claim && !mute {
			own = &j
			continue
		}
		if err := t.cfg.Runtime.RemoveJob(ctx, j.ID); err != nil {
			return nil, fmt.Errorf("end an earlier storage job: %w", err)
		}
	}
	return own, nil
}

// runJob starts the storage job that spec describes, or takes up own, which is
// under way or has ended, follows it to its end and returns it with what it
// has done. orders adds to spec how the job reaches the bucket. A job that has failed is
// removed, so that this claim's next one is another.
func (t *term) runJob(ctx context.Context, own *runtime.Job, spec runtime.JobSpec, orders func(*runtime.JobSpec) error, w *work, started func()) (archive.Stats, *runtime.Job, error) {
	for attempt := 1; ; attempt++ {
		if own == nil {
			told := spec
			if err := orders(&told); err != nil {
				return archive.Stats{}, nil, fmt.Errorf("prepare a storage job: %w", err)
			}
			w.afresh()
			j, err := t.cfg.Runtime.StartJob(ctx, told)
			if err != nil {
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
		if gone := t.cfg.Runtime.RemoveJob(ctx, own.ID); gone != nil {
			t.cfg.Log.Debug("storage job not removed yet", "workspace", spec.Workspace, "job", own.ID, "err", gone)
			return archive.Stats{}, own, err
		}
		// Whoever sent the instructions went away in the middle of that.
		if !errors.Is(err, errNoOrders) || attempt > 1 {
			return archive.Stats{}, nil, err
		}
		own = nil
	}
}

var errNoOrders = errors.New("the storage job got no instructions")

// follow follows a job to its end and returns what it says that it has done.
// Only the word of exactly this job on exactly this claim counts.
func (t *term) follow(ctx context.Context, j runtime.Job, step func(runtime.Progress)) (archive.Stats, error) {
	var result *storagejob.Result
	var words lastWords
	exit, err := t.cfg.Runtime.FollowJob(ctx, j.ID, func(line []byte) {
		var e storagejob.Event
		if json.Unmarshal(line, &e) != nil || e.Progress == nil && e.Result == nil {
			words.add(line)
			return
		}
		if p := e.Progress; p != nil {
			step(runtime.Progress{Step: p.Step, Done: p.Bytes, Total: p.BytesTotal, Entries: p.Entries, EntriesTotal: p.EntriesTotal})
		}
		if e.Result != nil {
			result = e.Result
		}
	})
	switch {
	case errors.Is(err, runtime.ErrNotFound):
		return archive.Stats{}, errors.New("the storage job was removed before it had ended")
	case err != nil:
		return archive.Stats{}, fmt.Errorf("follow the storage job: %w", err)
	case result == nil:
		return archive.Stats{}, fmt.Errorf("the storage job ended (exit code %d) without a result%s", exit, words.say())
	case result.Error != nil && result.Error.Kind == storagejob.NoOrders:
		return archive.Stats{}, errNoOrders
	case result.Claim != j.Claim || result.Kind != string(j.Kind):
		return archive.Stats{}, fmt.Errorf("the storage job reports on %.50q of claim %.50q, and was to do %q of claim %q", result.Kind, result.Claim, j.Kind, j.Claim)
	case result.Error != nil:
		return archive.Stats{}, &jobError{jobFailed(result.Error)}
	}
	return result.Stats, nil
}

// jobError is a failure that the job itself has reported.
type jobError struct{ error }

func (e *jobError) Unwrap() error { return e.error }

// jobFailed puts a job's error into the words of this side.
func jobFailed(e *storagejob.Error) error {
	said := errors.New(workspace.Cut(e.Message))
	switch e.Kind {
	case storagejob.Corrupted:
		return fmt.Errorf("%w: %w", archive.ErrCorrupted, said)
	case storagejob.NotFound:
		return fmt.Errorf("%w: %w", archive.ErrNotFound, said)
	case storagejob.Changed:
		return fmt.Errorf("%w: %w", archive.ErrChanged, said)
	case storagejob.Unrestorable:
		return fmt.Errorf("%w: %w", archive.ErrUnrestorable, said)
	case storagejob.Unavailable:
		return fmt.Errorf("%w: %w", archive.ErrUnavailable, said)
	case storagejob.Stopped: // by an engine or a machine that goes down: nobody's fault
		return fmt.Errorf("%w: %w", runtime.ErrUnreachable, said)
	case storagejob.DiskFull:
		return fmt.Errorf("the disk of the homes is full: %w", said)
	}
	return said
}

// lastWords keeps the end of what a job printed that is no report.
type lastWords []byte

func (w *lastWords) add(line []byte) {
	const most = 2000
	*w = append(append(*w, line...), '\n')
	if n := len(*w); n > most {
		*w = append((*w)[:0], (*w)[n-most:]...)
	}
}

func (w *lastWords) say() string {
	if s := strings.TrimSpace(strings.ToValidUTF8(string(*w), "\uFFFD")); s != "" {
		return "; it printed: " + s
	}
	return ""
}

// sweepJobs ends the jobs that are of no operation under way: of one that was
// cancelled, that failed or that another server had begun. rows are as this
// tick has left them. The job that a home was restored by stays as long as
// that does.
func (t *term) sweepJobs(ctx context.Context, rows []*workspace.Workspace, seen observation) {
	there := make(map[string]bool)
	for _, jobs := range seen.jobs {
		for _, j := range jobs {
			there[j.ID] = true
		}
	}
	for _, row := range rows {
		for _, j := range seen.jobs[row.ID] {
			if row.Operation != workspace.OpNone && j.Claim == row.OpID || holds(j, seen.volumes[row.ID]) {
				continue
			}
			t.endJob(ctx, j)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for id := range t.endings {
		if !there[id] {
			delete(t.endings, id)
		}
	}
}

// holds reports whether the volume is what the job has restored.
func holds(j runtime.Job, v *runtime.Volume) bool {
	return j.Kind == runtime.JobRestore && !j.Running && v != nil && v.Claim == j.VolumeClaim && v.Marker != "" && v.Marker == j.Key
}

func (t *term) endJob(ctx context.Context, j runtime.Job) {
	t.mu.Lock()
	wait := time.Now().Before(t.endings[j.ID])
	t.mu.Unlock()
	if wait {
		return
	}
	t.effect(ctx, "job/"+j.ID, t.hands, func(ctx context.Context) bool {
		if err := t.cfg.Runtime.RemoveJob(ctx, j.ID); err != nil {
			t.cfg.Log.Debug("storage job not removed yet", "workspace", j.Workspace, "job", j.ID, "err", err)
		} else {
			t.cfg.Log.Info("storage job removed that is of no operation", "workspace", j.Workspace, "kind", j.Kind, "running", j.Running)
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		// Should it still be there, it is asked about now and then.
		t.endings[j.ID] = time.Now().Add(t.cfg.IdleInterval)
		return false
	})
}
