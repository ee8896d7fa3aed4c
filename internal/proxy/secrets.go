package proxy

import (
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"codehub/api"
	"codehub/internal/runtime"
)

// secrets are what must never reach a workspace: what its visitor is known by
// at codehub, and a container secret that a visitor made up.
type secrets struct {
	cookies []string
	isToken func(string) bool
}

// strip removes codehub's own credentials from a request's headers and
// nothing else: the workspace's cookies and Authorization pass byte for byte.
func (s secrets) strip(h http.Header) {
	h.Del(api.TokenHeader)
	if lines := h["Cookie"]; len(lines) > 0 {
		replace(h, "Cookie", withoutCookies(lines, s.cookies))
	}
	if values := h["Authorization"]; slices.ContainsFunc(values, s.hasToken) {
		replace(h, "Authorization", slices.DeleteFunc(slices.Clone(values), s.hasToken))
	}
}

// hasToken reports whether an Authorization holds one of codehub's tokens,
// under whatever scheme: who mistyped "Bearer" has sent it nevertheless.
func (s secrets) hasToken(v string) bool {
	return slices.ContainsFunc(strings.Fields(v), s.isToken)
}

// setSecret puts the container's secret first among the cookies, where
// nothing that stands before it can change how it is read.
func setSecret(h http.Header, secret string) {
	lines := withoutCookies(h["Cookie"], []string{runtime.SecretCookie})
	own := runtime.SecretCookie + "=" + secret
	if len(lines) == 0 {
		lines = []string{own}
	} else {
		lines[0] = own + "; " + lines[0]
	}
	h["Cookie"] = lines
}

// withoutCookies removes the cookies of these names from Cookie headers. What
// remains keeps its bytes: nothing is parsed further than to its name, nothing
// is written anew. The result is a new slice; headers left empty are dropped.
func withoutCookies(lines, names []string) []string {
	kept := make([]string, 0, len(lines)+1)
	for _, line := range lines {
		if rest, found := withoutCookie(line, names); !found {
			kept = append(kept, line)
		} else if rest != "" {
			kept = append(kept, rest)
		}
	}
	return kept
}

func withoutCookie(line string, names []string) (rest string, found bool) {
	if !slices.ContainsFunc(names, func(name string) bool { return strings.Contains(line, name) }) {
		return line, false
	}
	var kept []string
	first := true // nothing has been kept yet
	for part := range strings.SplitSeq(line, ";") {
		if slices.Contains(names, cookieName(part)) {
			found = true
			continue
		}
		if first && found {
			part = strings.TrimLeft(part, " \t") // it followed the separator of what was removed
		}
		first = false
		kept = append(kept, part)
	}
	return strings.Join(kept, ";"), found
}

// cookieName is the name of one part of a Cookie header as servers read it.
func cookieName(part string) string {
	name, _, _ := strings.Cut(part, "=")
	return textproto.TrimString(name)
}

func replace(h http.Header, key string, values []string) {
	if len(values) == 0 {
		delete(h, key)
		return
	}
	h[key] = values
}
