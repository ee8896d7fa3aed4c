package archive

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// PackOptions say how to pack.
type PackOptions struct {
	Progress Progress
	// Scratch is an empty folder on the file system that a restore of the home
	// would use. In it Pack creates again every entry that a file system may
	// refuse: many or large attributes, ACLs, unusual names, long links. An entry
	// that is refused ends the packing with ErrUnrestorable. The folder is not used
	// if the home has no such entry. Empty: nothing is tried.
	Scratch string
}

// Pack writes an archive of the folder dir to w in one pass. Nothing may write
// to the folder meanwhile: a change that is seen ends it with ErrChanged. What
// was written to w is an archive only if the error is nil.
//
// All that a home may hold is in it but for FIFOs, sockets and devices, which
// are counted, and attributes that belong to the host rather than the home.
// Reading what others own takes root (CAP_DAC_READ_SEARCH).
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
	p := &packer{compressor: c, meter: meter{report: opts.Progress}}
	walkCtx, cancel := context.WithCancel(c.ctx)
	prover := &prover{dir: opts.Scratch}
	p.walker = walk(walkCtx, root, prover)
	err = p.run()
	cancel()
	p.walker.finish()
	prover.close()
	if err != nil {
		c.cancel(err)
	}
	if err := c.stop(); err != nil {
		return Stats{}, err
	}
	p.Size, p.SHA256, p.Fingerprint = c.size, c.digest(), p.print.String()
	p.done()
	return p.Stats, nil
}

// Empty returns the archive of a workspace that never had a home: one without
// any entry. Unpacked it leaves the folder as it is.
func Empty() ([]byte, Stats, error) {
	var b bytesWriter
	c, err := newCompressor(context.Background(), &b)
	if err != nil {
		return nil, Stats{}, err
	}
	_, err = c.Write(make([]byte, 2*blockSize))
	if stopped := c.stop(); err == nil {
		err = stopped
	}
	if err != nil {
		return nil, Stats{}, fmt.Errorf("make empty archive: %w", err)
	}
	return b, Stats{Size: c.size, SHA256: c.digest()}, nil
}

type bytesWriter []byte

func (b *bytesWriter) Write(p []byte) (int, error) {
	*b = append(*b, p...)
	return len(p), nil
}

// packer puts the walker's items into the compressor, in order.
type packer struct {
	*compressor
	meter
	walker *walker
	header header
	buf    []byte
	print  fingerprint
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

// head writes all that comes before the content.
func (p *packer) head(e *entry) error {
	var err error
	if p.buf, err = p.header.append(p.buf[:0], e); err != nil {
		return failed(e.name, err)
	}
	_, err = p.Write(p.buf)
	return err
}

// content reads a file straight into the frames that are compressed.
func (p *packer) content(it *item) error {
	if it.fd < 0 { // it was a further name of a file that is gone by now
		return ErrChanged
	}
	extents := it.extents
	if !it.sparse() {
		extents = []extent{{0, it.size}}
		// Asks for twice the usual read-ahead; to fail is no harm.
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

// PackTo packs into put, which stores what it reads and returns its length: while
// one packs the other stores. The object is stored only if the error is nil. An
// error of put is returned as it is; another length is io.ErrShortWrite.
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
		err = fmt.Errorf("%w: it stored %d bytes of %d", io.ErrShortWrite, size, stats.Size)
	}
	if err != nil {
		return Stats{}, err
	}
	return stats, nil
}
