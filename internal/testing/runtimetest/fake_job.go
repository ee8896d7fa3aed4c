package runtimetest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// JobFunc runs a storage job: its home is the directory home, it prints its report
// to out, and returns its exit code. What it writes to the home of a JobArchive or
// JobBackup is discarded, and so is the folder of a JobDrill. When ctx ends the job was killed and must return; its exit code is
// then ignored.
type JobFunc func(ctx context.Context, spec runtime.JobSpec, home string, out io.Writer) int

// codeKilled is the exit code of a killed job.
const codeKilled = 137

// jobName identifies a job; there can be one of each name.
type jobName struct {
	kind runtime.JobKind
	id   workspace.ID
}

type jobState int

const (
	jobCreated jobState = iota
	jobRunning
	jobEnded
)

type fakeJob struct {
	runtime.Job
	spec         runtime.JobSpec
	installation string
	state        jobState
	exit         int
	lines        []string
	part         []byte
	killed       bool
	waits        bool // for room: its state is jobRunning, and nothing of it runs
	cancel       context.CancelFunc
	done         chan struct{} // closed when it has ended
}

// keeps reports whether the job protects a home that it restored.
func (j *fakeJob) keeps(v *fakeVolume) bool {
	return j.state == jobEnded && v != nil && v.Claim == j.VolumeClaim && v.Marker != "" && v.proof == j.ID && !v.live
}

// jobsOf lists the jobs of a workspace that need its home alone. The caller holds
// w.mu, as for all functions here.
func (w *world) jobsOf(id workspace.ID) []*fakeJob {
	var out []*fakeJob
	for _, kind := range []runtime.JobKind{runtime.JobArchive, runtime.JobRestore} {
		if j := w.jobs[jobName{kind, id}]; j != nil {
			out = append(out, j)
		}
	}
	return out
}

// endBackup kills the workspace's backup job and removes it. One that has ended stays.
func (w *world) endBackup(id workspace.ID) {
	if j := w.jobs[jobName{runtime.JobBackup, id}]; j != nil && j.state != jobEnded {
		j.killed = true
		j.cancel()
		w.dropJob(j)
	}
}

// dropJobs removes the jobs of a home that is to be removed.
func (w *world) dropJobs(id workspace.ID) {
	w.endBackup(id)
	if j := w.jobs[jobName{runtime.JobBackup, id}]; j != nil {
		w.dropJob(j)
	}
	for _, j := range w.jobsOf(id) {
		w.dropJob(j)
	}
}

func (w *world) dropJob(j *fakeJob) {
	name := jobName{j.Kind, j.Workspace}
	if w.jobs[name] == j {
		delete(w.jobs, name)
		w.change()
	}
}

func (w *world) jobByID(id string) *fakeJob {
	for _, j := range w.jobs {
		if j.ID == id {
			return j
		}
	}
	return nil
}

