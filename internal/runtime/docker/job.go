package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// What a storage job may use. Go gives memory back well before the limit, which
// is there for what the design has not thought of; what the kernel keeps of
// files counts too, and is let go first.
const (
	jobMemory    = 512 << 20
	jobGoMemory  = "220MiB"
	jobPids      = 256
	jobCPUShares = 256 // a workspace has 1024
	jobLogMax    = "100g"
)

// A job's name is its lock: of two servers that make the job of a workspace at
// once, one is told that there is one. That is why everything which could have
// changed is looked at between the creation of the container and its start: a
// server that was stopped there finds its container gone, and so does nothing.

// Jobs implements runtime.Runtime. One that was made and not started is no job
// yet: StartJob makes it anew, and whatever else wants its place removes it.
func (r *Runtime) Jobs(ctx context.Context) ([]runtime.Job, error) {
	list, err := r.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: r.filter(roleJob)})
	if err != nil {
		return nil, failed(ctx, "list storage jobs", err)
	}
	out := make([]runtime.Job, 0, len(list.Items))
	for _, c := range list.Items {
		if stateOf(c.State) == runtime.ContainerCreated {
			continue
		}
		out = append(out, jobOf(c.ID, c.Labels, c.State, time.Unix(c.Created, 0)))
	}
	return out, nil
}

func jobOf(id string, labels map[string]string, state container.ContainerState, created time.Time) runtime.Job {
	return runtime.Job{
		ID:          id,
		Workspace:   workspace.ID(labels[labelWorkspace]),
		Claim:       labels[labelClaim],
		Kind:        runtime.JobKind(labels[labelKind]),
		VolumeClaim: labels[labelVolume],
		Key:         labels[labelKey],
		BucketDir:   labels[labelBucket],
		Running:     stateOf(state) == runtime.ContainerRunning,
		Created:     created,
	}
}

func inspectedJob(c container.InspectResponse) runtime.Job {
	created, _ := time.Parse(time.RFC3339Nano, c.Created)
	return jobOf(c.ID, c.Config.Labels, c.State.Status, created)
}

// StartJob implements runtime.Runtime. If the server dies before the job has
// its whole input, the job reads an end too early, says so and ends.
func (r *Runtime) StartJob(ctx context.Context, spec runtime.JobSpec) (runtime.Job, error) {
	if spec.Kind != runtime.JobArchive && spec.Kind != runtime.JobRestore {
		return runtime.Job{}, fmt.Errorf("storage job of kind %q: there is none", spec.Kind)
	}
	if spec.Storage != workspace.StorageDockerVolume && spec.Storage != workspace.StorageLocalDir {
		return runtime.Job{}, fmt.Errorf("storage backend %q is not one of Docker's", spec.Storage)
	}
	unlock, err := r.lockHome(ctx, spec.Workspace)
	if err != nil {
		return runtime.Job{}, err
	}
	defer unlock()
	name := jobName(spec.Kind, spec.Workspace)
	for range startTries {
		image, err := r.ensureHelperImage(ctx)
		if err != nil {
			return runtime.Job{}, err
		}
		before, err := r.lookAtHome(ctx, spec)
		if err != nil {
			return runtime.Job{}, err
		}
		// The home's users are listed again once the container stands. A home
		// that is in use for long has none made for it, again and again.
		if err := r.checkUnused(ctx, spec, func(u user) bool { return u.role == roleJob }); err != nil {
			return runtime.Job{}, err
		}
		if err := r.makeScratch(spec); err != nil {
			return runtime.Job{}, err
		}
		made, err := r.api.ContainerCreate(ctx, r.jobOptions(spec, name, image))
		switch {
		case err == nil:
			return r.runJob(ctx, spec, before, made.ID)
		case errdefs.IsConflict(err):
			job, there, err := r.takeUpJob(ctx, spec, name)
			if there || err != nil {
				return job, err
			}
		case errdefs.IsNotFound(err): // another server has removed the image as an old one
		default:
			return runtime.Job{}, failed(ctx, "create storage job", err)
		}
	}
	return runtime.Job{}, comesBack("container " + name)
}

