package archive

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxProblems is how many files may be unreadable in a generation. A home with more has a defect that the owner should
// know, rather than a backup.
const maxProblems = 1000

// PutObject stores an object as a whole. It does not keep content.
type PutObject func(ctx context.Context, name string, content []byte) error

// BackupOptions configure Backup.
type BackupOptions struct {
	// Former is the last generation, and Get reads the packs that it names. nil: there is none.
	Former *Manifest
	Get    GetRange
	// FullRead reads files that look unchanged too.
	FullRead bool
	// SkipUnchanged stores nothing if the home is as in Former, and Backup then returns Former itself.
	// With FullRead it has no effect, since the manifest has the time of the last full read.
	SkipUnchanged bool
	Progress      Progress
	Pacer         *Pacer   // of the accesses to the files of the home; nil: none
	Scratch       string   // see PackOptions
	Owner         OwnerMap // see PackOptions

	// At is when the folder was last written to, if it is a snapshot; zero: it may be in use. A file that
	// was changed shortly before can have been changed after it with the same ctime.
	At time.Time

	now func() time.Time // nil: time.Now
}

// ManifestName returns the name of the manifest of a generation, of the time at which it begins. Names sort
// by time.
func ManifestName(at time.Time, id string) string {
	return at.UTC().Format(manifestTime) + "-" + id + manifestSuffix
}

// RewrittenName returns a name for another manifest of the same generation. It begins like that of the first one.
func RewrittenName(name, revision string) string {
	first, _, _ := strings.Cut(Generation(name), ".")
	return first + "." + revision + manifestSuffix
}

const (
	manifestTime   = "20060102T150405Z"
	manifestSuffix = ".manifest.zst"
)

// IsManifest reports whether an object is a manifest, also one that has another name than ManifestName
// gives. The time is zero for that.
func IsManifest(name string) (at time.Time, is bool) {
	if !strings.HasSuffix(name, manifestSuffix) || strings.Contains(name, "/") {
		return time.Time{}, false
	}
	first, _, _ := strings.Cut(name, "-")
	at, err := time.Parse(manifestTime, first)
	if err != nil {
		return time.Time{}, true
	}
	return at, true
}

// Backup adds a generation to the packs of a workspace: put gets the new packs, and last the manifest with the
// given name, which no other generation may have: the names of the packs begin with it (see PackName). The
// generation exists only if the error is nil. The folder dir may change meanwhile: what disappears is left
// out, and a file that changes while it is read is read a second time, and then marked in the manifest.
// One that cannot be read is a Problem. ErrChanged means that a folder was moved, or a name was listed twice: try again.
func Backup(ctx context.Context, dir, name string, put PutObject, opts BackupOptions) (*Manifest, error) {
	if !validGeneration(Generation(name)) {
		return nil, fmt.Errorf("invalid name of a manifest %.200q", name)
	}
	var o opener
	root, err := o.open(unix.AT_FDCWD, dir, unix.O_DIRECTORY)
	if err != nil {
		return nil, fmt.Errorf("open home: %w", err)
	}
	defer unix.Close(root)
	b := &backup{opts: opts, meter: meter{report: opts.Progress}, cutter: newCutter()}
	b.s.fullRead = time.Now().Unix()
	live := &live{now: opts.now, pacer: opts.Pacer}
	switch {
	case !opts.At.IsZero():
		live.now = func() time.Time { return opts.At }
	case live.now == nil:
		live.now = time.Now
	}
	var former []packInfo
	if opts.Former != nil {
		former = opts.Former.s.packs
		if !opts.FullRead {
			b.s.fullRead = opts.Former.s.fullRead
		}
		if live.former, err = opts.Former.files(opts.FullRead); err != nil {
			return nil, err
		}
	}
	if b.manifest, err = newManifestWriter(former); err != nil {
		return nil, err
	}
	from := int64(0)
	if n := len(former); n > 0 {
		from = b.manifest.ends[n-1]
	}
	if b.store, err = newChunkStore(ctx, put, Generation(name), from, workers()); err != nil {
		return nil, err
	}
	walkCtx, cancel := context.WithCancel(b.store.c.ctx)
	prover := &prover{dir: opts.Scratch}
	b.walker = walk(walkCtx, root, prover, opts.Owner, live)
	if opts.SkipUnchanged && !opts.FullRead && opts.Former != nil {
		b.same = newSameness(opts.Former)
		defer b.same.stop()
	}
	err = b.run(walkCtx)
	cancel()
	b.walker.finish()
	prover.close()
	if err := b.store.finish(err); err != nil {
		return nil, err
	}
	if b.same != nil && b.same.whole() && len(b.store.packs) == 0 && slices.Equal(b.s.problems, opts.Former.s.problems) {
		b.done()
		return opts.Former, nil
	}
	b.s.Entries, b.s.Files, b.s.Bytes, b.s.Skipped, b.s.Stored = b.Entries, b.Files, b.Bytes, b.Skipped, b.store.stored
	out, err := b.manifest.finish(&b.s, b.store.packs)
	if err != nil {
		return nil, err
	}
	m, err := decodeManifest(out)
	if err == nil {
		err = m.restorable()
	}
	if err != nil {
		return nil, fmt.Errorf("no restore would accept the generation: %w", err)
	}
	if err := put(ctx, name, out); err != nil {
		return nil, fmt.Errorf("store manifest: %w", err)
	}
	b.done()
	return m, nil
}

