package archive

import (
	"bytes"
	"io"
	"math"
	"strings"

	"golang.org/x/sys/unix"
)

// tarReader reads the entries of a tar. It accepts what Pack and GNU tar write
// for the files of a home, and refuses everything else.
type tarReader struct {
	src  *source
	left int64 // unread content of the current entry
	pad  int64 // and its padding

	checked string // the last accepted name
}

// next returns the next entry, or io.EOF. It skips unread content of the
// previous entry.
func (t *tarReader) next() (*entry, error) {
	if err := t.src.discard(t.left + t.pad); err != nil {
		return nil, err
	}
	t.left, t.pad = 0, 0
	var more records
	for {
		block, err := t.src.take(blockSize)
		if err == io.EOF {
			return nil, corrupted("tar ends without its end mark")
		}
		if err != nil {
			return nil, err
		}
		if [blockSize]byte(block) == zeros {
			if more.any {
				return nil, corrupted("extended header without an entry")
			}
			return nil, t.end()
		}
		u, err := parseUstar(block)
		if err != nil {
			return nil, err
		}
		switch u.kind {
		case kindPAX, kindGlobal, kindLongName, kindLongLink:
			if u.size > maxHeader || int64(more.taken)+u.size > maxHeader {
				return nil, corrupted("extended header of %d bytes", u.size)
			}
			body, err := t.src.copy(int(u.size))
			if err != nil {
				return nil, err
			}
			if err := t.src.discard(padding(u.size)); err != nil {
				return nil, err
			}
			if err := more.add(u.kind, body); err != nil {
				return nil, err
			}
		default:
			return t.entry(u, &more)
		}
	}
}

// end checks that nothing but padding follows the first zero block.
func (t *tarReader) end() error {
	second := false
	for {
		b, err := t.src.some(math.MaxInt)
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

// entry combines the header block and the records.
func (t *tarReader) entry(u ustar, more *records) (*entry, error) {
	e := &entry{
		kind: u.kind, mode: u.mode & 0o7777, uid: u.uid, gid: u.gid,
		mtime: unix.Timespec{Sec: u.mtime}, xattrs: more.xattrs, atime: more.atime,
	}
	name, link, stored := u.name, u.link, u.size
	if u.prefix != "" {
		name = u.prefix + "/" + name
	}
	if more.name != nil {
		name = *more.name
	}
	if more.link != nil {
		link = *more.link
	}
	if more.size != nil {
		stored = *more.size
	}
	if more.uid != nil {
		e.uid = *more.uid
	}
	if more.gid != nil {
		e.gid = *more.gid
	}
	if more.mtime != nil {
		e.mtime = *more.mtime
	}
	if more.sparse != nil && more.sparse.name != "" {
		name = more.sparse.name
	}
	var err error
	if e.name, err = t.cleanName(name, e.kind == kindFolder); err != nil {
		return nil, err
	}
	switch e.kind {
	case kindFile:
		t.left, t.pad, e.size = stored, padding(stored), stored
		if more.sparse != nil {
			return e, t.layout(e, more.sparse, stored)
		}
	case kindFolder:
	case kindHardLink:
		e.link, err = t.cleanName(link, false)
	case kindSymlink:
		e.link = link
		if link == "" || len(link) > maxLink {
			err = corrupted("%s is a link of %d bytes", quoted(e.name), len(link))
		}
	default:
		err = corrupted("%s has kind %q, which is not allowed in a home", quoted(e.name), e.kind)
	}
	if err == nil && e.kind != kindFile && (stored != 0 || more.sparse != nil) {
		err = corrupted("%s is not a file and has content", quoted(e.name))
	}
	return e, err
}

// layout reads the data ranges of a sparse file.
func (t *tarReader) layout(e *entry, s *sparseRecord, stored int64) error {
	if s.major != "1" || s.minor != "0" || s.size < 0 {
		return corrupted("%s: unknown kind of sparse file", quoted(e.name))
	}
	e.size = s.size
	extents, length, err := readSparseMap(func() ([]byte, error) { return t.src.must(blockSize) }, s.size, stored)
	if err != nil {
		return err
	}
	e.extents = extents
	t.left = stored - length
	t.pad = padding(stored)
	return nil
}

// content returns up to limit bytes of the entry's unread content, valid until
// the next call, or io.EOF.
func (t *tarReader) content(limit int64) ([]byte, error) {
	if t.left == 0 {
		return nil, io.EOF
	}
	b, err := t.src.some(int(min(limit, t.left)))
	if err == io.EOF {
		return nil, corrupted("tar is cut short")
	}
	t.left -= int64(len(b))
	return b, err
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
