package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"sync"

	"golang.org/x/sys/unix"
)

// UnpackOptions configure Unpack.
type UnpackOptions struct {
	// Expect is the archive's .meta. An archive that exceeds its figures is
	// refused as soon as that shows.
	Expect *Meta
	// MaxBytes and MaxEntries limit what is unpacked without Expect; 0: no
	// limit.
	MaxBytes, MaxEntries int64
	Progress             Progress
	Pacer                *Pacer // of the writing of large files; nil: none
}

// limits returns the limits of the options or of Expect.
func (o UnpackOptions) limits() (bytes, entries int64) {
	bytes, entries = math.MaxInt64, math.MaxInt64
	if o.MaxBytes > 0 {
		bytes = o.MaxBytes
	}
	if o.MaxEntries > 0 {
		entries = o.MaxEntries
	}
	if o.Expect != nil {
		bytes, entries = min(bytes, o.Expect.Bytes), min(entries, o.Expect.Entries)
	}
	return bytes, entries
}

// Unpack restores the home of an archive into an empty folder, which nothing
// else may access, and syncs it. The home is complete only if the error is nil;
// otherwise the content of dir must be discarded. No archive can change
// anything outside dir: every name is created in a folder that Unpack created
// and holds open. Unpack returns soon after the context ends; a pending read of
// r ends when r is closed.
func Unpack(ctx context.Context, r io.Reader, dir string, opts UnpackOptions) (Stats, error) {
	d, err := newDecompressor(ctx, r)
	if err != nil {
		return Stats{}, err
	}
	defer d.stop()
	return unpack(ctx, d, dir, opts, unix.Syncfs)
}

// tarSource is a tar. size and digest are those of its archive, if it has one, and valid after io.EOF.
type tarSource interface {
	next() ([]byte, error) // never empty, valid until the next call; io.EOF after the last
	size() int64
	digest() string
}

// unpack takes the function that syncs the file system.
func unpack(ctx context.Context, tar tarSource, dir string, opts UnpackOptions, sync func(fd int) error) (Stats, error) {
	root, before, err := openEmpty(dir)
	if err != nil {
		return Stats{}, err
	}
	defer unix.Close(root)
	u := newUnpacker(tar, root, opts)
	u.meter.report, u.pacer = opts.Progress, opts.Pacer
	err = u.run(ctx)
	if finished := u.finish(); err == nil {
		err = finished
	}
	if err != nil {
		return Stats{}, err
	}
	u.Size, u.SHA256 = tar.size(), tar.digest()
	if opts.Expect != nil {
		if err := opts.Expect.matches(u.Stats); err != nil {
			return Stats{}, err
		}
	}
	if u.top.entry == nil {
		if err := unix.Fchmod(root, before.Mode&0o7777); err != nil {
			return Stats{}, fmt.Errorf("set mode of home: %w", err)
		}
	}
	// One call syncs all files and folders. It also reports write errors since
	// the folder was opened.
	if err := sync(root); err != nil {
		return Stats{}, fmt.Errorf("sync home: %w", err)
	}
	u.done()
	return u.Stats, nil
}

// openEmpty opens the folder and sets a mode that keeps other users out.
func openEmpty(dir string) (int, unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, st, fmt.Errorf("open folder to unpack into: %w", err)
	}
	err = isEmpty(fd)
	if err == nil {
		err = fstat(fd, &st)
	}
	if err == nil {
		err = clearAttributes(fd)
	}
	if err != nil {
		unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

func isEmpty(fd int) error {
	b := make([]byte, 4096)
	for {
		n, err := unix.Getdents(fd, b)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("list folder: %w", err)
		case n == 0:
			return nil
		}
		if _, _, names := unix.ParseDirent(b[:n], 1, nil); len(names) > 0 {
			return fmt.Errorf("folder to unpack into is not empty: it contains %q", names[0])
		}
	}
}

const (
	writers     = 4
	writeBehind = 32 // small files that wait for a writer
	flushEvery  = 8 << 20
)

// unpacker creates files from entries. It creates folders, links and large
// files itself, and small files in concurrent writers.
type unpacker struct {
	meter
	maxBytes, maxEntries int64
	tar                  tarReader
	trail                trail
	top                  *target
	owners               OwnerMap
	pacer                *Pacer
	part                 bool // the tar is that of a Part: without the home, it has only PartName

	jobs    [writers]chan *job
	buffers sync.Pool
	pending sync.WaitGroup // running jobs
	running sync.WaitGroup
	mu      sync.Mutex
	err     error // the first error of a job
}

// job is a small file to create.
type job struct {
	dir     *target
	base    string
	entry   *entry
	content *[]byte
}