// files returns the files of a generation by their inodes, or nil if all are to be read.
func (m *Manifest) files(fullRead bool) (*formerFiles, error) {
	if fullRead {
		return nil, nil
	}
	f := &formerFiles{files: make([]formerFile, 0, min(m.s.Entries, 1<<20)), holes: map[uint64][]extent{}}
	for e, err := range m.entries() {
		if err != nil {
			return nil, err
		}
		if e.kind != kindFile || !e.settled {
			continue
		}
		x := formerFile{inode: e.inode, size: e.size, mtime: e.mtime, ctime: e.ctime}
		switch len(e.segments) {
		case 0:
		case 1:
			x.at = e.segments[0].at
		default:
			f.more = append(f.more, e.segments)
			x.at = -int64(len(f.more))
		}
		if e.sparse() {
			f.holes[e.inode] = e.extents
		}
		f.files = append(f.files, x)
	}
	slices.SortFunc(f.files, func(a, b formerFile) int { return cmp.Compare(a.inode, b.inode) })
	f.dropRepeated()
	return f, nil
}

// backup writes the walker's items to the packs and the manifest, in order.
type backup struct {
	meter
	opts     BackupOptions
	walker   *walker
	store    *chunkStore
	manifest *manifestWriter
	cutter   *cutter
	s        summary
	learned  bool      // the chunks of the former packs are known
	same     *sameness // nil: not wanted
	buf      []byte
}

func (b *backup) run(ctx context.Context) error {
	for it := range b.walker.ordered {
		<-it.done
		err := ctx.Err()
		if err == nil {
			err = b.put(ctx, it)
		}
		b.walker.recycle(it)
		if err != nil {
			return err
		}
	}
	return b.walker.err
}

func (b *backup) put(ctx context.Context, it *item) error {
	if it.err != nil {
		return b.problem(it, it.err)
	}
	if it.skip {
		b.Skipped++
		return nil
	}
	if it.kind != kindFolder && it.stat.Nlink > 1 {
		if first := b.walker.links.liveLink(it); first != "" {
			return b.add(&generationEntry{entry: entry{name: it.name, kind: kindHardLink, link: first, mode: it.mode, uid: it.uid, gid: it.gid, mtime: it.mtime}})
		}
	}
	e := &generationEntry{}
	if it.kind == kindFile {
		err := b.content(ctx, it, e)
		var failed *fileError
		if errors.As(err, &failed) {
			return b.problem(it, failed.error)
		}
		if err != nil {
			return err
		}
		b.Files++
		b.Bytes += it.stored()
		if it.changed {
			b.s.Changed++
		}
		e.changed, e.settled, e.inode, e.ctime = it.changed, it.settled, it.stat.Ino, it.stat.Ctim
	}
	e.entry = it.entry
	if it.kind != kindFolder && it.stat.Nlink > 1 {
		b.walker.links.keep(it)
	}
	return b.add(e)
}

