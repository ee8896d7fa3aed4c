package auth

import (
	"net"
	"net/http"
	"slices"
	"strings"

	"codehub/api"
	"codehub/internal/workspace"
)

// maxSameCookies is how many session cookies with the same value a request may have.
// A browser sends one.
const maxSameCookies = 4

// sessionCookie returns the value of the session cookie with this name, among cookies that
// may have other names too; "" if there is none.
// CodeCookieConflict if there are several: another page has set all but one, with
// paths of its own, to make the browser act as another user. The order of the cookies
// says nothing about which one is codehub's.
func sessionCookie(cookies []*http.Cookie, name string) (string, error) {
	value, n := "", 0
	for _, c := range cookies {
		if c.Name != name || c.Value == "" {
			continue
		}
		if n++; n > maxSameCookies || value != "" && c.Value != value {
			return "", workspace.Errorf(workspace.CodeCookieConflict, "The browser sent several session cookies. They have been removed. Try again.")
		}
		value = c.Value
	}
	return value, nil
}

// RefuseConflicts passes requests to next unless their session cookies conflict. Then
// the cookies that other pages have set are removed from the browser, so that its next
// request is accepted, and refuse responds, with this status. A request with an API
// token in its own header uses no cookie.
func RefuseConflicts(refuse func(w http.ResponseWriter, r *http.Request, err error), next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.Header.Values(api.TokenHeader)) > 0 || !maybeConflicting(r.Header["Cookie"]) {
			next.ServeHTTP(w, r)
			return
		}
		var conflict error
		cookies := r.Cookies()
		for _, name := range CookieNames() {
			if _, err := sessionCookie(cookies, name); err != nil {
				conflict = err
				expirePlanted(w.Header(), r, name)
			}
		}
		if conflict != nil {
			refuse(w, r, conflict)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// maybeConflicting reports whether a name of the session cookies occurs twice. Most
// requests are not parsed any further.
func maybeConflicting(lines []string) bool {
	for _, name := range CookieNames() {
		n := 0
		for _, line := range lines {
			n += strings.Count(line, name)
		}
		if n > 1 {
			return true
		}
	}
	return false
}

// maxExpired limits the path prefixes for which cookies are removed.
const maxExpired = 64

// expirePlanted removes the cookies with this name that other pages can have set: those
// of this host for a longer path than codehub's own, which is "/", and those of parent
// domains.
func expirePlanted(h http.Header, r *http.Request, name string) {
	domains := parentDomains(r.Host)
	for _, path := range pathPrefixes(r) {
		for _, domain := range append(domains, "") {
			if path == "/" && domain == "" {
				continue // codehub's own
			}
			c := http.Cookie{Name: name, Path: path, Domain: domain, MaxAge: -1, HttpOnly: true, Secure: strings.HasPrefix(name, hostPrefix), SameSite: http.SameSiteLaxMode}
			h.Add("Set-Cookie", c.String())
		}
	}
}

// pathPrefixes lists the paths of cookies that a browser sends with this request (RFC
// 6265, 5.1.4), shortest first.
func pathPrefixes(r *http.Request) []string {
	// Browsers compare the path as it is sent, before it is decoded.
	path, _, _ := strings.Cut(r.RequestURI, "?")
	if !strings.HasPrefix(path, "/") {
		path = r.URL.EscapedPath()
	}
	// A cookie's path has no semicolon.
	path, _, cut := strings.Cut(path, ";")
	prefixes := []string{"/"}
	for i := 1; i < len(path) && len(prefixes) < maxExpired; i++ {
		if path[i] == '/' {
			prefixes = append(prefixes, path[:i], path[:i+1])
		}
	}
	if !cut && path != "" {
		prefixes = append(prefixes, path)
	}
	slices.Sort(prefixes)
	return slices.Compact(prefixes)
}

// parentDomains lists the domains for which another host can set cookies that reach
// this one. Browsers ignore those that are public suffixes.
func parentDomains(host string) []string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if net.ParseIP(strings.Trim(host, "[]")) != nil || len(host) > 253 {
		return nil
	}
	var domains []string
	for len(domains) < 4 && strings.Contains(host, ".") {
		domains = append(domains, host)
		_, host, _ = strings.Cut(host, ".")
	}
	return domains
}
