package gitaccess

import (
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// MaxHost is the length of a host that a user enters, in bytes.
const MaxHost = 272

const maxName = 253

var validHost = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*$`)

// ParseHost returns the one form of a Git server's host, by which connections are compared: in
// lower case, with a port that is not the default of its scheme. It begins with http:// if s does;
// without a scheme, s is an HTTPS server.
func ParseHost(s string) (string, error) {
	const words = "A host is like git.example.com, git.example.com:8443, or http://git.example.com for a server without TLS."
	rest := strings.ToLower(strings.TrimSpace(s))
	prefix, port := "", "443"
	if after, ok := strings.CutPrefix(rest, "http://"); ok {
		rest, prefix, port = after, "http://", "80"
	} else {
		rest = strings.TrimPrefix(rest, "https://")
	}
	rest = strings.TrimSuffix(rest, "/")
	name, given := rest, ""
	if i := strings.LastIndexByte(rest, ':'); i > strings.LastIndexByte(rest, ']') {
		name, given = rest[:i], rest[i+1:]
		if n, err := strconv.ParseUint(given, 10, 16); err != nil || n == 0 || strconv.FormatUint(n, 10) != given {
			return "", invalid("host", words)
		}
	}
	if inner, ok := strings.CutPrefix(name, "["); ok {
		addr, err := netip.ParseAddr(strings.TrimSuffix(inner, "]"))
		if err != nil || !addr.Is6() || addr.Zone() != "" || !strings.HasSuffix(inner, "]") {
			return "", invalid("host", words)
		}
		name = addr.String()
	} else if len(name) > maxName || !validHost.MatchString(name) {
		return "", invalid("host", words)
	}
	switch {
	case given != "" && given != port:
		return prefix + net.JoinHostPort(name, given), nil
	case strings.Contains(name, ":"):
		return prefix + "[" + name + "]", nil
	}
	return prefix + name, nil
}
