package archive

import (
	"bytes"
	"errors"
	"math"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// records is the content of the extended headers of the next entry.
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
				return corrupted("global header has %q", key)
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
			return errors.New("attribute not allowed in a home")
		}
		for _, x := range r.xattrs {
			if x.name == name {
				return errors.New("duplicate record")
			}
		}
		// A folder's value is kept for long; a copy lets the header be freed.
		r.xattrs = append(r.xattrs, xattr{name, bytes.Clone(value)})
		return nil
	}
	s := string(value)
	if strings.IndexByte(s, 0) >= 0 {
		return errors.New("contains a NUL")
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
		// Other records (names of owners, ctime, comments) are ignored.
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

// parseSize limits sizes so that sums of a few cannot overflow.
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
	// The largest id means "unchanged" to the kernel.
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