// problem lists a file that is not in the generation.
func (b *backup) problem(it *item, err error) error {
	if errors.Is(err, errGone) {
		return nil
	}
	if len(b.s.problems) == maxProblems {
		return fmt.Errorf("more than %d files could not be read: %w", maxProblems, err)
	}
	b.s.problems = append(b.s.problems, Problem{it.name, err.Error()})
	return nil
}

// add adds an entry to the manifest.
func (b *backup) add(e *generationEntry) error {
	var err error
	if b.buf, err = appendHeader(b.buf[:0], &e.entry); err != nil {
		return failed(e.name, err)
	}
	b.manifest.headers.Write(b.buf)
	b.Entries++
	b.tick()
	if b.same != nil {
		b.same.add(e)
	}
	return b.manifest.add(e)
}

// fileError is an error of a file that is left out. Others end the backup.
type fileError struct{ error }

// content sets where the content of a file is, and stores what is not known.
func (b *backup) content(ctx context.Context, it *item, e *generationEntry) error {
	add := func(chunk []byte, sum [sha256.Size]byte) error {
		if err := b.learn(ctx); err != nil {
			return err
		}
		at, err := b.store.add(sum, chunk)
		if err != nil {
			return err
		}
		e.segments = appendSegment(e.segments, segment{at, int64(len(chunk))})
		return nil
	}
	switch {
	case it.segments != nil:
		e.segments = it.segments
		return nil
	case it.read && len(it.ready) > 0:
		return add(it.ready, it.sum)
	case it.read:
		return nil
	case it.linked: // the earlier name is left out, or the file has changed since
		if err := b.again(it); err != nil {
			return &fileError{err}
		}
	}
	for last := false; ; last = true {
		// This doubles the read-ahead; failure is harmless.
		_ = unix.Fadvise(it.fd, 0, 0, unix.FADV_SEQUENTIAL)
		extents := it.extents
		if !it.sparse() {
			extents = []extent{{0, it.size}}
		}
		r := &pacedReader{extentReader{fd: it.fd, extents: extents}, ctx, b.opts.Pacer}
		var stored error
		err := b.cutter.split(r, it.stored(), func(chunk []byte) error {
			stored = add(chunk, sha256.Sum256(chunk))
			b.tick()
			return stored
		})
		if stored != nil {
			return stored
		}
		if err == nil {
			err = it.ended(r.read, last)
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, ErrChanged) || last {
			return &fileError{err}
		}
		e.segments = nil
		if err := b.again(it); err != nil {
			return &fileError{err}
		}
	}
}

// again describes a file that has changed since it was described.
func (b *backup) again(it *item) error {
	it.extents = nil
	it.settled = false
	err := b.walker.describeFile(it)
	if errors.Is(err, ErrChanged) {
		err = b.walker.describeFile(it)
	}
	if err == nil && it.size > 0 && it.stat.Blocks*512 < it.size {
		it.extents, err = findExtents(it.fd, &it.stat, maxExtents)
	}
	return err
}

// learn reads which chunks the former packs have, before the first chunk is stored.
func (b *backup) learn(ctx context.Context) error {
	if b.learned || b.opts.Former == nil {
		return nil
	}
	b.learned = true
	at := int64(0)
	for i := range b.manifest.former {
		p := &b.manifest.former[i]
		if !p.gone {
			if err := b.store.learn(ctx, b.opts.Get, p, at); err != nil {
				return err
			}
		}
		at += p.length
	}
	return nil
}
