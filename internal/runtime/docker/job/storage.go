package job

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/helper"
	"codehub/internal/runtime/docker/home"
	"codehub/internal/workspace"
)

// A job's name is its lock: if two servers create the job of a workspace at once,
// one gets a conflict. So everything that may have changed is checked between the
// creation of the container and its start. A server that was stopped in between
// finds its container gone and changes nothing.

// Jobs implements runtime.Runtime. A container that was created but not started is
// not listed: StartJob replaces it.
func (j *Jobs) Jobs(ctx context.Context) ([]runtime.Job, error) {
	all, err := j.listing.Do(ctx, struct{}{}, j.listJobs)
	return slices.Clone(all), err
}

func (j *Jobs) listJobs(ctx context.Context) ([]runtime.Job, error) {
	list, err := j.API.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: j.Filter(engine.RoleJob)})
	if err != nil {
		return nil, engine.WrapError(ctx, "list storage jobs", err)
	}
	out := make([]runtime.Job, 0, len(list.Items))
	for _, c := range list.Items {
		if engine.StateOf(c.State) == runtime.ContainerCreated {
			continue
		}
		out = append(out, helper.JobOf(c.ID, c.Labels, c.State, time.Unix(c.Created, 0)))
	}
	return out, nil
}

// StartJob implements runtime.Runtime. If the server dies before it has sent the
// whole input, the job ends with an error.
func (j *Jobs) StartJob(ctx context.Context, spec runtime.JobSpec, _ func(runtime.Progress)) (runtime.Job, error) {
	if !spec.Kind.Valid() {
		return runtime.Job{}, fmt.Errorf("storage job of kind %q: there is none", spec.Kind)
	}
	if hasHome(spec.Kind) && spec.Storage != workspace.StorageDockerVolume && spec.Storage != workspace.StorageLocalDir {
		return runtime.Job{}, fmt.Errorf("storage backend %q is not one of Docker's", spec.Storage)
	}
	unlock, err := j.lock(ctx, spec.Kind, spec.Workspace)
	if err != nil {
		return runtime.Job{}, err
	}
	defer unlock()
	name := engine.JobName(spec.Kind, spec.Workspace)
	for range engine.MaxTries {
		image, err := j.helper.Image(ctx)
		if err != nil {
			return runtime.Job{}, err
		}
		before, err := j.check(ctx, spec)
		if err != nil {
			return runtime.Job{}, err
		}
		snapshot := j.homes.NewSnapshot(spec)
		made, err := j.API.ContainerCreate(ctx, j.jobOptions(spec, name, image, snapshot))
		if err != nil {
			j.homes.RemoveSnapshot(snapshot.Path)
		}
		switch {
		case err == nil:
			job, err := j.runJob(ctx, spec, before, made.ID)
			if j.weightRefused(err) {
				continue
			}
			return job, err
		case errdefs.IsConflict(err):
			job, there, err := j.adoptJob(ctx, spec, name)
			if there || err != nil {
				return job, err
			}
		case errdefs.IsNotFound(err): // another server removed it as an old image
		default:
			return runtime.Job{}, engine.WrapError(ctx, "create storage job", err)
		}
	}
	return runtime.Job{}, engine.ErrRecreated("container " + name)
}

// hasHome reports whether jobs of this kind work on the workspace's home.
func hasHome(kind runtime.JobKind) bool { return kind != runtime.JobDrill }

// lock serializes this process's calls on a job. A drill does not wait for calls on the home.
func (j *Jobs) lock(ctx context.Context, kind runtime.JobKind, id workspace.ID) (unlock func(), err error) {
	if hasHome(kind) || !workspace.ValidID(string(id)) {
		return j.homes.LockHome(ctx, id)
	}
	return j.Lock(ctx, workspace.ID(engine.JobName(kind, id)))
}

