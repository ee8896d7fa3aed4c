package proxy

import (
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
)

// confinement describes the part of the origin that a workspace's responses may
// affect.
type confinement struct {
	// prefix of the workspace's paths: "/w/{id}" on the main origin, empty on the
	// workspace's own host.
	prefix string
	// reserved are the names of cookies that no workspace may set.
	reserved []string
	// hosts are the Host values that the IDE may have seen.
	hosts []string
}

// confine changes the headers of a response that would have an effect outside the
// workspace, or that contain paths without the prefix. All other headers pass
// unchanged.
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
	if len(h["Service-Worker-Allowed"]) > 0 && c.prefix != "" {
		// A service worker with a wider scope would intercept the dashboard's
		// requests. Browsers normalize dots and backslashes in the value, so it is
		// replaced.
		h.Set("Service-Worker-Allowed", c.prefix+"/")
	}
	for name := range h {
		if wholeOrigin[name] || directsProxy(name) {
			delete(h, name)
		}
	}
}

// workerScope is the only path that a service worker from the root of an IDE's host can have.
// Nothing is there.
const workerScope = "/_/"

// confineWorker keeps the service workers of an IDE's host away from codehub's own paths, where
// they would read the tickets of visitors. By default a script can be registered for its folder;
// the header replaces that, also where a browser has the script in its cache.
func confineWorker(h http.Header, path string) {
	delete(h, "Service-Worker-Allowed")
	if inRoot(path) && slices.ContainsFunc(h["Content-Type"], isScript) {
		h.Set("Service-Worker-Allowed", workerScope)
	}
}

// isScript reports whether a Content-Type may be one of the scripts, without which browsers
// register no service worker.
func isScript(contentType string) bool {
	return strings.Contains(strings.ToLower(contentType), "script")
}

// inRoot reports whether a path, as sent, is in the root folder.
func inRoot(path string) bool { return strings.LastIndexByte(path, '/') == 0 }

// wholeOrigin are headers that browsers apply to the whole origin and mostly
// remember: they would clear the session, redirect codehub's requests to another
// server, forbid or downgrade https, or report addresses.
var wholeOrigin = map[string]bool{
	"Clear-Site-Data": true, "Strict-Transport-Security": true, "Alt-Svc": true, "Nel": true, "Report-To": true, "Set-Login": true, "Set-Cookie2": true,
	"Public-Key-Pins": true, "Public-Key-Pins-Report-Only": true, "Expect-Ct": true, "Expect-Staple": true, "Origin-Policy": true,
	// Which headers browsers add to all requests, and which process serves the origin.
	"Accept-Ch": true, "Accept-Ch-Lifetime": true, "Critical-Ch": true, "Origin-Agent-Cluster": true,
	// Sessions bound to a device.
	"Secure-Session-Registration": true, "Secure-Session-Challenge": true, "Sec-Session-Registration": true, "Sec-Session-Challenge": true,
	// Dictionaries for compressed responses of other paths.
	"Use-As-Dictionary": true,
	// Storage of the origin, and what advertising stores for it.
	"Shared-Storage-Write": true, "Activate-Storage-Access": true, "Observe-Browsing-Topics": true,
	"Attribution-Reporting-Register-Source": true, "Attribution-Reporting-Register-Trigger": true,
	"Attribution-Reporting-Register-Os-Source": true, "Attribution-Reporting-Register-Os-Trigger": true,
}

// directsProxy reports whether a reverse proxy or a CDN in front of codehub may obey a
// header of a response, in any case: send a file or another address's response in its place,
// evaluate the body, change how responses are buffered and stored, or take codehub for dead.
func directsProxy(name string) bool {
	return slices.ContainsFunc(proxyDirectives, func(p string) bool { return len(name) >= len(p) && strings.EqualFold(name[:len(p)], p) })
}

// proxyDirectives are the beginnings of such headers.
var proxyDirectives = []string{
	"X-Accel-",                  // nginx
	"X-Sendfile", "X-LIGHTTPD-", // Apache, lighttpd and others
	"X-LiteSpeed-", "X-LSADC-", "LSC-Cookie", // LiteSpeed
	"X-Reproxy-",                        // H2O, Perlbal
	"X-Envoy-",                          // Envoy
	"Surrogate-Control", "Edge-Control", // Edge Side Includes: Varnish, Squid, CDNs
	"Fly-Replay", // the proxy of Fly.io
}

// cookie confines one Set-Cookie header: no reserved name, no domain, and a path
// below the prefix. Browsers reject __Host- cookies then, because those require the
// path "/".
func (c confinement) cookie(line string) (string, bool) {
	if strings.ContainsFunc(line, isControl) {
		return "", false // browsers ignore it; other clients may parse it differently
	}
	parts := strings.Split(line, ";")
	if slices.Contains(c.reserved, storedName(parts[0])) {
		return "", false
	}
	kept := parts[:1]
	for _, part := range parts[1:] {
		key, value, _ := strings.Cut(part, "=")
		switch strings.ToLower(textproto.TrimString(key)) {
		case "domain": // without a domain the cookie applies to this host only
			continue
		case "path":
			// A path that is not absolute means the directory of the request, as no
			// path does. Browsers disagree about quotes.
			if value = textproto.TrimString(value); !strings.HasPrefix(value, "/") {
				continue
			}
			part = key + "=" + c.path(value)
		}
		kept = append(kept, part)
	}
	return strings.Join(kept, ";"), true
}

// storedName is the name of a cookie as browsers will send it back. A cookie
// without a name is sent as its value alone, which is then read as name=value.
func storedName(pair string) string {
	return cookieName(strings.TrimLeft(pair, " \t="))
}

func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// location adds the prefix to a redirect to an absolute path or to the IDE's own
// host. Relative redirects are correct as they are, and redirects to other hosts
// are intended.
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

// pathStart returns the index of the path after an authority.
func pathStart(s string) int {
	if i := strings.IndexAny(s, "/?#"); i >= 0 {
		return i
	}
	return len(s)
}

// path adds the prefix to an absolute path, unless it has it.
func (c confinement) path(v string) string {
	if v == c.prefix || strings.HasPrefix(v, c.prefix+"/") {
		return v
	}
	if !strings.HasPrefix(v, "/") {
		v = "/" + v
	}
	return c.prefix + v
}
