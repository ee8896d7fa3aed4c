package proxy

import (
	"net/http"
	"strings"
)

// isNavigation reports whether a user opens a page in a tab. Only that wakes a workspace,
// because open tabs reconnect forever and browsers prefetch.
//
// Navigations from other sites count too. All such a site can cause is that the visitor's own
// workspace starts, within its limits and until its idle timeout, in a visible tab.
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

// acceptsHTML is for clients without Sec-Fetch headers. A wildcard is not enough:
// scripts and command line tools send it.
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
