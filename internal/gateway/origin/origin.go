// Package origin says at which origins codehub and its workspaces are reached, and
// which of them the Host header of a request names.
//
// By default each workspace has an origin of its own, so that a page in a workspace
// cannot act as its visitor on the dashboard, the API or another workspace. In path
// mode all share the origin of CODEHUB_URL.
package origin

import (
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"codehub/internal/workspace"
)

// PathMode is the value of CODEHUB_WORKSPACE_URL that serves workspaces under
// /w/{id}/ on the origin of CODEHUB_URL.
const PathMode = "path"

// LocalHost is the host of codehub in local mode. Browsers send the cookies of a host to each
// of its ports, so it is not localhost, where other programs have their pages.
const LocalHost = "codehub.localhost"

// Kind is what a host is.
type Kind int

// Unknown hosts are not codehub's. Main is the dashboard's and the API's.
const (
	Unknown Kind = iota
	Main
	Workspace
)

// Place is what a host names.
type Place struct {
	Kind Kind
	workspace.Host
}

// Layout knows the origins of one installation. The zero Layout knows no host.
type Layout struct {
	scheme string
	main   address
	// The host of a workspace is before + id + after. after contains the domain; it
	// is empty in path mode.
	before, after, port string
}

// address is a host in lower case, without a trailing dot, and its port, which is
// never empty.
type address struct{ host, port string }

// Error is an unusable value of CODEHUB_WORKSPACE_URL.
type Error struct {
	Why string
	Do  string // a value that works
}

func (e *Error) Error() string { return e.Why + "; " + e.Do }

// Parse returns the layout for CODEHUB_URL, which has a scheme and a host only, and
// CODEHUB_WORKSPACE_URL, which may be empty. The error is an *Error.
func Parse(public *url.URL, setting string) (Layout, error) {
	l := Layout{scheme: public.Scheme}
	var ok bool
	if l.main, ok = parseHost(public.Host, public.Scheme); !ok || !validDomain(l.main.host) && !isIP(l.main.host) {
		return Layout{}, &Error{fmt.Sprintf("the host of CODEHUB_URL, %q, is not a host name", public.Host), "write it in ASCII, an international name as xn--…"}
	}
	switch {
	case setting == PathMode:
		return l, nil
	case setting == "" && (l.main.host == LocalHost || l.main.host == "localhost" || l.main.host == "127.0.0.1" || l.main.host == "::1"):
		// Browsers resolve names below localhost to this machine by themselves.
		l.after, l.port = ".localhost", l.main.port
		return l, nil
	case setting == "":
		return Layout{}, &Error{"it is not set, and the workspaces of " + l.Main() + " need an origin of their own",
			fmt.Sprintf("give a pattern such as %s with a DNS record and a certificate for it, or %s to share one origin between users who trust each other", l.example(), PathMode)}
	}
	if err := l.parsePattern(setting); err != nil {
		return Layout{}, err
	}
	return l, nil
}

// example returns a pattern for the main host.
func (l Layout) example() string {
	host := l.main.host
	if isIP(host) {
		host = "example.com"
	}
	return l.scheme + "://*.ws." + host
}

// idLength is the length of a workspace's ID, and portLength that of "65535--".
const (
	idLength   = 36
	portLength = 7
)

