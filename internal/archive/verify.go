package archive

import (
	"context"
	"errors"
	"io"
)

// Verify reads an archive to its end and compares its digest, size and counts with
// its .meta. It returns the counts, or ErrCorrupted if they differ. An error of r is
// returned unchanged.
func Verify(ctx context.Context, r io.Reader, meta *Meta, progress Progress) (Stats, error) {
	d, err := newDecompressor(ctx, r)
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
	m.done()
	return m.Stats, nil
}