// check checks the home before the job's container is created, and prepares what it mounts.
func (j *Jobs) check(ctx context.Context, spec runtime.JobSpec) (home.State, error) {
	if !hasHome(spec.Kind) {
		return home.State{}, nil
	}
	before, err := j.homes.CheckJob(ctx, spec)
	if err != nil {
		return before, err
	}
	// The users are checked again once the container exists. Checking first
	// avoids creating containers again and again while a home is in use.
	later := func(u engine.User) bool {
		return u.Role == engine.RoleJob && (spec.Kind != runtime.JobBackup || u.Backup())
	}
	if err := j.homes.CheckUnused(ctx, spec, later); err != nil {
		return before, err
	}
	return before, j.makeScratch(spec)
}

// weightRefused reports whether a job could not be started because the kernel has no weights for
// reads and writes, which Docker does not know of cgroup v2. The next jobs have none.
func (j *Jobs) weightRefused(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "io.weight") || strings.Contains(err.Error(), "io.bfq.weight")) && !j.noWeights.Swap(true)
}

// isBackground reports whether jobs of this kind leave the processor and the disk to workspaces.
func isBackground(kind runtime.JobKind) bool {
	return kind == runtime.JobBackup || kind == runtime.JobDrill
}

// limits returns what a job may use.
func (j *Jobs) limits(kind runtime.JobKind) helper.Limits {
	if !isBackground(kind) {
		return helper.JobLimits()
	}
	limits := helper.BackgroundLimits()
	if j.noWeights.Load() {
		limits.BlockWeight = 0
	}
	return limits
}

// adoptJob handles an existing container with the job's name. It returns false if
// there is none any more.
func (j *Jobs) adoptJob(ctx context.Context, spec runtime.JobSpec, name string) (runtime.Job, bool, error) {
	found, gone, err := j.InspectOwned(ctx, name, engine.RoleJob)
	if gone || err != nil {
		return runtime.Job{}, false, err
	}
	job := helper.Job(found)
	if found.State.Status == container.StateRemoving {
		return runtime.Job{}, false, j.AwaitRemoval(ctx, found.ID)
	}
	same := job.Claim == spec.Claim && job.VolumeClaim == spec.VolumeClaim && job.Key == spec.Key
	switch {
	case engine.StateOf(found.State.Status) == runtime.ContainerCreated:
		// Its creator has died, or has not started it yet and will not find it. It
		// has received no input and never will.
		return runtime.Job{}, false, j.Discard(ctx, found.ID)
	case same:
		return job, true, nil
	}
	// The job of an earlier restore into a home that is to hold other content now.
	replaces := spec.Kind == runtime.JobRestore && !job.Running && job.VolumeClaim == spec.VolumeClaim && job.Key != spec.Key
	if replaces {
		keeps, err := j.homes.KeepsHome(ctx, job)
		if err != nil {
			return runtime.Job{}, true, err
		}
		if keeps {
			return runtime.Job{}, false, j.Discard(ctx, found.ID)
		}
	}
	return runtime.Job{}, true, fmt.Errorf("container %s (%s) is of claim %s: %w", name, found.State.Status, job.Claim, runtime.ErrConflict)
}