func (l *Layout) parsePattern(pattern string) error {
	give := fmt.Sprintf("give a pattern such as %s, or %s", l.example(), PathMode)
	scheme, rest, ok := strings.Cut(pattern, "://")
	rest = strings.TrimSuffix(rest, "/")
	switch {
	case !ok:
		return &Error{fmt.Sprintf("%q is not a URL", pattern), give}
	case lower(scheme) != l.scheme:
		return &Error{fmt.Sprintf("%q has another scheme than CODEHUB_URL (%s)", pattern, l.Main()), give}
	case strings.ContainsAny(rest, "/?#@"):
		return &Error{fmt.Sprintf("%q has more than a host", pattern), give}
	case !strings.Contains(rest, "*"):
		if a, ok := parseHost(rest, l.scheme); ok && a == l.main {
			return &Error{fmt.Sprintf("%q is the address of codehub itself", pattern), fmt.Sprintf("give a pattern such as %s, or %s to serve workspaces there", l.example(), PathMode)}
		}
		return &Error{fmt.Sprintf("%q has no * in the place of the workspace's id", pattern), give}
	case strings.Count(rest, "*") > 1:
		return &Error{fmt.Sprintf("%q has more than one *", pattern), give}
	}
	// A letter in the place of the id makes it a host name.
	a, ok := parseHost(strings.Replace(rest, "*", "x", 1), l.scheme)
	label, domain, _ := strings.Cut(a.host, ".")
	first, _, _ := strings.Cut(rest, ".")
	before, after, inFirst := strings.Cut(lower(first), "*")
	switch {
	case !ok || !validDomain(a.host) || domain == "":
		return &Error{fmt.Sprintf("%q is not a host name with a domain", pattern), give}
	case !inFirst:
		return &Error{fmt.Sprintf("%q has its * not in the first part of the host", pattern), give}
	case len(label)-1+portLength+idLength > maxLabel:
		return &Error{fmt.Sprintf("%q leaves too little room for the workspace's id in the first part of the host", pattern), give}
	}
	l.before, l.after, l.port = before, after+"."+domain, a.port
	if _, own := l.match(l.main); own {
		return &Error{fmt.Sprintf("%q contains the address of codehub itself, %s", pattern, l.Main()), give}
	}
	return nil
}

// PathMode reports whether workspaces share the main origin.
func (l Layout) PathMode() bool { return l.after == "" }

// Local reports whether codehub is reached by plain http on this machine alone.
func (l Layout) Local() bool { return l.scheme == "http" && l.main.host == LocalHost }

// FromLoopback returns the main origin for a request to a loopback address or localhost, with
// the port that the client used. It returns false outside local mode, and for other hosts.
func (l Layout) FromLoopback(host string) (string, bool) {
	a, ok := parseHost(host, l.scheme)
	if !ok || !l.Local() || !isLoopback(a.host) {
		return "", false
	}
	return l.origin(address{LocalHost, a.port}), true
}

// Scheme is http or https.
func (l Layout) Scheme() string { return l.scheme }

// Main returns the origin of the dashboard and the API.
func (l Layout) Main() string { return l.origin(l.main) }

// Pattern returns the origins of workspaces with * for the id, or "" in path mode.
func (l Layout) Pattern() string {
	if l.PathMode() {
		return ""
	}
	return l.origin(address{l.before + "*" + l.after, l.port})
}

// URL returns the origin of a workspace's IDE or of a port in it, in the form that
// browsers send. In path mode it is the main origin.
func (l Layout) URL(h workspace.Host) string {
	if l.PathMode() {
		return l.Main()
	}
	name := string(h.ID)
	if h.Port != 0 {
		name = strconv.Itoa(h.Port) + "--" + name
	}
	return l.origin(address{l.before + name + l.after, l.port})
}

// PortURI returns the addresses of a workspace's ports with {{port}} for the port, as
// VS Code knows them, or "" in path mode.
func (l Layout) PortURI(id workspace.ID) string {
	if l.PathMode() {
		return ""
	}
	return l.origin(address{l.before + "{{port}}--" + string(id) + l.after, l.port}) + "/"
}

// Sources returns the origins of workspaces as a source of a Content-Security-Policy,
// in which * stands for whole parts of a host only, or "" in path mode.
func (l Layout) Sources() string {
	if l.PathMode() {
		return ""
	}
	_, domain, _ := strings.Cut(l.after, ".")
	return l.origin(address{"*." + domain, l.port})
}

// Host returns the host of an origin that this package made.
func Host(origin string) string {
	_, host, _ := strings.Cut(origin, "://")
	return host
}

func (l Layout) origin(a address) string {
	host := a.host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if a.port != defaultPort(l.scheme) {
		host += ":" + a.port
	}
	return l.scheme + "://" + host
}

