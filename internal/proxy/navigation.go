package proxy

import (
	"net/http"
	"strings"
)

// isNavigation reports whether a person opens a page at the top of a tab. Only
// that wakes a workspace: tabs left open reconnect for ever, and browsers
// fetch ahead of people.
//
// Navigations that other sites start count too. What such a site gains is
// that the visitor's own workspace starts, within its limits and until its
// TTL, in a tab that the visitor sees.
func isNavigation(r *http.Request) bool {
	if r.Method != http.MethodGet || upgradeType(r.Header) != "" || isPrefetch(r.Header) {
		return false
	}
	mode, dest := r.Header.Get("Sec-Fetch-Mode"), r.Header.Get("Sec-Fetch-Dest")
	if mode != "" || dest != "" {
		return mode == "navigate" && dest == "document"
	}
	return acceptsHTML(r.Header)
}

func isPrefetch(h http.Header) bool {
	for _, name := range []string{"Sec-Purpose", "Purpose", "X-Purpose", "X-Moz"} {
		for _, v := range h.Values(name) {
			v = strings.ToLower(v)
			if strings.Contains(v, "prefetch") || strings.Contains(v, "prerender") || strings.Contains(v, "preview") {
				return true
			}
		}
	}
	return false
}

// acceptsHTML is for clients without Sec-Fetch headers. A wildcard is not
// enough: that is what scripts and command lines send.
func acceptsHTML(h http.Header) bool {
	for _, v := range h.Values("Accept") {
		for part := range strings.SplitSeq(v, ",") {
			kind, _, _ := strings.Cut(part, ";")
			if strings.EqualFold(strings.TrimSpace(kind), "text/html") {
				return true
			}
		}
	}
	return false
}
