package archive

import (
	"context"
	"io"
)

// PartName is the name that a file or link has in a tar for UnpackPart.
const PartName = "content"

// UnpackPart unpacks the tar of a Part into an open, empty folder, as a user whose files these become:
// owners are ignored, except that owners are replaced in ACLs, and attributes that the user may not
// set are left out. A tar in which the part has the name "." makes the folder itself the part, with
// its mode and times; otherwise the folder gets the one entry PartName. It returns which. Nothing is synced.
// The content of the folder must be discarded after an error. A pending read of r ends when r is
// closed. r is read to its end.
func UnpackPart(ctx context.Context, r io.Reader, dir int, owners OwnerMap) (folder bool, err error) {
	if err := isEmpty(dir); err != nil {
		return false, err
	}
	if err := clearAttributes(dir); err != nil {
		return false, err
	}
	u := newUnpacker(&plainTar{r: r, buf: make([]byte, plainBuffer)}, dir, UnpackOptions{})
	u.part, u.owners, u.trail.owner.plain = true, owners, true
	err = u.run(ctx)
	if finished := u.finish(); err == nil {
		err = finished
	}
	if err == nil && u.Entries == 0 {
		err = corrupted("tar without entries")
	}
	return u.top.entry != nil, err
}

const plainBuffer = 64 << 10

// plainTar is a tar that is not compressed.
type plainTar struct {
	r   io.Reader
	buf []byte
}

func (p *plainTar) next() ([]byte, error) {
	for {
		n, err := p.r.Read(p.buf)
		if n > 0 {
			return p.buf[:n], nil // an error comes again
		}
		if err != nil {
			return nil, err
		}
	}
}

// size and digest are those of no archive.
func (p *plainTar) size() int64    { return 0 }
func (p *plainTar) digest() string { return "" }
