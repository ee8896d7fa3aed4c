package storagejob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"codehub/internal/archive"
	"codehub/internal/runtime"
)

// Dirs are where a job finds what it works on.
type Dirs struct {
	Home   string // the home, read-only for an archive
	Object string // the folder of the one archive, for a folder store
	Bucket string // the folder of the bucket's socket, for S3
}

// errStopped is why a job ends that was told to.
var errStopped = errors.New("the job was told to end")

// Main is `codehub storage-job`: it returns the exit code.
func Main() int {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-signals
		cancel(errStopped)
		// For cleaning up. What is left then is swept by the server.
		time.Sleep(2 * time.Second)
		os.Exit(ExitFailed)
	}()
	return Run(ctx, os.Stdin, os.Stdout, Dirs{Home: runtime.JobHomeDir, Object: runtime.JobObjectDir, Bucket: runtime.JobBucketDir})
}

// Run carries out the one job that is described on in, reports on out, a JSON
// object a line, and returns the exit code. If ctx ends, so does the job.
func Run(ctx context.Context, in io.Reader, out io.Writer, dirs Dirs) int {
	return run(ctx, in, out, dirs, func(string) {})
}

// run calls stage whenever the job is about to begin a further stage.
func run(ctx context.Context, in io.Reader, out io.Writer, dirs Dirs, stage func(string)) int {
	r := newReporter(out)
	spec, err := readOrders(ctx, in)
	j := &job{Dirs: dirs, spec: spec, report: r, stage: stage}
	var stats archive.Stats
	switch {
	case err != nil:
	case spec.Kind == string(runtime.JobArchive):
		r.start(runtime.StepPacking, 0, 0)
		stats, err = j.archive(ctx)
	default:
		r.start(runtime.StepUnpacking, spec.Meta.Bytes, spec.Meta.Entries)
		stats, err = j.restore(ctx)
	}
	result := Result{Claim: spec.Claim, Kind: spec.Kind, Stats: stats}
	if err != nil {
		result.Stats = archive.Stats{}
		result.Error = &Error{Kind: kindOf(ctx, err), Message: err.Error()}
	}
	r.finish(result)
	switch {
	case err == nil:
		return ExitOK
	case result.Error.Kind == NoOrders:
		return ExitNoOrders
	}
	return ExitFailed
}

// job is one job under way.
type job struct {
	Dirs
	spec   Spec
	report *reporter
	stage  func(string)
}

// kindOf sorts an error by what is to be done about it. What is the bucket's
// fault comes first: a disk that is full may be the bucket's own, and half of
// an archive looks damaged.
func kindOf(ctx context.Context, err error) ErrorKind {
	switch {
	case errors.Is(err, errNoOrders):
		return NoOrders
	case ctx.Err() != nil:
		return Stopped
	case errors.Is(err, archive.ErrUnavailable):
		return Unavailable
	case errors.Is(err, archive.ErrNotFound):
		return NotFound
	case errors.Is(err, archive.ErrCorrupted):
		return Corrupted
	case errors.Is(err, archive.ErrChanged):
		return Changed
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
