package archive

import (
	"fmt"
	"strconv"
	"strings"
)

const (
	maxOctal7  = 1<<21 - 1 // largest number in the 8 bytes of a mode, uid or gid
	maxOctal11 = 1<<33 - 1 // largest number in the 12 bytes of a size or time
	maxField   = 100       // bytes of a name
	xattrKey   = "SCHILY.xattr."
)

// appendHeader appends to b what precedes the content of e: its PAX records, its
// ustar header and, for a sparse file, the map.
func appendHeader(b []byte, e *entry) ([]byte, error) {
	name := "./" + e.name
	if e.name == "." {
		name = "./"
	} else if e.kind == kindFolder {
		name += "/"
	}
	link := e.link
	if e.kind == kindHardLink {
		link = "./" + link
	}
	stored := e.stored()
	var layout []byte
	start := len(b)
	b = appendZeros(b, blockSize) // the header of the records
	if e.sparse() {
		layout = appendSparseMap(nil, e)
		stored += int64(len(layout))
		b = appendRecord(b, "GNU.sparse.major", "1")
		b = appendRecord(b, "GNU.sparse.minor", "0")
		b = appendRecord(b, "GNU.sparse.name", name)
		b = appendRecord(b, "GNU.sparse.realsize", strconv.FormatInt(e.size, 10))
		at := strings.LastIndexByte(name, '/')
		name = name[:at] + "/GNUSparseFile.0" + name[at:]
	}
	if len(name) > maxField {
		b = appendRecord(b, "path", name)
	}
	if len(link) > maxField {
		b = appendRecord(b, "linkpath", link)
	}
	if stored > maxOctal11 {
		b = appendRecord(b, "size", strconv.FormatInt(stored, 10))
	}
	if e.uid > maxOctal7 {
		b = appendRecord(b, "uid", strconv.FormatUint(uint64(e.uid), 10))
	}
	if e.gid > maxOctal7 {
		b = appendRecord(b, "gid", strconv.FormatUint(uint64(e.gid), 10))
	}
	if e.mtime.Nsec != 0 || e.mtime.Sec < 0 || e.mtime.Sec > maxOctal11 {
		b = appendRecord(b, "mtime", appendTime(make([]byte, 0, 32), e.mtime))
	}
	if e.atime.Sec != 0 || e.atime.Nsec != 0 {
		b = appendRecord(b, "atime", appendTime(make([]byte, 0, 32), e.atime))
	}
	for _, x := range e.xattrs {
		b = appendRecord(b, xattrKey+escapeKey.Replace(x.name), x.value)
	}
	switch n := int64(len(b) - start - blockSize); {
	case n > maxHeader:
		return b[:start], fmt.Errorf("%w: path and attributes are larger than %d bytes", ErrUnrestorable, maxHeader)
	case n == 0:
		b = b[:start]
	default:
		putUstar(b[start:], &entry{name: "./PaxHeaders/" + string(e.kind), kind: kindPAX, mode: 0o644}, n)
		b = appendZeros(b, padding(n))
	}
	b = appendZeros(b, blockSize)
	ustar := *e
	ustar.name, ustar.link = name, link
	putUstar(b[len(b)-blockSize:], &ustar, stored)
	return append(b, layout...), nil
}

// putUstar fills a zeroed block with a header. What does not fit is in the records.
func putUstar(h []byte, e *entry, stored int64) {
	copy(h[0:maxField], e.name)
	octal(h[100:108], int64(e.mode))
	octal(h[108:116], int64(min(e.uid, maxOctal7)))
	octal(h[116:124], int64(min(e.gid, maxOctal7)))
	octal(h[124:136], min(stored, maxOctal11))
	octal(h[136:148], min(max(e.mtime.Sec, 0), maxOctal11))
	h[156] = e.kind
	copy(h[157:157+maxField], e.link)
	copy(h[257:265], "ustar\x0000")
	octal(h[329:337], 0)
	octal(h[337:345], 0)
	octal(h[148:155], checksum(h))
}

// octal fills a field except its last byte, which stays zero.
func octal(field []byte, n int64) {
	for i := len(field) - 2; i >= 0; i-- {
		field[i] = '0' + byte(n&7)
		n >>= 3
	}
}

// checksum sums a header block with blanks in place of its checksum.
func checksum(h []byte) int64 {
	sum := int64(8 * ' ')
	for _, c := range h[:148] {
		sum += int64(c)
	}
	for _, c := range h[156:blockSize] {
		sum += int64(c)
	}
	return sum
}

var zeros [blockSize]byte

func appendZeros(b []byte, n int64) []byte { return append(b, zeros[:n]...) }
