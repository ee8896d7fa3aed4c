package storagejob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"golang.org/x/sys/unix"

	"codehub/internal/archive"
	"codehub/internal/runtime"
	"codehub/internal/storage/encryption"
	"codehub/internal/storage/store"
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

// noRoom is an archive that does not fit on the disk of the archives.
type noRoom struct{ Room }

func (e *noRoom) Error() string {
	return fmt.Sprintf("the disk of the archives is full: the archive needs %d bytes, and %d bytes are available", e.Needs, e.Free)
}

func (e *noRoom) Unwrap() error { return store.ErrUnavailable }

// archiveRoom returns how many bytes an archive may take of its disk.
func (j *job) archiveRoom() (int64, error) {
	bytes, inodes, err := headroom(j.Object, j.spec.MinFree)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	if inodes <= 0 {
		bytes = 0
	}
	return max(0, bytes), nil
}

// besides is space for the .meta and for the file system's own records of an archive.
const besides = 64 << 10

// fits returns an error if the archive does not fit on its disk, before anything is written there. Only
// packing tells the size of an archive: a home that may not fit is packed once without being stored.
func (j *job) fits(ctx context.Context) error {
	left, err := j.archiveRoom()
	if err != nil {
		return err
	}
	if left > 0 && j.fitsSurely(ctx, left) {
		return nil
	}
	j.report.next(runtime.StepMeasuring)
	stats, err := archive.Pack(ctx, j.Home, io.Discard, j.packOptions())
	if err != nil {
		return err
	}
	if left, err = j.archiveRoom(); err != nil {
		return err
	}
	needs := stats.Size + besides
	if j.spec.Recipient != "" {
		needs = encryption.Size(stats.Size) + besides
	}
	if needs > left {
		return &noRoom{Room{Needs: needs, Free: left}}
	}
	j.report.next(runtime.StepPacking)
	return nil
}

// fitsSurely reports whether an archive of the home takes at most left bytes even if nothing of it
// can be compressed. If the used space of its disk does not show that, it counts the home.
func (j *job) fitsSurely(ctx context.Context, left int64) bool {
	var st unix.Statfs_t
	if err := unix.Statfs(j.Home, &st); err == nil && !sharesBlocks(&st) {
		if used := int64(st.Blocks-st.Bfree) * st.Bsize; used+used/8+besides <= left {
			return true
		}
	}
	j.report.next(runtime.StepMeasuring)
	c, err := archive.Measure(ctx, j.Home, func(m archive.Measurement) error {
		j.report.progress(0, m.Entries)
		return nil
	})
	if err != nil {
		return false // to pack it gives the error
	}
	j.report.total(c.Bytes, c.Entries)
	if c.Bytes+c.Bytes/8+c.Entries*4096+besides > left {
		return false
	}
	j.report.next(runtime.StepPacking)
	return true
}

// reservedReader reads what is written to the disk of the archives, and fails with noRoom when too
// little space is left: others fill the disk, too.
type reservedReader struct {
	io.Reader
	left  func() (int64, error)
	read  int64
	until int64 // bytes until the next check
}

func (f *reservedReader) Read(p []byte) (int, error) {
	if f.until <= 0 {
		left, err := f.left()
		if err == nil && left <= 0 {
			err = f.full()
		}
		if err != nil {
			return 0, err
		}
		f.until = min(max(left/2, checkAtLeast), checkAtMost)
	}
	n, err := f.Reader.Read(p[:min(int64(len(p)), f.until)])
	f.until -= int64(n)
	f.read += int64(n)
	return n, err
}

// full is the error of a disk that became full: what was written is free again then, and was not
// enough.
func (f *reservedReader) full() error {
	return &noRoom{Room{Needs: f.read + checkAtLeast, Free: f.read}}
}

// intoFolder stores an archive in a folder.
func (j *job) intoFolder(ctx context.Context, folder *store.Folder, key string, r io.Reader) (int64, error) {
	reserved := &reservedReader{Reader: r, left: j.archiveRoom}
	n, err := folder.Put(ctx, key, reserved)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		err = fmt.Errorf("%w: %w", reserved.full(), err)
	}
	return n, err
}

// FolderRoom returns how many bytes archives may take of the disk of a folder while the share least
// of it stays free.
func FolderRoom(dir string, least float64) (int64, error) {
	j := job{Dirs: Dirs{Object: dir}, spec: Spec{MinFree: least}}
	return j.archiveRoom()
}
