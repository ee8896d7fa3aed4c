package archive

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
)

// Verify reads an archive to its end and compares its digest, size and counts with
// its .meta, and its index, if it has one, with its entries. It returns the counts, or
// ErrCorrupted if anything differs. An error of r is returned unchanged.
func Verify(ctx context.Context, r io.Reader, meta *Meta, progress Progress) (Stats, error) {
	check, contents := newIndexCheck(), newTOCWriter(nil)
	d, err := newCheckedDecompressor(ctx, r, check)
	if err != nil {
		return Stats{}, err
	}
	defer d.stop()
	m := meter{report: progress}
	tar := tarReader{src: &source{refill: d.next}}
	for {
		if err := ctx.Err(); err != nil {
			return Stats{}, err
		}
		e, err := tar.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Stats{}, err
		}
		contents.add(e, tar.start)
		m.Entries++
		if e.kind == kindFile {
			m.Files++
		}
		m.tick()
		for {
			b, err := tar.content(1 << 20)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return Stats{}, err
			}
			m.Bytes += int64(len(b))
			m.tick()
		}
	}
	m.Size, m.SHA256 = d.size(), d.digest()
	if err := meta.matches(m.Stats); err != nil {
		return Stats{}, err
	}
	if err := check.compare(contents); err != nil {
		return Stats{}, err
	}
	m.done()
	return m.Stats, nil
}

// indexCheck compares the index of an archive with its frames and entries. It ignores an index of
// another tool or version. A nil indexCheck does nothing.
type indexCheck struct {
	frames   hash.Hash // of the seek table so far
	count    uint32    // of the frames in it
	contents hash.Hash // of the records in the table of contents
	found    bool      // a part of the table of contents
	complete bool      // the last frame was the seek table of all others
	err      error     // of the table of contents
}

func newIndexCheck() *indexCheck { return &indexCheck{frames: sha256.New(), contents: sha256.New()} }

// frame is called for each frame with content.
func (c *indexCheck) frame(compressed, content int) {
	if c != nil {
		c.add(compressed, content)
		c.complete = false
	}
}

func (c *indexCheck) add(compressed, content int) {
	var t seekTable
	t.add(compressed, content)
	c.frames.Write(t)
	c.count++
}

// skippable is called for each skippable frame. It need not read all of the content.
func (c *indexCheck) skippable(magic uint32, content *io.LimitedReader) {
	if c == nil {
		return
	}
	size := content.N
	c.complete = magic == magicSeek && size == int64(c.count)*seekEntry+seekFooter && c.seekTable(content)
	if magic == magicTOC {
		c.err = cmp.Or(c.err, c.toc(content))
	}
	c.add(skipHeader+int(size), 0)
}

// seekTable returns whether the content of a frame is the seek table of those before it.
func (c *indexCheck) seekTable(content io.Reader) bool {
	got := sha256.New()
	if _, err := io.CopyN(got, content, int64(c.count)*seekEntry); err != nil {
		return false
	}
	footer, err := io.ReadAll(content)
	return err == nil && bytes.Equal(footer, seekEnd(c.count)) && bytes.Equal(got.Sum(nil), c.frames.Sum(nil))
}

// toc reads a part of the table of contents.
func (c *indexCheck) toc(content io.Reader) error {
	records, err := openTOC(content)
	if errors.Is(err, ErrNoIndex) {
		return nil
	}
	c.found = true
	if err != nil {
		return err
	}
	defer records.Close()
	_, err = io.Copy(c.contents, records)
	return err
}

// compare is called at the end of the archive, with the contents that its tar has.
func (c *indexCheck) compare(t *tocWriter) error {
	if !c.found { // an archive of an earlier version
		return nil
	}
	t.end()
	switch {
	case c.err != nil:
		return corrupted("index: %w", c.err)
	case !c.complete:
		return corrupted("index: the archive does not end with its seek table")
	case !bytes.Equal(c.contents.Sum(nil), t.sum.Sum(nil)):
		return corrupted("index: the table of contents differs from the tar")
	}
	return nil
}
