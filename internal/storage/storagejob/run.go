package storagejob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"syscall"
	"time"

	"codehub/internal/archive"
	"codehub/internal/runtime"
	"codehub/internal/storage/store"
	"codehub/internal/storage/transfer"
	"codehub/internal/workspace"
)

// Dirs are the folders of a job.
type Dirs struct {
	Home   string // the home, read-only for an archive
	Object string // the archive's folder, for a folder store
	Bucket string // the folder of the bucket's socket, for S3; empty: the URLs' hosts are reached over the network

	// Scratch is an empty folder on the file system of the homes, for an
	// archive (archive.PackOptions), and for a restore with SharedMinFree. Empty:
	// no trial restores.
	Scratch string

	// SnapshotAt is the time of the snapshot that Home is; zero: it is the home itself.
	SnapshotAt time.Time

	// Backoff is about the pause before the second request to the bucket; it
	// doubles for each further one. 0: 3 s.
	Backoff time.Duration
}

// errStopped is the cause of a job's end after a signal.
var errStopped = errors.New("the job was stopped")

// Main runs `codehub storage-job` and returns the exit code.
func Main() int {
	ctx, stop := untilSignal()
	defer stop()
	j := newJob(os.Stdout, Mounted())
	j.lower = lowerPriority
	return j.run(ctx, os.Stdin)
}

// Mounted returns the folders of a job at their mount points. A job without the folder of the
// bucket's socket has a network.
func Mounted() Dirs {
	d := Dirs{Home: runtime.JobHomeDir, Object: runtime.JobObjectDir, Bucket: runtime.JobBucketDir, Scratch: runtime.JobScratchDir}
	if _, err := os.Stat(d.Bucket); errors.Is(err, fs.ErrNotExist) {
		d.Bucket = ""
	}
	d.SnapshotAt, _ = time.Parse(time.RFC3339Nano, os.Getenv(runtime.JobSnapshotAt))
	return d
}

// cleanUpWithin is how long a job may clean up after a signal; the server
// sweeps what is left.
const cleanUpWithin = 2 * time.Second

// untilSignal returns a context that ends at a signal. The process exits a
// little later in any case: the first process of a container has no default
// handler for signals.
func untilSignal() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		select {
		case <-signals:
			cancel(errStopped)
			time.Sleep(cleanUpWithin)
			os.Exit(ExitFailed)
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// Run reads one job from in, carries it out, reports to out, one JSON object
// per line, and returns the exit code. The job ends with ctx.
func Run(ctx context.Context, in io.Reader, out io.Writer, dirs Dirs) int {
	return newJob(out, dirs).run(ctx, in)
}

// job is a running job.
type job struct {
	Dirs
	spec   Spec
	report *reporter
	stage  func(string)   // called when a stage begins
	lower  func()         // lowers the priority of the process
	made   *Made          // of a backup
	pacer  *archive.Pacer // nil: a user may be waiting
}

func newJob(out io.Writer, dirs Dirs) *job {
	return &job{Dirs: dirs, report: newReporter(out), stage: func(string) {}, lower: func() {}}
}

func (j *job) run(ctx context.Context, in io.Reader) int {
	spec, err := readOrders(ctx, in)
	j.spec = spec
	var stats archive.Stats
	switch {
	case err != nil:
	case spec.Kind == string(runtime.JobArchive):
		j.report.start(runtime.StepPacking, 0, 0)
		stats, err = j.archive(ctx)
	case spec.Kind == KindFingerprint:
		j.report.start(runtime.StepVerifying, 0, 0)
		stats, err = j.fingerprint(ctx)
	case spec.Kind == string(runtime.JobBackup):
		j.lower()
		if spec.Generation.Paced {
			j.pacer = &archive.Pacer{}
		}
		j.report.start(runtime.StepPacking, 0, 0)
		if j.made, err = j.backup(ctx); err == nil {
			stats = archive.Stats{Entries: j.made.Entries, Files: j.made.Files, Bytes: j.made.Bytes, Skipped: j.made.Skipped, Size: j.made.Size, SHA256: j.made.Digest}
		}
	case spec.Kind == string(runtime.JobDrill):
		j.lower()
		j.pacer = &archive.Pacer{}
		j.report.start(runtime.StepUnpacking, spec.Meta.Bytes, spec.Meta.Entries)
		stats, err = j.drill(ctx)
	default:
		j.report.start(runtime.StepUnpacking, spec.Meta.Bytes, spec.Meta.Entries)
		stats, err = j.restore(ctx)
	}
	result := Result{Claim: spec.Claim, Kind: spec.Kind, Stats: stats, Made: j.made}
	if err != nil {
		result.Stats, result.Made = archive.Stats{}, nil
		result.Error = &Error{Kind: kindOf(ctx, err), Message: workspace.Cut(err.Error())}
		if full := (*noRoom)(nil); errors.As(err, &full) {
			result.Error.Room = &full.Room
		}
	}
	j.report.finish(result)
	switch {
	case err == nil:
		return ExitOK
	case result.Error.Kind == NoOrders:
		return ExitNoOrders
	}
	return ExitFailed
}

// kindOf classifies an error. Errors of the bucket come first: a full disk may
// be the bucket's, and a partial archive looks damaged.
func kindOf(ctx context.Context, err error) ErrorKind {
	switch {
	case errors.Is(err, errNoOrders):
		return NoOrders
	case ctx.Err() != nil:
		return Stopped
	case errors.Is(err, errMorePacks):
		return MorePacks
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, io.ErrShortWrite):
		return Unavailable
	case errors.Is(err, store.ErrNotFound):
		return NotFound
	case errors.Is(err, archive.ErrCorrupted):
		return Corrupted
	case errors.Is(err, archive.ErrChanged):
		return Changed
	case errors.Is(err, archive.ErrUnrestorable), errors.Is(err, transfer.ErrTooLarge):
		return Unrestorable
	case errors.Is(err, errSharedDisk):
		return SharedDiskFull
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return DiskFull
	}
	return Failed
}

func wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}
