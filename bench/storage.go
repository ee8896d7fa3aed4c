package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"codehub/internal/archive"
	"codehub/internal/runtime"
	"codehub/internal/runtime/docker"
	"codehub/internal/storage/bucket"
	"codehub/internal/storage/storagejob"
	"codehub/internal/storage/store"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/workspace"
)

// storage archives and restores as the server does, with storage jobs and a
// bucket in a folder but without a database. It also runs the rival.
type storage struct {
	runtime      *docker.Runtime
	bucket       *bucket.Bucket
	api          *client.Client
	installation string
	dir          string // the bucket, and the rival's archives
	n            int

	text  []byte // result of sourceText
	count int    // number of the rival's archives
}

func newStorage(ctx context.Context, o options) (*storage, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("the benchmark writes to Docker's volumes: run it as root")
	}
	s := &storage{installation: uuid.NewString(), n: o.n}
	var err error
	if s.dir, err = os.MkdirTemp("", "codehub-bench-archives-"); err != nil {
		return nil, err
	}
	if err := s.open(ctx, o.binary); err != nil {
		s.close(ctx)
		return nil, err
	}
	return s, nil
}

func (s *storage) open(ctx context.Context, binary string) error {
	var err error
	if s.api, err = client.New(client.FromEnv); err != nil {
		return err
	}
	s.runtime, err = docker.New(ctx, docker.Config{Installation: s.installation, HelperBinary: binary, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	folder := filepath.Join(s.dir, "bucket")
	s.bucket, err = bucket.New(bucket.Config{
		Store: store.NewFolder(folder), Folder: folder, HostFolder: folder,
		Installation: s.installation, Version: "bench",
	})
	if err != nil {
		return err
	}
	if err := s.bucket.Check(ctx, false); err != nil {
		return err
	}
	s.text, err = sourceText(ctx)
	return err
}

func (s *storage) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Minute) // removing this much may be slow
	defer cancel()
	if s.runtime != nil {
		s.runtime.Close()
	}
	if s.api != nil {
		if err := proc.Sweep(ctx, s.api, s.installation); err != nil {
			fmt.Fprintln(os.Stderr, "bench: clean up in Docker:", err)
		}
		s.api.Close()
	}
	if err := os.RemoveAll(s.dir); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
	}
}

// home is a volume with the row of its workspace.
type home struct {
	row   workspace.Workspace
	claim string
	dir   string // the volume's folder on this machine
}

// newVolume creates an empty home.
func (s *storage) newVolume(ctx context.Context) (*home, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	h := &home{claim: uuid.NewString(), row: workspace.Workspace{
		ID: workspace.ID(id.String()), Name: "bench", StorageBackend: workspace.StorageDockerVolume,
	}}
	err = s.runtime.CreateEmptyVolume(ctx, runtime.VolumeSpec{Workspace: h.row.ID, Storage: h.row.StorageBackend, Claim: h.claim})
	if err != nil {
		return nil, err
	}
	v, err := s.api.VolumeInspect(ctx, h.row.ID.VolumeName(), client.VolumeInspectOptions{})
	if err != nil {
		return nil, err
	}
	h.dir = v.Volume.Mountpoint
	if _, err := os.Stat(h.dir); err != nil {
		return nil, fmt.Errorf("find the folder of a Docker volume on this machine: %w", err)
	}
	return h, nil
}

func (s *storage) newHome(ctx context.Context, fill func(dir string) error) (*home, error) {
	h, err := s.newVolume(ctx)
	if err != nil {
		return nil, err
	}
	if err := fill(h.dir); err != nil {
		return nil, fmt.Errorf("fill a home: %w", err)
	}
	return h, os.Lchown(h.dir, workspaceUser, workspaceUser)
}

// archived is the result of archiving a home.
type archived struct {
	stored time.Duration // until the job has ended
	done   time.Duration // until the archive is read back
	usage  usage         // of the job
	meta   *archive.Meta
	key    string
}

// archive runs the steps of the controller up to the removal of the volume.
func (s *storage) archive(ctx context.Context, h *home) (archived, error) {
	row := h.row
	row.OpID = uuid.NewString()
	a := archived{key: s.bucket.Key(row.ID, row.OpID)}
	spec := runtime.JobSpec{
		Workspace: row.ID, Claim: row.OpID, Kind: runtime.JobArchive, Storage: row.StorageBackend, VolumeClaim: h.claim, Key: a.key,
	}
	begun := time.Now()
	if err := s.bucket.ArchiveJob(ctx, row, "bench", &spec); err != nil {
		return a, err
	}
	result, job, used, err := s.runJob(ctx, spec)
	if err != nil {
		return a, err
	}
	a.stored, a.usage = time.Since(begun), used
	if a.meta, err = s.bucket.ReadBack(ctx, a.key, result.Stats, nil); err != nil {
		return a, err
	}
	a.done = time.Since(begun)
	return a, s.runtime.RemoveJob(ctx, job)
}

