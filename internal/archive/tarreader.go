package archive

import (
	"bytes"
	"io"
	"math"
	"strings"
)

// tarReader reads the entries of a tar. It accepts what Pack writes, and refuses
// everything else.
type tarReader struct {
	src  *source
	left int64 // unread content of the current entry
	pad  int64 // and its padding
	// start is where the headers of the current entry begin.
	start int64

	checked string // the last accepted name
	records []byte // of the current entry
}

// next returns the next entry, or io.EOF. It skips unread content of the
// previous entry.
func (t *tarReader) next() (*entry, error) {
	if err := t.src.skip(t.left + t.pad); err != nil {
		return nil, err
	}
	t.left, t.pad, t.records, t.start = 0, 0, t.records[:0], t.src.at
	for {
		block, err := t.src.block()
		if err == io.EOF {
			return nil, corrupted("tar ends without its end mark")
		}
		if err != nil {
			return nil, err
		}
		if [blockSize]byte(block) == zeros {
			if len(t.records) > 0 {
				return nil, corrupted("extended header without an entry")
			}
			return nil, t.end()
		}
		h, err := parseUstar(block)
		if err != nil {
			return nil, err
		}
		if h.kind != kindPAX {
			return t.entry(h)
		}
		if h.stored > int64(maxHeader-len(t.records)) {
			return nil, corrupted("extended header of %d bytes", h.stored)
		}
		if t.records, err = t.src.appendTo(t.records, h.stored); err != nil {
			return nil, err
		}
		if err := t.src.skip(padding(h.stored)); err != nil {
			return nil, err
		}
	}
}

// end checks that nothing but padding follows the first zero block.
func (t *tarReader) end() error {
	second := false
	for {
		b, err := t.src.some(math.MaxInt64)
		if err == io.EOF {
			if !second {
				return corrupted("tar ends within its end mark")
			}
			return io.EOF
		}
		if err != nil {
			return err
		}
		for i := 0; i < len(b); i += blockSize {
			part := b[i:min(i+blockSize, len(b))]
			if !bytes.Equal(part, zeros[:len(part)]) {
				return corrupted("data after the end of the tar")
			}
		}
		second = true
	}
}

// entry returns the entry of a header block and the records.
func (t *tarReader) entry(h *tarHeader) (*entry, error) {
	if err := h.setAll(t.records); err != nil {
		return nil, err
	}
	e := &h.entry
	if h.sparse.name != "" {
		e.name = h.sparse.name
	}
	link := e.link
	e.link = ""
	var err error
	if e.name, err = t.cleanName(e.name, e.kind == kindFolder); err != nil {
		return nil, err
	}
	switch e.kind {
	case kindFile:
		t.left, t.pad = h.stored, padding(h.stored)
		if h.sparse != (sparseRecords{}) {
			return e, t.layout(h)
		}
		e.size = h.stored
		return e, nil
	case kindFolder:
	case kindHardLink:
		e.link, err = t.cleanName(link, false)
	case kindSymlink:
		if e.link = link; link == "" || len(link) > maxLink {
			err = corrupted("%s is a link of %d bytes", quoted(e.name), len(link))
		}
	default:
		err = corrupted("%s has kind %q, which is not allowed in a home", quoted(e.name), e.kind)
	}
	if err == nil && (h.stored != 0 || h.sparse != (sparseRecords{})) {
		err = corrupted("%s is not a file and has content", quoted(e.name))
	}
	return e, err
}

// layout reads the data ranges of a sparse file.
func (t *tarReader) layout(h *tarHeader) error {
	if h.sparse.major != "1" || h.sparse.minor != "0" || !h.sparse.sized {
		return corrupted("%s: unknown kind of sparse file", quoted(h.name))
	}
	extents, length, err := readSparseMap(t.src.block, h.size, h.stored)
	h.extents = extents
	t.left -= length
	return err
}

// content returns up to limit bytes of the entry's unread content, valid until
// the next call, or io.EOF.
func (t *tarReader) content(limit int64) ([]byte, error) {
	if t.left == 0 {
		return nil, io.EOF
	}
	b, err := t.src.some(min(limit, t.left))
	t.left -= int64(len(b))
	return b, cutShort(err)
}

// cleanName checks a name and removes a leading "./" and a folder's trailing
// "/".
func (t *tarReader) cleanName(name string, folder bool) (string, error) {
	full := name
	name = strings.TrimPrefix(name, "./")
	if folder {
		name = strings.TrimSuffix(name, "/")
		if name == "" || name == "." {
			if full == "" || full == "/" {
				return "", corrupted("bad name %s", quoted(full))
			}
			return ".", nil
		}
	}
	if strings.IndexByte(name, 0) >= 0 {
		return "", corrupted("bad name %s", quoted(full))
	}
	// The last name's folder and its parents are accepted already; checking
	// them again would take quadratic time in deep trees.
	rest := name
	if at := strings.LastIndexByte(name, '/'); at > 0 && strings.HasPrefix(t.checked, name[:at+1]) {
		rest = name[at+1:]
	}
	for part := range strings.SplitSeq(rest, "/") {
		if part == "" || part == "." || part == ".." || len(part) > maxName {
			return "", corrupted("bad name %s", quoted(full))
		}
	}
	t.checked = name
	if folder {
		t.checked = name + "/"
	}
	return name, nil
}
