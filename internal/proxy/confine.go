package proxy

import (
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
)

// confinement is what the answers of a workspace may affect.
type confinement struct {
	// prefix is where the workspace lives: "/w/{id}" in path mode.
	prefix string
	// reserved are names of cookies that no workspace sets.
	reserved []string
	// hosts are the names by which the IDE knows itself, as it was asked.
	hosts []string
}

// confine changes an answer's headers where they would have an effect outside
// the workspace, or mean another address to the IDE than to its visitor, for
// whom the prefix has been stripped. All others pass untouched.
func confine(h http.Header, c confinement) {
	if lines := h["Set-Cookie"]; len(lines) > 0 {
		var kept []string
		for _, line := range lines {
			if line, ok := c.cookie(line); ok {
				kept = append(kept, line)
			}
		}
		replace(h, "Set-Cookie", kept)
	}
	if v := h.Get("Location"); v != "" {
		h.Set("Location", c.location(v))
	}
	if len(h["Service-Worker-Allowed"]) > 0 {
		// A worker of a wider scope would stand between its visitor and the
		// dashboard, for good. Browsers resolve what is written here, dots and
		// backslashes included, so nothing of it is kept.
		h.Set("Service-Worker-Allowed", c.prefix+"/")
	}
	for _, name := range wholeOrigin {
		h.Del(name)
	}
}

// wholeOrigin are headers that browsers take as said by the whole origin, and
// mostly remember: they would clear the session, lead codehub's own requests
// to another server, forbid or downgrade its https, or report its addresses.
var wholeOrigin = []string{
	"Clear-Site-Data", "Strict-Transport-Security", "Public-Key-Pins", "Expect-Ct", "Alt-Svc",
	"Nel", "Report-To", "Accept-Ch", "Set-Login",
}

// cookie confines one Set-Cookie: not one of ours, for this host only, below
// the prefix. A cookie of a path of its own (__Host-) cannot be had in path
// mode; its browser refuses it.
func (c confinement) cookie(line string) (string, bool) {
	if strings.ContainsFunc(line, isControl) {
		return "", false // browsers ignore it; others may stop reading in the middle
	}
	parts := strings.Split(line, ";")
	if slices.Contains(c.reserved, storedName(parts[0])) {
		return "", false
	}
	kept := parts[:1]
	for _, part := range parts[1:] {
		key, value, _ := strings.Cut(part, "=")
		switch strings.ToLower(textproto.TrimString(key)) {
		case "domain": // none means this host alone
			continue
		case "path":
			// Anything but an absolute path means the folder of the request,
			// as none does; browsers disagree about quotes.
			if value = textproto.TrimString(value); !strings.HasPrefix(value, "/") {
				continue
			}
			part = key + "=" + c.path(value)
		}
		kept = append(kept, part)
	}
	return strings.Join(kept, ";"), true
}

// storedName is the name under which a cookie will come back: a cookie
// without a name is sent as its value alone, which then reads as name=value.
func storedName(pair string) string {
	return cookieName(strings.TrimLeft(pair, " \t="))
}

func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// location leads a redirect back under the prefix: absolute paths, and
// addresses of the IDE itself. Relative ones are right already, foreign ones
// are meant.
func (c confinement) location(v string) string {
	if strings.HasPrefix(v, "/") && !strings.HasPrefix(v, "//") {
		return c.path(v)
	}
	u, err := url.Parse(v)
	if err != nil || u.Scheme != "" && u.Scheme != "http" && u.Scheme != "https" {
		return v
	}
	if u.Host == "" || !slices.ContainsFunc(c.hosts, func(h string) bool { return strings.EqualFold(h, u.Host) }) {
		return v
	}
	_, after, _ := strings.Cut(v, "//")
	return c.path(after[pathStart(after):])
}

// pathStart is where the path begins after an authority.
func pathStart(s string) int {
	if i := strings.IndexAny(s, "/?#"); i >= 0 {
		return i
	}
	return len(s)
}

// path puts a path that is absolute for the IDE below the prefix, unless it
// is there already.
func (c confinement) path(v string) string {
	if v == c.prefix || strings.HasPrefix(v, c.prefix+"/") {
		return v
	}
	if !strings.HasPrefix(v, "/") {
		v = "/" + v
	}
	return c.prefix + v
}