// restore restores an archive into a new home. It returns the time until
// everything is synced.
func (s *storage) restore(ctx context.Context, from archived) (time.Duration, usage, error) {
	h, err := s.newVolume(ctx)
	if err != nil {
		return 0, usage{}, err
	}
	unix.Sync()
	row := h.row
	// The row has the workspace id of the archive's .meta, because the restore
	// checks it.
	row.ID, row.OpID, row.ArchiveKey = workspace.ID(from.meta.WorkspaceID), uuid.NewString(), from.key
	spec := runtime.JobSpec{
		Workspace: h.row.ID, Claim: row.OpID, Kind: runtime.JobRestore, Storage: row.StorageBackend, VolumeClaim: h.claim, Key: from.key,
	}
	begun := time.Now()
	if err := s.bucket.RestoreJob(ctx, row, from.meta, &spec); err != nil {
		return 0, usage{}, err
	}
	_, _, used, err := s.runJob(ctx, spec)
	return time.Since(begun), used, err
}

// runJob runs a storage job and returns its result, id and usage.
func (s *storage) runJob(ctx context.Context, spec runtime.JobSpec) (result storagejob.Result, id string, used usage, err error) {
	job, err := s.runtime.StartJob(ctx, spec, nil)
	if err != nil {
		return result, "", used, err
	}
	watched := s.watchUsage(ctx, job.ID)
	ended := false
	exit, err := s.runtime.FollowJob(ctx, job.ID, func(line []byte) {
		var e storagejob.Event
		if json.Unmarshal(line, &e) == nil && e.Result != nil {
			result, ended = *e.Result, true
		}
	})
	used = watched()
	switch {
	case err != nil:
	case !ended:
		err = fmt.Errorf("the job ended with code %d and without a result", exit)
	case result.Error != nil:
		err = fmt.Errorf("the job failed: %s", result.Error.Message)
	}
	return result, job.ID, used, err
}

// usage is the resource usage of a process, as sampled.
type usage struct {
	peak int64         // memory without mapped files, which are page cache, bytes
	cpu  time.Duration // user and system
}

// watchUsage samples the usage of a job until the returned function is called,
// which returns it.
func (s *storage) watchUsage(ctx context.Context, id string) func() usage {
	stop, done := make(chan struct{}), make(chan struct{})
	var seen usage
	go func() {
		defer close(done)
		c, err := s.api.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
		if err != nil || c.Container.State.Pid == 0 {
			return
		}
		pid := c.Container.State.Pid
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			high, err := memoryOf(pid, "VmHWM:")
			if files, failed := memoryOf(pid, "RssFile:"); err == nil && failed == nil {
				seen.peak = max(seen.peak, high-files)
			}
			if cpu, err := cpuTime(pid); err == nil {
				seen.cpu = max(seen.cpu, cpu)
			}
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	}()
	return func() usage {
		close(stop)
		<-done
		return seen
	}
}

// tarball is the rival's archive of a home.
type tarball struct {
	path      string
	took, cpu time.Duration
	size      int64
}

// tar packs a home with tar and zstd.
func (s *storage) tar(ctx context.Context, h *home) (tarball, error) {
	s.count++
	t := tarball{path: filepath.Join(s.dir, fmt.Sprintf("rival-%d.tar.zst", s.count))}
	var err error
	if t.took, t.cpu, err = shell(ctx, `tar -c -C "$0" . | zstd -q -T0 -3 -o "$1" && sync`, h.dir, t.path); err != nil {
		return t, err
	}
	st, err := os.Stat(t.path)
	if err == nil {
		t.size = st.Size()
	}
	return t, err
}

// untar unpacks a tarball into a new home.
func (s *storage) untar(ctx context.Context, t tarball) (took, cpu time.Duration, err error) {
	h, err := s.newVolume(ctx)
	if err != nil {
		return 0, 0, err
	}
	unix.Sync()
	return shell(ctx, `zstd -q -dc "$0" | tar -x -C "$1" && sync`, t.path, h.dir)
}

// shell runs a script and returns its time and its processor time.
func shell(ctx context.Context, script string, args ...string) (took, cpu time.Duration, err error) {
	cmd := exec.CommandContext(ctx, "bash", append([]string{"-c", "set -o pipefail; " + script}, args...)...)
	begun := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, 0, fmt.Errorf("%s: %w: %s", script, err, out)
	}
	return time.Since(begun), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}