// takeUpJob handles a container that has the job's name already. It reports
// false if there is none by that name any more.
func (r *Runtime) takeUpJob(ctx context.Context, spec runtime.JobSpec, name string) (runtime.Job, bool, error) {
	found, gone, err := r.inspectOwned(ctx, name, roleJob)
	if gone || err != nil {
		return runtime.Job{}, false, err
	}
	job := inspectedJob(found)
	if found.State.Status == container.StateRemoving {
		return runtime.Job{}, false, r.awaitRemoval(ctx, found.ID)
	}
	same := job.Claim == spec.Claim && job.VolumeClaim == spec.VolumeClaim && job.Key == spec.Key
	switch {
	case stateOf(found.State.Status) == runtime.ContainerCreated:
		// Who made it has ended, or waits before its start and will not find it:
		// it has had no input, and never will.
		return runtime.Job{}, false, r.discard(ctx, found.ID)
	case same:
		return job, true, nil
	}
	// What was restored into a home that is to hold something else now.
	replaces := spec.Kind == runtime.JobRestore && !job.Running && job.VolumeClaim == spec.VolumeClaim && job.Key != spec.Key
	if replaces {
		keeps, err := r.keepsHome(ctx, job)
		if err != nil {
			return runtime.Job{}, true, err
		}
		if keeps {
			return runtime.Job{}, false, r.discard(ctx, found.ID)
		}
	}
	return runtime.Job{}, true, fmt.Errorf("container %s (%s) is of claim %s: %w", name, found.State.Status, job.Claim, runtime.ErrConflict)
}

// runJob starts a job that was made, once it is sure that it may; otherwise it
// removes it again.
func (r *Runtime) runJob(ctx context.Context, spec runtime.JobSpec, before homeLook, id string) (runtime.Job, error) {
	giveUp := func(err error) (runtime.Job, error) {
		// Also when the caller gave up: what was not started is of no use.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
		defer cancel()
		return runtime.Job{}, errors.Join(err, r.discard(ctx, id))
	}
	if err := r.admitJob(ctx, spec, before, id); err != nil {
		return giveUp(err)
	}
	if err := r.breaker.Allow(ctx); err != nil {
		return giveUp(failed(ctx, "attach to storage job", err))
	}
	stdin, err := r.plain.ContainerAttach(ctx, id, client.ContainerAttachOptions{Stream: true, Stdin: true})
	if err != nil {
		return giveUp(failed(ctx, "attach to storage job", err))
	}
	defer stdin.Close()
	if _, err := r.api.ContainerStart(ctx, id, client.ContainerStartOptions{}); err != nil {
		err = failed(ctx, "start storage job", err)
		if errors.Is(err, runtime.ErrUnreachable) || ctx.Err() != nil {
			return runtime.Job{}, err // it may run; the next call finds out
		}
		return giveUp(err)
	}
	stop := context.AfterFunc(ctx, func() { stdin.Close() })
	defer stop()
	_, err = stdin.Conn.Write(spec.Input)
	if err == nil {
		err = stdin.CloseWrite()
	}
	if err != nil {
		return runtime.Job{}, failed(ctx, "tell storage job what to do", fmt.Errorf("%w: %w", runtime.ErrUnreachable, err))
	}
	return runtime.Job{
		ID: id, Workspace: spec.Workspace, Claim: spec.Claim, Kind: spec.Kind,
		VolumeClaim: spec.VolumeClaim, Key: spec.Key, BucketDir: spec.BucketDir, Running: true, Created: r.now(),
	}, nil
}

// jobOptions is the whole of what a storage job's container is (design §11).
func (r *Runtime) jobOptions(spec runtime.JobSpec, name, image string) client.ContainerCreateOptions {
	labels := r.labels(roleJob, spec.Workspace, spec.Claim)
	labels[labelKind] = string(spec.Kind)
	labels[labelVolume] = spec.VolumeClaim
	labels[labelKey] = spec.Key
	if spec.BucketDir != "" {
		labels[labelBucket] = spec.BucketDir
	}
	restore := spec.Kind == runtime.JobRestore
	pids := int64(jobPids)
	return client.ContainerCreateOptions{
		Name: name,
		Config: &container.Config{
			Image:       image,
			Entrypoint:  []string{"/codehub", runtime.JobCommand},
			User:        "0:0",
			Env:         []string{"GOMEMLIMIT=" + jobGoMemory},
			OpenStdin:   true,
			StdinOnce:   true,
			Labels:      labels,
			Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
		},
		HostConfig: &container.HostConfig{
			NetworkMode:    "none",
			UsernsMode:     "host",
			CapDrop:        []string{"ALL"},
			CapAdd:         jobCaps(),
			ReadonlyRootfs: true,
			SecurityOpt:    []string{"no-new-privileges:true"},
			RestartPolicy:  container.RestartPolicy{Name: container.RestartPolicyDisabled},
			// The report is read from its beginning by whoever takes the job up,
			// so it must not be rotated; a job prints a few lines a second.
			LogConfig: container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": jobLogMax}},
			Mounts:    r.jobMounts(spec, restore),
			Resources: container.Resources{
				Memory: jobMemory, MemorySwap: jobMemory, PidsLimit: &pids, CPUShares: jobCPUShares,
			},
		},
	}
}

