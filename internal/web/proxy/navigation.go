package proxy

import (
	"net/http"
	"strconv"
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

// isServiceWorker reports whether a browser fetches the script of a service worker. On
// the main origin it would answer for codehub's own pages under its path, and act on the
// dashboard, also after its workspace has stopped.
func isServiceWorker(h http.Header) bool {
	return h.Get("Service-Worker") != "" || h.Get("Sec-Fetch-Dest") == "serviceworker"
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
// scripts and command line tools send it. Neither is a client that prefers JSON.
func acceptsHTML(h http.Header) bool {
	html := quality(h, "text/html")
	return html > 0 && html >= quality(h, "application/json")
}

// quality returns the weight, from 0 to 1, that the Accept header gives a media type by
// name.
func quality(h http.Header, name string) float64 {
	most := 0.0
	for _, v := range h.Values("Accept") {
		for part := range strings.SplitSeq(v, ",") {
			kind, parameters, _ := strings.Cut(part, ";")
			if strings.EqualFold(strings.TrimSpace(kind), name) {
				most = max(most, weight(parameters))
			}
		}
	}
	return most
}

// weight returns the parameter q, 1 if it is missing or invalid.
func weight(parameters string) float64 {
	for p := range strings.SplitSeq(parameters, ";") {
		key, value, _ := strings.Cut(p, "=")
		if !strings.EqualFold(strings.TrimSpace(key), "q") {
			continue
		}
		if q, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil && q >= 0 && q <= 1 {
			return q
		}
	}
	return 1
}
