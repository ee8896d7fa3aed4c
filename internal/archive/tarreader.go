package archive

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// tarReader reads the entries of a tar. It knows what Pack writes and what GNU
// tar writes of the same files, and refuses all else: what it would have to
// guess at, a home does not hold.
type tarReader struct {
	src  *source
	left int64 // content of the present entry not yet read
	pad  int64 // and what fills its last block
}

// next returns the next entry, io.EOF after the last. Content of the entry
// before that was not read is passed over.
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
				return nil, corrupted("extended header of nothing")
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

// entry puts together what the header block and the records say.
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
	if e.name, err = cleanName(name, e.kind == kindFolder); err != nil {
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
		e.link, err = cleanName(link, false)
	case kindSymlink:
		e.link = link
		if link == "" || len(link) > maxLink {
			err = corrupted("%q is a link of %d bytes", e.name, len(link))
		}
	default:
		err = corrupted("%q is of a kind (%q) that no home holds", e.name, e.kind)
	}
	if err == nil && e.kind != kindFile && (stored != 0 || more.sparse != nil) {
		err = corrupted("%q is no file and has content", e.name)
	}
	return e, err
}

// layout reads where the data of a sparse file belongs.
func (t *tarReader) layout(e *entry, s *sparseRecord, stored int64) error {
	if s.major != "1" || s.minor != "0" || s.size < 0 {
		return corrupted("%q: unknown kind of sparse file", e.name)
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

// content returns some of what is left of the entry's content, at most limit
// bytes, valid until the next call; io.EOF at its end.
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

// cleanName checks a name and strips it of what only spells it: "./" before,
// and "/" behind that of a folder.
func cleanName(name string, folder bool) (string, error) {
	full := name
	name = strings.TrimPrefix(name, "./")
	if folder {
		name = strings.TrimSuffix(name, "/")
		if name == "" || name == "." {
			if full == "" || full == "/" {
				return "", corrupted("bad name %q", full)
			}
			return ".", nil
		}
	}
	if strings.IndexByte(name, 0) >= 0 {
		return "", corrupted("bad name %q", full)
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." || len(part) > maxName {
			return "", corrupted("bad name %q", full)
		}
	}
	return name, nil
}

// records are what extended headers say of the entry after them.
type records struct {
	any        bool
	taken      int
	name, link *string
	size       *int64
	uid, gid   *uint32
	mtime      *unix.Timespec
	atime      unix.Timespec
	xattrs     []xattr
	sparse     *sparseRecord
}

type sparseRecord struct {
	major, minor, name string
	size               int64
}

func (r *records) add(kind byte, body []byte) error {
	r.any = true
	r.taken += len(body)
	switch kind {
	case kindLongName, kindLongLink:
		s := trimName(body)
		if kind == kindLongName {
			r.name = &s
		} else {
			r.link = &s
		}
		return nil
	}
	for len(body) > 0 {
		key, value, rest, err := nextRecord(body)
		if err != nil {
			return corrupted("%w", err)
		}
		body = rest
		if kind == kindGlobal {
			if key != "comment" {
				return corrupted("global header says %q", key)
			}
			continue
		}
		if err := r.set(key, value); err != nil {
			return corrupted("extended header %q: %w", key, err)
		}
	}
	return nil
}

var errNumber = errors.New("malformed number")

func (r *records) set(key string, value []byte) error {
	if name, ok := strings.CutPrefix(key, xattrKey); ok {
		name = unescapeKey.Replace(name)
		if !wantedXattr(name) || len(name) > maxName {
			return errors.New("no attribute that a home may carry")
		}
		for _, x := range r.xattrs {
			if x.name == name {
				return errors.New("said twice")
			}
		}
		r.xattrs = append(r.xattrs, xattr{name, value})
		return nil
	}
	s := string(value)
	if strings.IndexByte(s, 0) >= 0 {
		return errors.New("holds a NUL")
	}
	var err error
	switch key {
	case "path":
		r.name = &s
	case "linkpath":
		r.link = &s
	case "size":
		r.size, err = parseSize(s)
	case "uid":
		r.uid, err = parseID(s)
	case "gid":
		r.gid, err = parseID(s)
	case "mtime":
		var t unix.Timespec
		t, err = parseTime(s)
		r.mtime = &t
	case "atime":
		r.atime, err = parseTime(s)
	default:
		if field, ok := strings.CutPrefix(key, "GNU.sparse."); ok {
			return r.setSparse(field, s)
		}
		// Anything else (names of owners, ctime, a comment) says nothing that
		// we keep.
	}
	return err
}

func (r *records) setSparse(field, s string) error {
	if r.sparse == nil {
		r.sparse = &sparseRecord{size: -1}
	}
	switch field {
	case "major":
		r.sparse.major = s
	case "minor":
		r.sparse.minor = s
	case "name":
		r.sparse.name = s
	case "realsize":
		n, err := parseSize(s)
		if err != nil {
			return err
		}
		r.sparse.size = *n
	default:
		return errors.New("unknown kind of sparse file")
	}
	return nil
}

// parseSize bounds sizes so that sums of a few of them cannot overflow.
func parseSize(s string) (*int64, error) {
	n, err := strconv.ParseUint(s, 10, 60)
	if err != nil {
		return nil, errNumber
	}
	size := int64(n)
	return &size, nil
}

func parseID(s string) (*uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	// The last id is the one that means "leave it as it is".
	if err != nil || n == math.MaxUint32 {
		return nil, errNumber
	}
	id := uint32(n)
	return &id, nil
}

func parseUstar(h []byte) (ustar, error) {
	sum, ok := parseOctal(h[148:156])
	if !ok || sum != checksum(h) {
		return ustar{}, corrupted("header with a wrong checksum")
	}
	u := ustar{name: trimName(h[0:100]), link: trimName(h[157:257]), kind: h[156]}
	if u.kind == 0 {
		u.kind = kindFile
	}
	if string(h[257:265]) == "ustar\x0000" {
		u.prefix = trimName(h[345:500])
	}
	mode, ok1 := parseNumber(h[100:108])
	uid, ok2 := parseNumber(h[108:116])
	gid, ok3 := parseNumber(h[116:124])
	size, ok4 := parseNumber(h[124:136])
	mtime, ok5 := parseNumber(h[136:148])
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || mode < 0 || size < 0 || size >= 1<<60 ||
		uid < 0 || uid >= math.MaxUint32 || gid < 0 || gid >= math.MaxUint32 {
		return ustar{}, corrupted("header with a malformed number")
	}
	u.mode, u.uid, u.gid = uint32(mode&0o7777), uint32(uid), uint32(gid)
	u.size, u.mtime = size, mtime
	return u, nil
}

// parseNumber reads an octal field, or GNU's base 256 for what does not fit.
func parseNumber(f []byte) (int64, bool) {
	if f[0]&0x80 == 0 {
		return parseOctal(f)
	}
	negative := f[0]&0x40 != 0
	var fill byte
	if negative {
		fill = 0xff
	}
	n := int64(int8(fill))
	for i, c := range f {
		if i == 0 {
			c = c&0x7f | fill&0x80
		}
		if i < len(f)-8 {
			if c != fill {
				return 0, false
			}
			continue
		}
		if i == len(f)-8 && c&0x80 != fill&0x80 {
			return 0, false
		}
		n = n<<8 | int64(c)
	}
	return n, true
}

func parseOctal(f []byte) (int64, bool) {
	f = bytes.Trim(f, " \x00")
	var n int64
	for _, c := range f {
		if c < '0' || c > '7' || n >= 1<<59 {
			return 0, false
		}
		n = n<<3 | int64(c-'0')
	}
	return n, true
}
