package archive

import (
	"bytes"
	"errors"
	"math"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// tarHeader is what is read of an entry before its content.
type tarHeader struct {
	entry
	stored int64 // bytes of content
	sparse sparseRecords
}

type sparseRecords struct {
	major, minor, name string
	sized              bool // the size of the file is known
}

// setAll sets what is in an extended header.
func (h *tarHeader) setAll(extended []byte) error {
	for len(extended) > 0 {
		key, value, rest, err := nextRecord(extended)
		if err != nil {
			return corrupted("%w", err)
		}
		if err := h.set(key, value); err != nil {
			return corrupted("extended header %q: %w", key, err)
		}
		extended = rest
	}
	return nil
}

func (h *tarHeader) set(key string, value []byte) error {
	if name, ok := strings.CutPrefix(key, xattrKey); ok {
		name = unescapeKey.Replace(name)
		if !wantedXattr(name) || len(name) > maxName {
			return errors.New("attribute not allowed in a home")
		}
		for _, x := range h.xattrs {
			if x.name == name {
				return errors.New("duplicate record")
			}
		}
		// A folder's value is kept for long; a copy lets the header be freed.
		h.xattrs = append(h.xattrs, xattr{name, bytes.Clone(value)})
		return nil
	}
	s := string(value)
	if strings.IndexByte(s, 0) >= 0 {
		return errors.New("contains a NUL")
	}
	var err error
	switch key {
	case "path":
		h.name = s
	case "linkpath":
		h.link = s
	case "size":
		h.stored, err = parseSize(s)
	case "uid":
		h.uid, err = parseID(s)
	case "gid":
		h.gid, err = parseID(s)
	case "mtime":
		h.mtime, err = parseTime(s)
	case "atime":
		h.atime, err = parseTime(s)
	case "GNU.sparse.major":
		h.sparse.major = s
	case "GNU.sparse.minor":
		h.sparse.minor = s
	case "GNU.sparse.name":
		h.sparse.name = s
	case "GNU.sparse.realsize":
		h.sparse.sized = true
		h.size, err = parseSize(s)
	default:
		if strings.HasPrefix(key, "GNU.sparse.") {
			return errors.New("unknown kind of sparse file")
		}
		// Other records (names of owners, ctime, comments) are ignored.
	}
	return err
}

var errNumber = errors.New("malformed number")

// parseSize limits sizes so that sums of a few cannot overflow.
func parseSize(s string) (int64, error) {
	n, err := strconv.ParseUint(s, 10, 60)
	if err != nil {
		return 0, errNumber
	}
	return int64(n), nil
}

func parseID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	// The largest id means "unchanged" to the kernel.
	if err != nil || n == math.MaxUint32 {
		return 0, errNumber
	}
	return uint32(n), nil
}

// parseUstar parses a header block.
func parseUstar(b []byte) (*tarHeader, error) {
	var bad error
	octal := func(field []byte) int64 {
		n, err := strconv.ParseUint(string(bytes.Trim(field, " \x00")), 8, 60)
		if err != nil {
			bad = errNumber
		}
		return int64(n)
	}
	sum := octal(b[148:156])
	h := &tarHeader{entry: entry{
		name: trimName(b[0:100]), kind: b[156], link: trimName(b[157:257]), mode: uint32(octal(b[100:108]) & 0o7777),
		uid: uint32(octal(b[108:116])), gid: uint32(octal(b[116:124])), mtime: unix.Timespec{Sec: octal(b[136:148])},
	}, stored: octal(b[124:136])}
	if bad != nil || sum != checksum(b) || string(b[257:265]) != "ustar\x0000" {
		return nil, corrupted("malformed tar header")
	}
	if prefix := trimName(b[345:500]); prefix != "" {
		h.name = prefix + "/" + h.name
	}
	return h, nil
}

// trimName cuts a header field at its first NUL.
func trimName(field []byte) string {
	if i := bytes.IndexByte(field, 0); i >= 0 {
		field = field[:i]
	}
	return string(field)
}
