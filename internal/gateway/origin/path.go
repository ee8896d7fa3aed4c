package origin

import (
	"net/url"
	"strings"
)

// OwnPrefix begins codehub's own paths on every host. EntryPath is the address on the
// main origin at which a visitor enters a workspace, or a port of it, in the modes with
// separate origins.
const (
	OwnPrefix = "/_codehub/"
	EntryPath = OwnPrefix + "enter"
)

// LocalPath reports whether every browser reads s as a path on the origin that serves
// it, with an optional query. Browsers drop tabs and line breaks and read a backslash
// as a slash, so a path with one of these, also escaped, is not local.
func LocalPath(s string) bool {
	if s == "" || s[0] != '/' {
		return false
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || u.Opaque != "" {
		return false
	}
	// The raw form is what the browser reads; the decoded path is what a server behind
	// might redirect to.
	for _, s := range []string{s, u.Path} {
		if strings.HasPrefix(s, "//") || strings.ContainsRune(s, '\\') {
			return false
		}
		for _, c := range s {
			if c < 0x20 || c == 0x7f {
				return false
			}
		}
	}
	return true
}
