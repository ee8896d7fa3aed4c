package storagejob

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/archive"
	"codehub/internal/archive/transfer"
)

const (
	// countAfter is how long a job packs before it is worth knowing how much
	// there is.
	countAfter = 3 * time.Second
	// countBatch is how many entries are counted without a pause.
	countBatch = 1024
)

// count finds out how much there is to pack, beside the packing, and reports
// it. It is an estimate, for people: on an error there is none.
func (j *job) count(ctx context.Context) {
	if j.report.get().EntriesTotal > 0 {
		return
	}
	select {
	case <-time.After(countAfter):
	case <-ctx.Done():
		return
	}
	if c, err := countHome(ctx, j.Home, true); err == nil {
		j.report.total(c.Bytes, c.Entries)
	}
}

// fit chooses the parts of an upload by how large the home can be at most.
// What all of its disk holds is known at once; only if that is too much for
// small parts the home is counted.
func (j *job) fit(ctx context.Context, t *transfer.Ticket) {
	var st unix.Statfs_t
	if err := unix.Statfs(j.Home, &st); err != nil {
		return
	}
	small := *t
	small.Fit(0)
	if used := int64(st.Blocks-st.Bfree) * st.Bsize; used+used/8 < small.PartSize*int64(len(t.Parts)) {
		*t = small
		return
	}
	c, err := countHome(ctx, j.Home, false)
	if err != nil {
		return
	}
	j.report.total(c.Bytes, c.Entries)
	// A file system that compresses may say that a file takes less than it
	// holds, and headers come on top.
	t.Fit(c.Bytes + c.Bytes/4 + c.Entries*4096)
}

// countHome counts the entries of a home and the bytes in its files, gently
// with as many pauses as work.
func countHome(ctx context.Context, home string, gently bool) (archive.Measurement, error) {
	if !gently {
		return archive.Measure(ctx, home, nil)
	}
	since := time.Now() // the last pause
	looked := 0
	return archive.Measure(ctx, home, func(archive.Measurement) error {
		if looked++; looked%countBatch != 0 {
			return nil
		}
		select {
		case <-time.After(time.Since(since)):
		case <-ctx.Done():
			return ctx.Err()
		}
		since = time.Now()
		return nil
	})
}
