package storagejob

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/archive"
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
		j.report.total(c.bytes, c.entries)
	}
}

// fit chooses the parts of an upload by how large the home can be at most.
// What all of its disk holds is known at once; only if that is too much for
// small parts the home is counted.
func (j *job) fit(ctx context.Context, t *archive.Ticket) {
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
	j.report.total(c.bytes, c.entries)
	// A file system that compresses may say that a file takes less than it
	// holds, and headers come on top.
	t.Fit(c.bytes + c.bytes/4 + c.entries*4096)
}

// counter counts what an archive of a home will have.
type counter struct {
	ctx            context.Context
	gently         bool
	bytes, entries int64
	since          time.Time // the last pause
}

// countHome counts the entries of a home and the bytes in its files, gently
// with as many pauses as work.
func countHome(ctx context.Context, home string, gently bool) (*counter, error) {
	f, err := openFolder(unix.AT_FDCWD, home)
	if err != nil {
		return nil, err
	}
	c := &counter{ctx: ctx, gently: gently, since: time.Now()}
	return c, c.folder(f)
}

// openFolder opens a folder without a trace of it, where it may.
func openFolder(dir int, name string) (*os.File, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(dir, name, flags|unix.O_NOATIME, 0)
	if errors.Is(err, unix.EPERM) { // only its owner and root may ask that
		fd, err = unix.Openat(dir, name, flags, 0)
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (c *counter) folder(f *os.File) error {
	defer f.Close()
	c.entries++
	for {
		list, err := f.ReadDir(countBatch)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, d := range list {
			if err := c.child(int(f.Fd()), d); err != nil {
				return err
			}
		}
	}
}

func (c *counter) child(dir int, d os.DirEntry) error {
	if err := c.pause(); err != nil {
		return err
	}
	switch {
	case d.IsDir():
		f, err := openFolder(dir, d.Name())
		if err != nil {
			return err
		}
		return c.folder(f)
	case d.Type().IsRegular():
		var st unix.Stat_t
		if err := unix.Fstatat(dir, d.Name(), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		c.entries++
		// Holes are not stored, and of several names of a file one is.
		c.bytes += min(st.Size, st.Blocks*512) / int64(max(st.Nlink, 1))
	case d.Type()&os.ModeSymlink != 0:
		c.entries++
	}
	return nil
}

// pause rests for as long as the batch before took.
func (c *counter) pause() error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	if !c.gently || c.entries%countBatch != 0 {
		return nil
	}
	select {
	case <-time.After(time.Since(c.since)):
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
	c.since = time.Now()
	return nil
}
