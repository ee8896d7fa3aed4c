package dashboard

import (
	"net/url"
	"strings"
)

// localPath returns next if every browser reads it as a path on this origin, else "/". Browsers
// drop tabs and line breaks and read a backslash as a slash, so a path with one of these, also
// escaped, is refused rather than repaired.
func localPath(next string) string {
	const home = "/"
	if next == "" || len(next) > 2048 || next[0] != '/' {
		return home
	}
	u, err := url.Parse(next)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || u.Opaque != "" {
		return home
	}
	// The raw form is what the browser reads; the decoded path is what a server behind might
	// redirect to.
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