// jobCaps: a job reads and writes what belongs to any user, in what is mounted
// for it, and no more. DAC_READ_SEARCH would do for reading, and open any file of
// the disk that a volume is on, by its handle.
func jobCaps() []string {
	// An archive job has the home read-only and tries in its scratch folder what a
	// restore would do.
	return []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETFCAP"}
}

func (r *Runtime) jobMounts(spec runtime.JobSpec, restore bool) []mount.Mount {
	home := r.volumeMount(spec.Workspace, runtime.JobHomeDir, randomHex(8), !restore)
	if spec.Storage == workspace.StorageLocalDir {
		home = mount.Mount{
			Type: mount.TypeBind, Source: r.hostHomePath(spec.Workspace), Target: runtime.JobHomeDir, ReadOnly: !restore,
		}
	}
	mounts := []mount.Mount{home}
	if spec.Kind == runtime.JobArchive {
		mounts = append(mounts, r.scratchMount(spec))
	}
	if spec.ObjectDir != "" {
		mounts = append(mounts, mount.Mount{
			Type: mount.TypeBind, Source: filepath.Clean(spec.ObjectDir), Target: runtime.JobObjectDir, ReadOnly: restore,
		})
	}
	if spec.BucketDir != "" {
		// The folder, not the socket: a server that starts again makes another.
		mounts = append(mounts, mount.Mount{
			Type: mount.TypeBind, Source: filepath.Clean(spec.BucketDir), Target: runtime.JobBucketDir, ReadOnly: true,
		})
	}
	return mounts
}

// scratchMount is an empty folder where a restore would make the home again: for
// a volume an anonymous one, which goes with the container, for a folder one
// beside it, which goes with the home.
func (r *Runtime) scratchMount(spec runtime.JobSpec) mount.Mount {
	if spec.Storage == workspace.StorageLocalDir {
		return mount.Mount{
			Type: mount.TypeBind, Source: filepath.Join(filepath.Dir(r.hostHomePath(spec.Workspace)), scratchName), Target: runtime.JobScratchDir,
		}
	}
	return mount.Mount{
		Type: mount.TypeVolume, Target: runtime.JobScratchDir,
		VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: r.labels(roleScratch, spec.Workspace, spec.Claim)},
	}
}

// scratchName lies beside the home, in the folder that goes with it. It is no
// trash, which is removed while a job may run.
const scratchName = ".scratch"

// makeScratch makes the folder that scratchMount mounts.
func (r *Runtime) makeScratch(spec runtime.JobSpec) error {
	if spec.Kind != runtime.JobArchive || spec.Storage != workspace.StorageLocalDir {
		return nil
	}
	err := os.Mkdir(filepath.Join(r.folder(spec.Workspace), scratchName), 0o700)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the scratch folder of a storage job: %w", err)
	}
	return nil
}

// RemoveJob implements runtime.Runtime. The job that restored a home which is
// not settled yet is left where it is, and that is no error.
func (r *Runtime) RemoveJob(ctx context.Context, jobID string) error {
	found, err := r.api.ContainerInspect(ctx, jobID, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return failed(ctx, "inspect storage job", err)
	}
	c := found.Container
	if c.ID != jobID || !r.owns(c.Config.Labels, roleJob) {
		return fmt.Errorf("container %s is not a storage job of this installation", jobID)
	}
	job := inspectedJob(c)
	unlock, err := r.lockHome(ctx, job.Workspace)
	if err != nil {
		return err
	}
	defer unlock()
	if !job.Running {
		keeps, err := r.keepsHome(ctx, job)
		if err != nil || keeps {
			return err
		}
	}
	_, err = r.api.ContainerRemove(ctx, jobID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	switch {
	case err == nil || errdefs.IsNotFound(err):
		return nil
	case errdefs.IsConflict(err):
		return r.awaitRemoval(ctx, jobID)
	}
	return failed(ctx, "remove storage job", err)
}