// runJob starts a created job after the final checks, and removes it if they fail.
func (j *Jobs) runJob(ctx context.Context, spec runtime.JobSpec, before home.State, id string) (runtime.Job, error) {
	giveUp := func(err error) (runtime.Job, error) {
		j.Abandon(ctx, id)
		return runtime.Job{}, err
	}
	if hasHome(spec.Kind) {
		if err := j.homes.AdmitJob(ctx, spec, before, id); err != nil {
			return giveUp(err)
		}
	}
	if err := j.Breaker.Allow(ctx); err != nil {
		return giveUp(engine.WrapError(ctx, "attach to storage job", err))
	}
	stdin, err := j.Plain.ContainerAttach(ctx, id, client.ContainerAttachOptions{Stream: true, Stdin: true})
	if err != nil {
		return giveUp(engine.WrapError(ctx, "attach to storage job", err))
	}
	defer stdin.Close()
	if _, err := j.API.ContainerStart(ctx, id, client.ContainerStartOptions{}); err != nil {
		err = engine.WrapError(ctx, "start storage job", err)
		if errors.Is(err, runtime.ErrUnreachable) || ctx.Err() != nil {
			return runtime.Job{}, err // it may be running; the next call checks
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
		return runtime.Job{}, engine.WrapError(ctx, "send instructions to storage job", fmt.Errorf("%w: %w", runtime.ErrUnreachable, err))
	}
	return runtime.Job{
		ID: id, Workspace: spec.Workspace, Claim: spec.Claim, Kind: spec.Kind,
		VolumeClaim: spec.VolumeClaim, Key: spec.Key, BucketDir: spec.BucketDir, Running: true, Created: j.Now(),
	}, nil
}

// jobOptions returns the complete configuration of a storage job's container.
func (j *Jobs) jobOptions(spec runtime.JobSpec, name, image string, snapshot home.Snapshot) client.ContainerCreateOptions {
	labels := j.Labels(engine.RoleJob, spec.Workspace, spec.Claim)
	labels[engine.LabelKind] = string(spec.Kind)
	labels[engine.LabelVolume] = spec.VolumeClaim
	labels[engine.LabelKey] = spec.Key
	if spec.BucketDir != "" {
		labels[engine.LabelBucket] = spec.BucketDir
	}
	var env []string
	if snapshot.Path != "" {
		env = []string{runtime.JobSnapshotAt + "=" + snapshot.At.UTC().Format(time.RFC3339Nano)}
	}
	return helper.Confined{
		Name: name, Image: image, Entrypoint: []string{"/codehub", runtime.JobCommand}, Env: env,
		Labels: labels, Caps: jobCaps(), Mounts: j.jobMounts(spec, spec.Kind == runtime.JobRestore || spec.Kind == runtime.JobDrill, snapshot),
		Limits: j.limits(spec.Kind), Stdin: true,
	}.Options()
}

// jobCaps returns a job's capabilities: reading and writing files of any owner in
// its mounts. DAC_READ_SEARCH would suffice for reading, but it allows opening any
// file on the volume's disk by its handle.
func jobCaps() []string {
	// An archive job has the home read-only, and tries in its scratch directory
	// what a restore would do.
	return []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETFCAP"}
}

// liveHomeDir is where a job has the home whose snapshot it reads.
const liveHomeDir = "/home-live"

// jobMounts has the home itself next to a snapshot of it, so that Docker lists the job among the users of
// the home.
func (j *Jobs) jobMounts(spec runtime.JobSpec, restore bool, snapshot home.Snapshot) []mount.Mount {
	mounts := []mount.Mount{j.homeMount(spec, !restore)}
	if snapshot.Path != "" {
		mounts[0].Target = liveHomeDir
		mounts = append(mounts, mount.Mount{
			Type: mount.TypeBind, Source: filepath.Join(filepath.Dir(j.homes.HostPath(spec.Workspace)), filepath.Base(snapshot.Path)),
			Target: runtime.JobHomeDir, ReadOnly: true,
		})
	}
	if hasScratch(spec) {
		scratch := j.scratchMount(spec)
		scratch.ReadOnly = restore
		mounts = append(mounts, scratch)
	}
	if spec.ObjectDir != "" {
		mounts = append(mounts, mount.Mount{
			Type: mount.TypeBind, Source: filepath.Clean(spec.ObjectDir), Target: runtime.JobObjectDir, ReadOnly: restore,
		})
	}
	if spec.BucketDir != "" {
		// Mount the directory and not the socket, because a restarted server
		// creates a new socket.
		mounts = append(mounts, mount.Mount{
			Type: mount.TypeBind, Source: filepath.Clean(spec.BucketDir), Target: runtime.JobBucketDir, ReadOnly: true,
		})
	}
	return mounts
}

func (j *Jobs) homeMount(spec runtime.JobSpec, readOnly bool) mount.Mount {
	switch {
	case !hasHome(spec.Kind):
		return j.anonymous(spec, runtime.JobHomeDir)
	case spec.Storage == workspace.StorageLocalDir:
		return mount.Mount{Type: mount.TypeBind, Source: j.homes.HostPath(spec.Workspace), Target: runtime.JobHomeDir, ReadOnly: readOnly}
	}
	return j.homes.VolumeMount(spec.Workspace, runtime.JobHomeDir, engine.RandomHex(8), readOnly)
}

// anonymous is an empty volume that is removed with the job.
func (j *Jobs) anonymous(spec runtime.JobSpec, target string) mount.Mount {
	return mount.Mount{
		Type: mount.TypeVolume, Target: target,
		VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: j.Labels(engine.RoleScratch, spec.Workspace, spec.Claim)},
	}
}

