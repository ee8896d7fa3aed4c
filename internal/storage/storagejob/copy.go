package storagejob

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"codehub/internal/archive"
	"codehub/internal/runtime"
)

// CopyReport is one line of a copy's output: its progress or, in the last line,
// its result.
type CopyReport = runtime.CopyReport

// CopyMain runs `codehub copy-home` and returns the exit code.
func CopyMain() int {
	ctx, stop := untilSignal()
	defer stop()
	if err := Copy(ctx, runtime.CopyFromDir, runtime.CopyToDir, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return ExitFailed
	}
	return ExitOK
}

// Copy copies the home in from into the empty folder to: owners, modes, times, links,
// attributes and ACLs included. It syncs the copy and compares the digests of both; the copy is
// complete only if the error is nil. Sockets, FIFOs and devices are not copied. It writes
// progress and the result to out, one JSON object per line.
func Copy(ctx context.Context, from, to string, out io.Writer) error {
	lines := json.NewEncoder(out)
	progress := func(step string) archive.Progress {
		return func(bytes, entries int64) {
			_ = lines.Encode(CopyReport{Step: step, Bytes: bytes, Entries: entries}) // there may be no reader
		}
	}
	if err := archive.Copy(ctx, from, to, progress(runtime.StepCopying)); err != nil {
		return fmt.Errorf("copy the home: %w", err)
	}
	// The source is read last, so that a change during the copy shows.
	copied, stats, err := archive.Digest(ctx, to, progress(runtime.StepVerifying))
	if err != nil {
		return fmt.Errorf("read the copy: %w", err)
	}
	original, _, err := archive.Digest(ctx, from, progress(runtime.StepVerifying))
	if err != nil {
		return fmt.Errorf("read the home again: %w", err)
	}
	if copied != original {
		return fmt.Errorf("the copy (%s) differs from the home (%s)", copied, original)
	}
	if err := lines.Encode(CopyReport{Done: true, Bytes: stats.Bytes, Entries: stats.Entries, Digest: copied}); err != nil {
		return fmt.Errorf("report the copy: %w", err)
	}
	return nil
}
