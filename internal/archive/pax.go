package archive

import (
	"bytes"
	"errors"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// appendRecord appends a PAX record: its own length in decimal, a space,
// key=value and a newline.
func appendRecord[T string | []byte](b []byte, key string, value T) []byte {
	n := len(key) + len(value) + 3 // space, =, newline
	size := n + len(strconv.Itoa(n))
	size = n + len(strconv.Itoa(size)) // which may have one digit more
	b = strconv.AppendInt(b, int64(size), 10)
	b = append(b, ' ')
	b = append(b, key...)
	b = append(b, '=')
	b = append(b, value...)
	return append(b, '\n')
}

var errRecord = errors.New("malformed extended header")

// nextRecord splits the first record off b.
func nextRecord(b []byte) (key string, value, rest []byte, err error) {
	sp := bytes.IndexByte(b, ' ')
	if sp < 1 || sp > 10 {
		return "", nil, nil, errRecord
	}
	n, err := strconv.ParseUint(string(b[:sp]), 10, 31)
	if err != nil || int(n) > len(b) || int(n) < sp+3 || b[n-1] != '\n' {
		return "", nil, nil, errRecord
	}
	k, v, ok := bytes.Cut(b[sp+1:n-1], []byte{'='})
	if !ok || len(k) == 0 || bytes.IndexByte(k, 0) >= 0 {
		return "", nil, nil, errRecord
	}
	return string(k), v, b[n:], nil
}

// appendTime appends seconds since the epoch as a decimal fraction, without
// trailing zeros.
func appendTime(b []byte, t unix.Timespec) []byte {
	sec, nsec := int64(t.Sec), int64(t.Nsec)
	if sec < 0 && nsec > 0 { // -2 s + 0.25 s is -1.75
		sec, nsec = sec+1, 1e9-nsec
		if sec == 0 {
			b = append(b, '-')
		}
	}
	b = strconv.AppendInt(b, sec, 10)
	if nsec == 0 {
		return b
	}
	b = append(b, '.')
	for unit := int64(1e8); nsec > 0; unit /= 10 {
		b = append(b, '0'+byte(nsec/unit))
		nsec %= unit
	}
	return b
}

var errTime = errors.New("malformed time")

// parseTime parses the format of appendTime and truncates to nanoseconds.
func parseTime(s string) (unix.Timespec, error) {
	whole, fraction, _ := strings.Cut(s, ".")
	negative := strings.HasPrefix(whole, "-")
	sec, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		return unix.Timespec{}, errTime
	}
	var nsec int64
	unit := int64(1e8)
	for i := range len(fraction) {
		c := fraction[i]
		if c < '0' || c > '9' {
			return unix.Timespec{}, errTime
		}
		nsec += int64(c-'0') * unit
		unit /= 10
	}
	if negative && nsec > 0 {
		if sec == -1<<63 {
			return unix.Timespec{}, errTime
		}
		sec, nsec = sec-1, 1e9-nsec
	}
	return unix.Timespec{Sec: sec, Nsec: nsec}, nil
}

// A record's key, which ends at the first "=", contains the attribute's name.
// It is escaped as in GNU tar.
var (
	escapeKey   = strings.NewReplacer("%", "%25", "=", "%3D")
	unescapeKey = strings.NewReplacer("%25", "%", "%3D", "=")
)
