package proxy

import (
	"net/url"
	"strings"
)

// splitPath returns Path and RawPath for a url.URL that sends exactly the escaped
// path.
func splitPath(escaped string) (path, raw string, err error) {
	raw = escapeStray(escaped)
	path, err = url.PathUnescape(raw)
	return path, raw, err
}

// escapeStray escapes the bytes that clients should have escaped. Otherwise net/url
// would encode the whole path again and turn an escaped slash into a real one.
func escapeStray(path string) string {
	if !hasStray(path) {
		return path
	}
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(path) {
		if c := path[i]; isPathByte(c) {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}

func hasStray(path string) bool {
	for i := range len(path) {
		if !isPathByte(path[i]) {
			return true
		}
	}
	return false
}

func isPathByte(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return strings.IndexByte("-_.~!$&'()*+,;=:@[]%/", c) >= 0
}