func newUnpacker(tar tarSource, root int, opts UnpackOptions) *unpacker {
	u := &unpacker{
		tar: tarReader{src: &source{refill: tar.next}},
		top: &target{fd: root},
	}
	u.maxBytes, u.maxEntries = opts.limits()
	u.top.users.Add(1) // never released: the caller closes it
	u.trail = trail{folders: []*target{u.top}, owner: currentOwner(), settle: u.pending.Wait}
	u.buffers.New = func() any { b := make([]byte, 0, smallFile); return &b }
	for i := range u.jobs {
		u.jobs[i] = make(chan *job, writeBehind)
		u.running.Go(func() {
			for j := range u.jobs[i] {
				u.work(j)
			}
		})
	}
	return u
}

func (u *unpacker) run(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := u.failure(); err != nil {
			return err
		}
		e, err := u.tar.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		u.Entries++
		if u.Entries > u.maxEntries {
			return corrupted("more than %d entries", u.maxEntries)
		}
		u.tick()
		u.owners.apply(e)
		if err := u.make(ctx, e); err != nil {
			return fmt.Errorf("unpack %s: %w", quoted(e.name), err)
		}
	}
	return u.trail.leaveAll()
}

// finish waits for the writers and sets the home's mode and times.
func (u *unpacker) finish() error {
	for _, jobs := range u.jobs {
		close(jobs)
	}
	u.running.Wait()
	if err := u.failure(); err != nil || len(u.trail.folders) > 1 {
		u.trail.abandon()
		return err
	}
	if u.top.entry == nil {
		return nil
	}
	if err := u.trail.owner.apply(u.top.fd, u.top.entry); err != nil {
		return fmt.Errorf("unpack home: %w", err)
	}
	return nil
}

func (u *unpacker) failure() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.err
}

func (u *unpacker) fail(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.err == nil {
		u.err = err
	}
}

func (u *unpacker) make(ctx context.Context, e *entry) error {
	if e.name == "." {
		if u.Entries != 1 || e.kind != kindFolder {
			return corrupted("the home must be the first entry and occur once")
		}
		u.top.entry = e
		return nil
	}
	if u.top.entry == nil && !(u.part && u.Entries == 1 && e.name == PartName && e.kind != kindFolder) {
		return corrupted("the home must be the first entry")
	}
	dir, base, err := u.trail.parent(e.name)
	if err != nil {
		return err
	}
	switch e.kind {
	case kindFolder:
		return u.trail.enter(dir, base, e)
	case kindSymlink:
		return u.symlink(dir, base, e)
	case kindHardLink:
		u.pending.Wait() // its target may still be in a writer
		if err := u.failure(); err != nil {
			return err
		}
		return u.trail.link(e.link, dir, base)
	}
	u.Files++
	stored := u.tar.left
	if stored > u.maxBytes-u.Bytes {
		return corrupted("more than %d bytes", u.maxBytes)
	}
	if stored <= smallFile && !e.sparse() {
		return u.hand(dir, base, e)
	}
	return u.large(ctx, dir, base, e)
}

func (u *unpacker) symlink(dir *target, base string, e *entry) error {
	if err := unix.Symlinkat(e.link, dir.fd, base); err != nil {
		return made(err)
	}
	if u.trail.owner.must(e) {
		if err := unix.Fchownat(dir.fd, base, int(e.uid), int(e.gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("set owner: %w", err)
		}
	}
	times := timesOf(e)
	if err := unix.UtimesNanoAt(dir.fd, base, times[:], unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set times: %w", err)
	}
	return nil
}

// hand reads a small file and passes it to a writer.
func (u *unpacker) hand(dir *target, base string, e *entry) error {
	content := u.buffers.Get().(*[]byte)
	*content = (*content)[:0]
	for {
		b, err := u.tar.content(smallFile)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		*content = append(*content, b...)
		u.Bytes += int64(len(b))
	}
	dir.users.Add(1)
	u.pending.Add(1)
	u.jobs[dir.writer] <- &job{dir, base, e, content}
	return nil
}

func (u *unpacker) work(j *job) {
	defer u.pending.Done()
	err := u.failure()
	if err == nil {
		if err = u.small(j); err != nil {
			err = fmt.Errorf("unpack %s: %w", quoted(j.entry.name), err)
		}
	}
	u.buffers.Put(j.content)
	if released := j.dir.release(u.trail.owner); err == nil && released != nil {
		err = fmt.Errorf("unpack %s: %w", quoted(path.Dir(j.entry.name)), released)
	}
	if err != nil {
		u.fail(err)
	}
}
