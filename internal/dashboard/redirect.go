package dashboard

import (
	"net/url"
	"strings"
)

// localPath returns next if it is a path on this origin that a browser can
// only read as one, else "/". Browsers drop tabs and line breaks and take a
// backslash for a slash, so whatever holds one of those, an escaped one
// included, is refused rather than repaired.
func localPath(next string) string {
	const home = "/"
	if next == "" || len(next) > 2048 || next[0] != '/' {
		return home
	}
	u, err := url.Parse(next)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || u.Opaque != "" {
		return home
	}
	// Both the raw form and the decoded path: one is what the browser reads
	// now, the other what a server behind might redirect to.
	for _, s := range []string{next, u.Path} {
		if strings.HasPrefix(s, "//") || strings.ContainsRune(s, '\\') {
			return home
		}
		for _, c := range s {
			if c < 0x20 || c == 0x7f {
				return home
			}
		}
	}
	if strings.HasPrefix(u.Path, "/login") || strings.HasPrefix(u.Path, "/setup") {
		return home
	}
	return next
}
