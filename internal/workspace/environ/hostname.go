package environ

import "strings"

// maxHostname is the length of a label in DNS, and of a hostname in Linux.
const maxHostname = 63

// Hostname returns the hostname of a workspace with this name: its ASCII letters, in
// lower case, and digits, with a hyphen for each run of other characters between
// them. A name without ASCII letters and digits gives "workspace".
func Hostname(name string) string {
	var b strings.Builder
	gap := false
	for _, c := range strings.ToLower(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			gap = b.Len() > 0
			continue
		}
		if gap {
			b.WriteByte('-')
			gap = false
		}
		b.WriteRune(c)
	}
	host := b.String()
	host = strings.TrimRight(host[:min(len(host), maxHostname)], "-")
	if host == "" {
		return "workspace"
	}
	return host
}
