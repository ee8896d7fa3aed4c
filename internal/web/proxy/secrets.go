package proxy

import (
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"codehub/api"
	"codehub/internal/runtime"
)

// secrets are the credentials that must not reach a workspace: codehub's own, and a
// container secret sent by the client.
type secrets struct {
	cookies []string
	isToken func(string) bool
}

// strip removes codehub's own credentials from a request's headers. The workspace's
// own cookies and Authorization pass unchanged.
func (s secrets) strip(h http.Header) {
	h.Del(api.TokenHeader)
	if lines := h["Cookie"]; len(lines) > 0 {
		replace(h, "Cookie", withoutCookies(lines, s.cookies))
	}
	if values := h["Authorization"]; slices.ContainsFunc(values, s.hasToken) {
		replace(h, "Authorization", slices.DeleteFunc(slices.Clone(values), s.hasToken))
	}
}

// hasToken reports whether an Authorization header contains one of codehub's
// tokens, under any scheme, even a misspelled one.
func (s secrets) hasToken(v string) bool {
	return slices.ContainsFunc(strings.Fields(v), s.isToken)
}

// setSecret puts the container's secret first among the cookies, so that no other
// cookie can change how it is parsed.
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

// withoutCookies removes the named cookies from Cookie headers and keeps all other
// bytes. The result is a new slice; empty headers are dropped.
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
	first := true // no part has been kept yet
	for part := range strings.SplitSeq(line, ";") {
		if slices.Contains(names, cookieName(part)) {
			found = true
			continue
		}
		if first && found {
			part = strings.TrimLeft(part, " \t") // it followed the separator of the removed cookie
		}
		first = false
		kept = append(kept, part)
	}
	return strings.Join(kept, ";"), found
}

// cookieName returns the name in one part of a Cookie header, as servers parse it.
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
