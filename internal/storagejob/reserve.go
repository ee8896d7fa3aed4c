package storagejob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"golang.org/x/sys/unix"

	"codehub/internal/archive"
	"codehub/internal/archive/store"
)

// headroom returns how many bytes and inodes may be used of dir's disk before less than
// the share least is free; negative: less is free already.
func headroom(dir string, least float64) (bytes, inodes int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0, wrap("read free disk space", err)
	}
	block := int64(st.Frsize)
	inodes = math.MaxInt64 // a file system without a limit
	if st.Files > 0 {
		inodes = int64(st.Ffree) - int64(least*float64(st.Files))
	}
	return int64(st.Bavail)*block - int64(least*float64(st.Blocks)*float64(block)), inodes, nil
}

// reserve is a disk that a restore fills, and the share of it that stays free.
type reserve struct {
	dir    string
	least  float64
	shared bool // it is the disk of Scratch
}

func (j *job) reserves() []reserve {
	all := []reserve{{dir: j.Home, least: j.spec.MinFree}}
	if j.spec.SharedMinFree > 0 {
		all = append(all, reserve{dir: j.Scratch, least: j.spec.SharedMinFree, shared: true})
	}
	return all
}

// errSharedDisk marks the errors of the disk of Scratch.
var errSharedDisk = errors.New("the disk is shared with other homes")

// full returns the error that there is not enough space.
func (r reserve) full(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if r.least > 0 {
		text += fmt.Sprintf(" while %.1f %% stay free", 100*r.least)
	}
	if r.shared {
		return fmt.Errorf("%s: %w: %w", text, errSharedDisk, unix.ENOSPC)
	}
	return fmt.Errorf("%s: %w", text, unix.ENOSPC)
}

// room returns an error if the home does not fit, since a full disk affects
// others.
func (j *job) room() error {
	for _, r := range j.reserves() {
		left, inodes, err := headroom(r.dir, r.least)
		if err != nil {
			return err
		}
		if inodes < j.spec.Meta.Entries {
			return r.full("the home needs %d inodes, and %d inodes of its disk are available", j.spec.Meta.Entries, max(0, inodes))
		}
		if left < j.spec.Meta.Bytes {
			return r.full("the home needs %d bytes, and %d bytes of its disk are available", j.spec.Meta.Bytes, max(0, left))
		}
	}
	return nil
}

// keepReserve returns a context that ends when unpacking leaves less of a disk
// free than required, and the progress function that checks this. Others fill
// the disk too, and a home takes more space than its content.
func (j *job) keepReserve(ctx context.Context) (context.Context, archive.Progress, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	progress := func(bytes, entries int64) {
		j.report.progress(bytes, entries)
		if bytes >= j.spec.Meta.Bytes && entries >= j.spec.Meta.Entries {
			return // no further write happens
		}
		for _, r := range j.reserves() {
			if r.least <= 0 {
				continue
			}
			left, inodes, err := headroom(r.dir, r.least)
			if err == nil && min(left, inodes) < 0 {
				err = r.full("the disk became full in the meantime")
			}
			if err != nil {
				cancel(err)
			}
		}
	}
	return ctx, progress, func() { cancel(nil) }
}

const (
	// checkAtMost and checkAtLeast bound how much of an archive is written before
	// its disk is checked again.
	checkAtMost  = 64 << 20
	checkAtLeast = 1 << 20
)

// reservedReader reads what is written to a disk, and fails like an unavailable bucket
// when too little space is left.
type reservedReader struct {
	io.Reader
	left  func() (int64, error) // see headroom
	until int64                 // bytes until the next check
}

func (f *reservedReader) Read(p []byte) (int, error) {
	if f.until <= 0 {
		left, err := f.left()
		if err == nil && left <= 0 {
			err = errors.New("the disk of the archives is full")
		}
		if err != nil {
			return 0, fmt.Errorf("%w: %w", store.ErrUnavailable, err)
		}
		f.until = min(max(left/2, checkAtLeast), checkAtMost)
	}
	n, err := f.Reader.Read(p[:min(int64(len(p)), f.until)])
	f.until -= int64(n)
	return n, err
}

// intoFolder stores an archive in a folder and reports a full disk as such.
func (j *job) intoFolder(ctx context.Context, folder *store.Folder, key string, r io.Reader) (int64, error) {
	if j.spec.MinFree > 0 {
		r = &reservedReader{Reader: r, left: func() (int64, error) {
			bytes, inodes, err := headroom(j.Object, j.spec.MinFree)
			if inodes <= 0 {
				bytes = 0
			}
			return bytes, err
		}}
	}
	n, err := folder.Put(ctx, key, r)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		err = fmt.Errorf("the disk of the archives is full: %w", err)
	}
	return n, err
}