// Route returns what the Host header of a request names. Case, a trailing dot and the
// scheme's default port make no difference. A loopback address with any port is the
// main origin's, so that programs on the machine reach the server without a name. In local
// mode LocalHost is, too, for tunnels.
func (l Layout) Route(host string) Place {
	a, ok := parseHost(host, l.scheme)
	if !ok || l.scheme == "" {
		return Place{}
	}
	if a == l.main || isLoopback(a.host) || l.Local() && a.host == LocalHost {
		return Place{Kind: Main}
	}
	p, _ := l.match(a)
	return p
}

// Secure returns the https origin that belongs to the host of a plain http request, on
// any port. It returns false if there is none.
func (l Layout) Secure(host string) (string, bool) {
	a, ok := parseHost(host, "http")
	if !ok || l.scheme != "https" {
		return "", false
	}
	if a.host == l.main.host {
		return l.Main(), true
	}
	p, ok := l.match(address{a.host, l.port})
	return l.URL(p.Host), ok
}

// match returns the workspace that a host names, with its ID and port in their only
// accepted form.
func (l Layout) match(a address) (Place, bool) {
	if l.PathMode() || a.port != l.port {
		return Place{}, false
	}
	name, ok := strings.CutPrefix(a.host, l.before)
	if !ok {
		return Place{}, false
	}
	if name, ok = strings.CutSuffix(name, l.after); !ok {
		return Place{}, false
	}
	p := Place{Kind: Workspace}
	if port, id, found := strings.Cut(name, "--"); found {
		if p.Port, ok = ParsePort(port); !ok {
			return Place{}, false
		}
		name = id
	}
	if !workspace.ValidID(name) {
		return Place{}, false
	}
	p.ID = workspace.ID(name)
	return p, true
}

// ParsePort parses a port from 1 to 65535 without a sign or leading zeros.
func ParsePort(s string) (int, bool) {
	if s == "" || len(s) > 5 || s[0] == '0' {
		return 0, false
	}
	n := 0
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return n, n <= 65535
}

// parseHost normalizes the host of a URL or a Host header.
func parseHost(s, scheme string) (address, bool) {
	host, port := s, defaultPort(scheme)
	if rest, literal := strings.CutPrefix(s, "["); literal {
		literal, after, closed := strings.Cut(rest, "]")
		ip, err := netip.ParseAddr(literal)
		if !closed || err != nil || !ip.Is6() || ip.Zone() != "" {
			return address{}, false
		}
		if after != "" {
			var ok bool
			if port, ok = strings.CutPrefix(after, ":"); !ok {
				return address{}, false
			}
			if _, ok = ParsePort(port); !ok {
				return address{}, false
			}
		}
		return address{ip.String(), port}, true
	}
	if h, p, found := strings.Cut(s, ":"); found {
		if _, ok := ParsePort(p); !ok {
			return address{}, false
		}
		host, port = h, p
	}
	host = strings.TrimSuffix(lower(host), ".")
	for _, c := range []byte(host) {
		if !isHostByte(c) {
			return address{}, false
		}
	}
	return address{host, port}, host != ""
}

// lower lower-cases ASCII only: other letters with an ASCII lower case, such as the
// Kelvin sign, are not the same host.
func lower(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return 'A' <= r && r <= 'Z' }) {
		return s
	}
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}

func isHostByte(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.'
}

const (
	maxLabel  = 63
	maxDomain = 253
)

// validDomain reports whether a host in lower case is a name that DNS can have, and
// not an IPv4 address.
func validDomain(host string) bool {
	labels := strings.Split(host, ".")
	for _, label := range labels {
		if label == "" || len(label) > maxLabel || label[0] == '-' || label[len(label)-1] == '-' || strings.ContainsFunc(label, func(r rune) bool {
			return r > 0x7f || r == '.' || !isHostByte(byte(r))
		}) {
			return false
		}
	}
	last := labels[len(labels)-1]
	return len(host) <= maxDomain && strings.ContainsFunc(last, func(r rune) bool { return r < '0' || r > '9' })
}

func isIP(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// Loopback reports whether a host name of a URL, without a port, leads to this machine
// in every browser.
func Loopback(host string) bool {
	host = strings.TrimSuffix(lower(host), ".")
	return isLoopback(host) || strings.HasSuffix(host, ".localhost")
}

func defaultPort(scheme string) string {
	if scheme == "https" {
		return "443"
	}
	return "80"
}
