package proxy

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"

	"codehub/api"
	"codehub/internal/workspace"
)

// retryAfter is the Retry-After of a workspace that is starting, in seconds.
const retryAfter = 2

// maxNext limits the length of the address that the login page returns to.
const maxNext = 2048

// refuse answers requests other than navigations, with the API's error format.
func refuse(w http.ResponseWriter, status int, code workspace.Code, message string, details map[string]any) {
	setOwnHeaders(w, status)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(api.Error{Code: string(code), Message: message, Details: details}) // the client may have disconnected
}

// setOwnHeaders prevents caching of codehub's own responses under /w/, because the
// workspace serves the same address later.
func setOwnHeaders(w http.ResponseWriter, status int) {
	w.Header().Set("Cache-Control", "no-store")
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
	}
}

func pathOf(r *http.Request) string {
	path := r.URL.EscapedPath()
	if r.URL.RawQuery != "" {
		path += "?" + r.URL.RawQuery
	}
	return path
}

// signIn redirects to the login page, which returns to the requested address.
func signIn(w http.ResponseWriter, r *http.Request, t target) {
	next := pathOf(r)
	if len(next) > maxNext {
		next = t.prefix + "/"
	}
	setOwnHeaders(w, http.StatusSeeOther)
	w.Header().Set("Location", "/login?next="+url.QueryEscape(next))
	w.WriteHeader(http.StatusSeeOther)
}
