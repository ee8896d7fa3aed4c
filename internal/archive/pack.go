package archive

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// PackOptions configure Pack.
type PackOptions struct {
	Progress Progress
	// Scratch is an empty folder on the file system that a restore would use.
	// Pack creates every entry in it that a file system may refuse: many or
	// large attributes, ACLs, unusual names, long links. A refused entry is
	// ErrUnrestorable. Without such entries the folder is not used. Empty: no
	// trials.
	Scratch string
	// Owner replaces an owner of the folder's files by another in the archive.
	Owner OwnerMap
}

// Pack writes an archive of the folder dir to w in one pass. The folder must
// not change meanwhile: a change that Pack notices is ErrChanged. The data
// written to w is an archive only if the error is nil. It omits sockets, FIFOs
// and devices, which Pack counts, and attributes that belong to the machine.
// Reading files of other users needs root (CAP_DAC_READ_SEARCH).
func Pack(ctx context.Context, dir string, w io.Writer, opts PackOptions) (Stats, error) {
	var o opener
	root, err := o.open(unix.AT_FDCWD, dir, unix.O_DIRECTORY)
	if err != nil {
		return Stats{}, fmt.Errorf("open home: %w", err)
	}
	defer unix.Close(root)

	c, err := newCompressor(ctx, w)
	if err != nil {
		return Stats{}, err
	}
	p := &packer{compressor: c, meter: meter{report: opts.Progress}, contents: c.toc()}
	walkCtx, cancel := context.WithCancel(c.ctx)
	prover := &prover{dir: opts.Scratch}
	p.walker = walk(walkCtx, root, prover, opts.Owner, nil)
	err = p.run()
	cancel()
	p.walker.finish()
	prover.close()
	if err != nil {
		c.cancel(err)
	}
	if err := c.finish(p.contents); err != nil {
		return Stats{}, err
	}
	p.Size, p.SHA256, p.Fingerprint = c.size, c.digest(), p.print.String()
	p.done()
	return p.Stats, nil
}

// Empty returns the archive of a workspace that never had a home: one without
// entries. Unpacking it leaves the folder unchanged.
func Empty() ([]byte, Stats, error) {
	var b bytesWriter
	c, err := newCompressor(context.Background(), &b)
	if err != nil {
		return nil, Stats{}, err
	}
	_, err = c.Write(make([]byte, 2*blockSize))
	if finished := c.finish(c.toc()); err == nil {
		err = finished
	}
	if err != nil {
		return nil, Stats{}, fmt.Errorf("create empty archive: %w", err)
	}
	return b, Stats{Size: c.size, SHA256: c.digest()}, nil
}

type bytesWriter []byte

func (b *bytesWriter) Write(p []byte) (int, error) {
	*b = append(*b, p...)
	return len(p), nil
}

// packer writes the walker's items to the compressor, in order.
type packer struct {
	*compressor
	meter
	walker   *walker
	buf      []byte
	print    fingerprint
	contents *tocWriter
}

func (p *packer) run() error {
	for it := range p.walker.ordered {
		<-it.done
		err := it.err
		if err == nil {
			err = p.put(it)
		}
		p.walker.recycle(it)
		if err != nil {
			return err
		}
	}
	if p.walker.err != nil {
		return p.walker.err
	}
	_, err := p.Write(make([]byte, 2*blockSize))
	return err
}

func (p *packer) put(it *item) error {
	p.print.add(it.print)
	if it.skip {
		p.Skipped++
		return nil
	}
	p.Entries++
	p.tick()
	if it.kind != kindFolder && it.stat.Nlink > 1 {
		if first := p.walker.links.link(it); first != "" {
			link := entry{name: it.name, kind: kindHardLink, link: first, mode: it.mode, uid: it.uid, gid: it.gid, mtime: it.mtime}
			return p.head(&link)
		}
	}
	if it.kind == kindFile {
		p.Files++
	}
	if it.ready != nil {
		p.Bytes += it.size
		p.record(&it.entry)
		_, err := p.Write(it.ready)
		return err
	}
	if err := p.head(&it.entry); err != nil {
		return err
	}
	if it.kind != kindFile {
		return nil
	}
	if err := p.content(it); err != nil {
		return failed(it.name, err)
	}
	return nil
}

// head writes what precedes the content.
func (p *packer) head(e *entry) error {
	var err error
	if p.buf, err = appendHeader(p.buf[:0], e); err != nil {
		return failed(e.name, err)
	}
	p.record(e)
	_, err = p.Write(p.buf)
	return err
}

// record adds an entry, whose header is written next, to the table of contents.
func (p *packer) record(e *entry) {
	p.contents.add(e, p.total)
	if p.after == nil && len(p.contents.out) >= tocFrame {
		p.after = p.contents.frame()
	}
}

// content reads a file directly into the compressor's frames.
func (p *packer) content(it *item) error {
	if it.fd < 0 { // another name of a file that is gone
		return ErrChanged
	}
	extents := it.extents
	if !it.sparse() {
		extents = []extent{{0, it.size}}
		// This doubles the read-ahead; failure is harmless.
		_ = unix.Fadvise(it.fd, 0, 0, unix.FADV_SEQUENTIAL)
	}
	for _, x := range extents {
		for done := int64(0); done < x.length; {
			to, err := p.space()
			if err != nil {
				return err
			}
			to = to[:min(int64(len(to)), x.length-done, 1<<20)]
			n, err := unix.Pread(it.fd, to, x.offset+done)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return fmt.Errorf("read: %w", err)
			}
			if n == 0 {
				return ErrChanged
			}
			p.advance(n)
			p.Bytes += int64(n)
			done += int64(n)
			p.tick()
		}
	}
	var after unix.Stat_t
	if err := fstat(it.fd, &after); err != nil {
		return err
	}
	if !sameFile(&it.stat, &after) {
		return ErrChanged
	}
	_, err := p.Write(zeros[:padding(it.stored())])
	return err
}

// PackTo packs a home into put, which stores its reader's content and returns
// the length. Packing and storing run concurrently. The object is stored only
// if the error is nil. An error of put is returned unchanged; a wrong length is
// io.ErrShortWrite.
func PackTo(ctx context.Context, dir string, opts PackOptions, put func(context.Context, io.Reader) (int64, error)) (Stats, error) {
	r, w := io.Pipe()
	var size int64
	stored := make(chan error, 1)
	go func() {
		var err error
		size, err = put(ctx, r)
		if err != nil {
			r.CloseWithError(err)
		}
		stored <- err
	}()
	stats, err := Pack(ctx, dir, w, opts)
	w.CloseWithError(err) // io.EOF for put if it is nil
	if failed := <-stored; err == nil {
		err = failed
	}
	if err == nil && size != stats.Size {
		err = fmt.Errorf("%w: %d of %d bytes were stored", io.ErrShortWrite, size, stats.Size)
	}
	if err != nil {
		return Stats{}, err
	}
	return stats, nil
}
