package proxy

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"

	"codehub/api"
	"codehub/internal/workspace"
)

// retryAfter is the seconds after which a request may find its workspace up.
const retryAfter = 2

// maxNext bounds the address that the login page leads back to.
const maxNext = 2048

// refuse answers what is no navigation, in the API's format (design §6).
func refuse(w http.ResponseWriter, status int, code workspace.Code, message string, details map[string]any) {
	own(w, status)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(api.Error{Code: string(code), Message: message, Details: details}) // whoever left does not need the rest
}

// own sets what every answer of codehub's own under /w/ has: at the same
// address stands the workspace's page a moment later.
func own(w http.ResponseWriter, status int) {
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

// signIn sends a person to the login page and from there back.
func signIn(w http.ResponseWriter, r *http.Request, t target) {
	next := pathOf(r)
	if len(next) > maxNext {
		next = t.prefix + "/"
	}
	own(w, http.StatusSeeOther)
	w.Header().Set("Location", "/login?next="+url.QueryEscape(next))
	w.WriteHeader(http.StatusSeeOther)
}
