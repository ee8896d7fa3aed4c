package archive

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

const (
	maxOctal7  = 1<<21 - 1 // largest number in the 8 bytes of a mode, uid or gid
	maxOctal11 = 1<<33 - 1 // largest number in the 12 bytes of a size or time
	xattrKey   = "SCHILY.xattr."
)

// header writes the headers of entries and reuses its buffers.
type header struct {
	records []byte
	value   []byte
}

// append appends to b what precedes the content of e: its PAX records, its
// ustar header and, for a sparse file, the map.
func (h *header) append(b []byte, e *entry) ([]byte, error) {
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
	h.records = h.records[:0]
	if e.sparse() {
		layout = appendSparseMap(nil, e)
		stored += int64(len(layout))
		h.record("GNU.sparse.major", "1")
		h.record("GNU.sparse.minor", "0")
		h.record("GNU.sparse.name", name)
		h.record("GNU.sparse.realsize", strconv.FormatInt(e.size, 10))
		dir, base := name[:strings.LastIndexByte(name, '/')], name[strings.LastIndexByte(name, '/')+1:]
		name = dir + "/GNUSparseFile.0/" + base
	}
	prefix, short, fits := splitName(name)
	if !fits {
		h.record("path", name)
		short = name[:100]
	}
	if len(link) > 100 {
		h.record("linkpath", link)
		link = link[:100]
	}
	if stored > maxOctal11 {
		h.record("size", strconv.FormatInt(stored, 10))
	}
	if e.uid > maxOctal7 {
		h.record("uid", strconv.FormatUint(uint64(e.uid), 10))
	}
	if e.gid > maxOctal7 {
		h.record("gid", strconv.FormatUint(uint64(e.gid), 10))
	}
	if e.mtime.Nsec != 0 || e.mtime.Sec < 0 || e.mtime.Sec > maxOctal11 {
		h.value = appendTime(h.value[:0], e.mtime)
		h.records = appendRecord(h.records, "mtime", h.value)
	}
	if e.atime.Sec != 0 || e.atime.Nsec != 0 {
		h.value = appendTime(h.value[:0], e.atime)
		h.records = appendRecord(h.records, "atime", h.value)
	}
	for _, x := range e.xattrs {
		h.records = appendRecord(h.records, xattrKey+escapeKey.Replace(x.name), x.value)
	}
	if len(h.records) > maxHeader {
		return b, fmt.Errorf("%w: path and attributes are larger than %d bytes", ErrUnrestorable, maxHeader)
	}
	if len(h.records) > 0 {
		b = appendUstar(b, ustar{name: "./PaxHeaders/" + string(e.kind), kind: kindPAX, mode: 0o644, size: int64(len(h.records))})
		b = append(b, h.records...)
		b = appendZeros(b, padding(int64(len(h.records))))
	}
	b = appendUstar(b, ustar{
		prefix: prefix, name: short, kind: e.kind, link: link, mode: e.mode,
		uid: e.uid, gid: e.gid, size: stored, mtime: int64(e.mtime.Sec),
	})
	return append(b, layout...), nil
}

func (h *header) record(key, value string) {
	h.value = append(h.value[:0], value...)
	h.records = appendRecord(h.records, key, h.value)
}

// splitName splits a name into ustar's two fields, which a "/" joins.
func splitName(name string) (prefix, short string, ok bool) {
	if len(name) <= 100 {
		return "", name, true
	}
	if len(name) > 256 {
		return "", "", false
	}
	at := strings.LastIndexByte(name[:min(156, len(name)-1)], '/')
	if at <= 0 || len(name)-at-1 > 100 {
		return "", "", false
	}
	return name[:at], name[at+1:], true
}

// ustar is a parsed header block; values that do not fit are in records.
type ustar struct {
	prefix, name, link string
	kind               byte
	mode, uid, gid     uint32
	size, mtime        int64
}

func appendUstar(b []byte, u ustar) []byte {
	start := len(b)
	b = appendZeros(b, blockSize)
	h := b[start:]
	copy(h[0:100], u.name)
	octal(h[100:108], int64(u.mode))
	octal(h[108:116], int64(min(u.uid, maxOctal7)))
	octal(h[116:124], int64(min(u.gid, maxOctal7)))
	octal(h[124:136], min(u.size, maxOctal11))
	octal(h[136:148], min(max(u.mtime, 0), maxOctal11))
	h[156] = u.kind
	copy(h[157:257], u.link)
	copy(h[257:265], "ustar\x0000")
	octal(h[329:337], 0)
	octal(h[337:345], 0)
	copy(h[345:500], u.prefix)
	copy(h[148:156], "        ")
	octal(h[148:155], checksum(h))
	return b
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
	// Eight bytes at a time, in four lanes of 16 bits, which 64 times two bytes cannot overflow.
	const low = 0x00ff00ff00ff00ff
	var lanes uint64
	for i := 0; i < blockSize; i += 8 {
		v := binary.LittleEndian.Uint64(h[i:])
		lanes += v&low + v>>8&low
	}
	var sum int64
	for ; lanes > 0; lanes >>= 16 {
		sum += int64(lanes & 0xffff)
	}
	for _, c := range h[148:156] {
		sum += ' ' - int64(c)
	}
	return sum
}

var zeros [blockSize]byte

func appendZeros(b []byte, n int64) []byte { return append(b, zeros[:n]...) }

// trimName cuts a header field at its first NUL.
func trimName(field []byte) string {
	if i := bytes.IndexByte(field, 0); i >= 0 {
		field = field[:i]
	}
	return string(field)
}