func hasScratch(spec runtime.JobSpec) bool {
	switch spec.Kind {
	case runtime.JobArchive, runtime.JobBackup:
		return true
	case runtime.JobRestore:
		return spec.SharesDisk
	}
	return false
}

// scratchMount is an empty directory on the file system of the home: an anonymous
// volume, which is removed with the container, or for a local-dir home a directory
// next to it, which is removed with the home.
func (j *Jobs) scratchMount(spec runtime.JobSpec) mount.Mount {
	if spec.Storage == workspace.StorageLocalDir {
		return mount.Mount{
			Type: mount.TypeBind, Source: filepath.Join(filepath.Dir(j.homes.HostPath(spec.Workspace)), scratchName), Target: runtime.JobScratchDir,
		}
	}
	return j.anonymous(spec, runtime.JobScratchDir)
}

// scratchName is a directory next to the home. It is not in the trash, which is
// emptied while jobs may run.
const scratchName = ".scratch"

// makeScratch creates the directory that scratchMount mounts.
func (j *Jobs) makeScratch(spec runtime.JobSpec) error {
	if !hasScratch(spec) || spec.Storage != workspace.StorageLocalDir {
		return nil
	}
	err := os.Mkdir(filepath.Join(filepath.Dir(j.homes.Path(spec.Workspace)), scratchName), 0o700)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the scratch folder of a storage job: %w", err)
	}
	return nil
}

// RemoveJob implements runtime.Runtime. It keeps the job that restored a home which
// is not settled yet, without an error.
func (j *Jobs) RemoveJob(ctx context.Context, jobID string) error {
	found, err := j.API.ContainerInspect(ctx, jobID, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return engine.WrapError(ctx, "inspect storage job", err)
	}
	c := found.Container
	if c.ID != jobID || !j.Owns(c.Config.Labels, engine.RoleJob) {
		return fmt.Errorf("container %s is not a storage job of this installation", jobID)
	}
	job := helper.Job(c)
	unlock, err := j.lock(ctx, job.Kind, job.Workspace)
	if err != nil {
		return err
	}
	defer unlock()
	if !job.Running {
		keeps, err := j.homes.KeepsHome(ctx, job)
		if err != nil || keeps {
			return err
		}
	}
	_, err = j.API.ContainerRemove(ctx, jobID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	switch {
	case err == nil || errdefs.IsNotFound(err):
	case errdefs.IsConflict(err):
		if err := j.AwaitRemoval(ctx, jobID); err != nil {
			return err
		}
	default:
		return engine.WrapError(ctx, "remove storage job", err)
	}
	for _, m := range c.Mounts {
		if m.Destination == runtime.JobHomeDir && job.Kind == runtime.JobBackup {
			j.homes.RemoveSnapshot(filepath.Join(j.homes.Folder(job.Workspace), filepath.Base(m.Source)))
		}
	}
	return nil
}

// FollowJob implements runtime.Runtime. Each line is delivered once, without its
// end, and is valid until line returns. If Docker ends the log early, it is opened
// again. An incomplete last line is dropped.
func (j *Jobs) FollowJob(ctx context.Context, jobID string, line func([]byte)) (int, error) {
	code, _, err := j.helper.Follow(ctx, engine.RoleJob, jobID, line)
	return code, err
}
