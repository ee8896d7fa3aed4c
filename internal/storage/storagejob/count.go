package storagejob

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/archive"
	"codehub/internal/storage/transfer"
)

const (
	// countAfter is how long a job packs before it counts the home.
	countAfter = 3 * time.Second
	// countBatch is the number of entries counted without a pause.
	countBatch = 1024
)

// count estimates the home's size while it is packed, and reports it for the
// progress display. On an error it reports nothing.
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

// fit chooses the part size of an upload by the largest possible size of the
// home: the used space of its disk or, if that is too much for small parts or
// may be less than the home, a count.
func (j *job) fit(ctx context.Context, t *transfer.Ticket) {
	var st unix.Statfs_t
	if err := unix.Statfs(j.Home, &st); err != nil {
		return
	}
	small := *t
	small.Fit(0)
	if used := int64(st.Blocks-st.Bfree) * st.Bsize; !sharesBlocks(&st) && used+used/8 < small.PartSize*int64(len(t.Parts)) {
		*t = small
		return
	}
	c, err := countHome(ctx, j.Home, false)
	if err != nil {
		return
	}
	j.report.total(c.Bytes, c.Entries)
	// A compressing file system may report less space than a file's size, and
	// headers add to it.
	t.Fit(c.Bytes + c.Bytes/4 + c.Entries*4096)
}

// sharesBlocks reports whether files of this file system may share blocks, as copies do on
// XFS and btrfs. They may have more bytes than the disk then.
func sharesBlocks(st *unix.Statfs_t) bool {
	return st.Type != unix.EXT4_SUPER_MAGIC && st.Type != unix.TMPFS_MAGIC
}

// countHome counts the entries of a home and the bytes in its files. If gently,
// it pauses for as long as it works.
func countHome(ctx context.Context, home string, gently bool) (archive.Measurement, error) {
	if !gently {
		return archive.Measure(ctx, home, nil)
	}
	since := time.Now() // the last pause
	counted := 0
	return archive.Measure(ctx, home, func(archive.Measurement) error {
		if counted++; counted%countBatch != 0 {
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