// Jobs implements runtime.Runtime.
func (f *Fake) Jobs(ctx context.Context) ([]runtime.Job, error) {
	if err := f.enter(ctx, "Jobs", ""); err != nil {
		return nil, err
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	var out []runtime.Job
	for _, j := range f.w.jobs {
		if j.installation == f.installation && j.state != jobCreated {
			out = append(out, j.listed())
		}
	}
	slices.SortFunc(out, func(a, b runtime.Job) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

// StartJob implements runtime.Runtime.
func (f *Fake) StartJob(ctx context.Context, spec runtime.JobSpec, _ func(runtime.Progress)) (runtime.Job, error) {
	if err := f.enter(ctx, "StartJob", spec.Workspace); err != nil {
		return runtime.Job{}, err
	}
	if !spec.Kind.Valid() {
		return runtime.Job{}, fmt.Errorf("job of kind %q", spec.Kind)
	}
	j, made, err := f.makeJob(spec)
	if err != nil {
		return runtime.Job{}, err
	}
	goesOn, err := f.waitForRoom(j, made, spec)
	if err != nil {
		return runtime.Job{}, err
	}
	if !goesOn {
		return f.listed(j), nil
	}
	if err := f.step(ctx, "StartJob/start", spec.Workspace); err != nil {
		return runtime.Job{}, err
	}
	if err := f.runJob(j); err != nil {
		return runtime.Job{}, err
	}
	if err := f.step(ctx, "StartJob/done", spec.Workspace); err != nil {
		return runtime.Job{}, err
	}
	out := j.Job
	out.Running = true // the caller learns of its end from the next list
	return out, nil
}

func (f *Fake) listed(j *fakeJob) runtime.Job {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	return j.listed()
}

func (j *fakeJob) listed() runtime.Job {
	out := j.Job
	out.Running, out.Waiting = j.state == jobRunning, j.waits
	return out
}

// waitForRoom reports whether a job that was made now, or waits, has room and is to be run.
func (f *Fake) waitForRoom(j *fakeJob, made bool, spec runtime.JobSpec) (goesOn bool, err error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if !made && !j.waits {
		return false, nil
	}
	defer f.w.change()
	if f.w.noRoom == "" {
		j.waits, j.state, j.done, j.spec = false, jobCreated, make(chan struct{}), spec
		j.spec.Input = slices.Clone(spec.Input)
		return true, nil
	}
	if made {
		j.waits, j.state, j.cancel = true, jobRunning, sync.OnceFunc(func() { close(j.done) })
	}
	return false, &runtime.BusyError{Step: runtime.StepWaitingRoom, Reason: f.w.noRoom}
}

// makeJob creates the job or returns the existing one. It replaces one that was
// created but not started.
func (f *Fake) makeJob(spec runtime.JobSpec) (job *fakeJob, made bool, err error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	v := f.w.volumes[spec.Workspace]
	there := f.owns(v, spec.VolumeClaim) && v.Storage == spec.Storage && (v.live || spec.Kind != runtime.JobBackup)
	if !there && spec.Kind != runtime.JobDrill {
		return nil, false, fmt.Errorf("volume of %s: %w", spec.Workspace, runtime.ErrVolumeMismatch)
	}
	conflict := func(why string) error {
		return fmt.Errorf("job of %s: %s: %w", spec.Workspace, why, runtime.ErrConflict)
	}
	restore := spec.Kind == runtime.JobRestore
	if restore && v.live {
		return nil, false, conflict("the home is live")
	}
	name := jobName{spec.Kind, spec.Workspace}
	if j := f.w.jobs[name]; j != nil {
		if j.installation != f.installation {
			return nil, false, conflict("another installation's is there")
		}
		same := j.Claim == spec.Claim && j.VolumeClaim == spec.VolumeClaim && j.Key == spec.Key
		switch {
		case same && j.state != jobCreated:
			return j, false, nil
		case !same && j.state != jobCreated && !(restore && j.keeps(v) && j.Key != spec.Key):
			return nil, false, conflict("there is one")
		}
		f.w.dropJob(j)
	}
	switch spec.Kind {
	case runtime.JobDrill:
	case runtime.JobBackup:
		if err := f.w.usedByJob(spec.Workspace); err != nil {
			return nil, false, err
		}
	default:
		if err := f.w.inUse(spec.Workspace); err != nil {
			return nil, false, err
		}
		f.w.endBackup(spec.Workspace)
	}
	if restore {
		if v.Marker == spec.Key && v.Marker != "" {
			return nil, false, conflict("the archive is restored")
		}
		v.Seeded, v.Marker, v.proof = false, "", ""
	}
	j := &fakeJob{
		Job: runtime.Job{
			ID: f.w.nextID(), Workspace: spec.Workspace, Claim: spec.Claim, Kind: spec.Kind,
			VolumeClaim: spec.VolumeClaim, Key: spec.Key, BucketDir: spec.BucketDir, Created: time.Now(),
		},
		spec: spec, installation: f.installation, done: make(chan struct{}), cancel: func() {},
	}
	j.spec.Input = slices.Clone(spec.Input)
	f.w.jobs[name] = j
	f.w.change()
	return j, true, nil
}

// FollowJob implements runtime.Runtime.
func (f *Fake) FollowJob(ctx context.Context, jobID string, line func([]byte)) (int, error) {
	f.w.mu.Lock()
	j := f.w.jobByID(jobID)
	f.w.mu.Unlock()
	var id workspace.ID
	if j != nil {
		id = j.Workspace
	}
	if err := f.enter(ctx, "FollowJob", id); err != nil {
		return 0, err
	}
	given := 0
	for {
		f.w.mu.Lock()
		changed := f.w.changed
		j := f.w.jobByID(jobID)
		if j == nil || j.installation != f.installation || j.state == jobCreated {
			f.w.mu.Unlock()
			return 0, fmt.Errorf("job %s: %w", jobID, runtime.ErrNotFound)
		}
		fresh, ended, exit := j.lines[given:], j.state == jobEnded, j.exit
		f.w.mu.Unlock()
		for _, l := range fresh {
			line([]byte(l))
		}
		given += len(fresh)
		if err := ctx.Err(); err != nil {
			return 0, fmt.Errorf("FollowJob: %w", err)
		}
		f.mu.Lock()
		down := f.down
		f.mu.Unlock()
		if down {
			return 0, fmt.Errorf("FollowJob: %w", runtime.ErrUnreachable)
		}
		if ended {
			return exit, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// RemoveJob implements runtime.Runtime.
func (f *Fake) RemoveJob(ctx context.Context, jobID string) error {
	f.w.mu.Lock()
	j := f.w.jobByID(jobID)
	f.w.mu.Unlock()
	var id workspace.ID
	if j != nil {
		id = j.Workspace
	}
	if err := f.enter(ctx, "RemoveJob", id); err != nil || j == nil {
		return err
	}
	if j.installation != f.installation {
		return fmt.Errorf("job %s does not belong to this installation", jobID)
	}
	f.w.mu.Lock()
	keeps := j.keeps(f.w.volumes[j.Workspace])
	f.w.mu.Unlock()
	if keeps {
		return nil
	}
	f.w.kill(j)
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.w.dropJob(j)
	return nil
}

// Disks implements runtime.Runtime.
func (f *Fake) Disks(ctx context.Context) ([]runtime.Disk, error) {
	if err := f.enter(ctx, "Disks", ""); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.disks == nil {
		return []runtime.Disk{{Name: "the fake's disk", Free: 60 << 30, Total: 100 << 30}}, nil
	}
	return slices.Clone(f.disks), nil
}

// jobReport collects a job's output.
type jobReport struct {
	w *world
	j *fakeJob
}

func (r jobReport) Write(p []byte) (int, error) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	if r.j.killed {
		return 0, io.ErrClosedPipe
	}
	r.j.part = append(r.j.part, p...)
	for {
		i := bytes.IndexByte(r.j.part, '\n')
		if i < 0 {
			break
		}
		if i <= maxJobLine {
			r.j.lines = append(r.j.lines, string(r.j.part[:i]))
		}
		r.j.part = r.j.part[i+1:]
	}
	r.w.change()
	return len(p), nil
}

// maxJobLine is the longest line of a report, as in the Docker runtime.
const maxJobLine = 1 << 20
