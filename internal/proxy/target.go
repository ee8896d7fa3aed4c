package proxy

import (
	"net/http"
	"strings"

	"codehub/internal/workspace"
)

// pathPrefix is the prefix of all workspaces in path mode.
const pathPrefix = "/w/"

// target is the workspace and path of a request.
type target struct {
	id workspace.ID
	// prefix is the workspace's path prefix, without a trailing slash.
	prefix string
	// path and rawPath are the path below the prefix, as in url.URL, with its
	// original escaping. They are empty if the slash after the prefix is missing.
	path, rawPath string
}

// underPrefix reports whether the path is under /w/, whether valid or not.
func underPrefix(r *http.Request) bool {
	return r.URL.Path == "/w" || strings.HasPrefix(r.URL.Path, pathPrefix)
}

// parseTarget parses the workspace from the path. An escaped or differently written
// prefix is not accepted.
func parseTarget(r *http.Request) (target, bool) {
	after, ok := strings.CutPrefix(rawPath(r), pathPrefix)
	if !ok {
		return target{}, false
	}
	id, rest := after, ""
	if i := strings.IndexByte(after, '/'); i >= 0 {
		id, rest = after[:i], after[i:]
	}
	path, rawPath, err := splitPath(rest)
	if !workspace.ValidID(id) || err != nil {
		return target{}, false
	}
	return target{id: workspace.ID(id), prefix: pathPrefix + id, path: path, rawPath: rawPath}, true
}

// rawPath returns the path as in the request line. URL.EscapedPath differs if a
// client sent bytes that it should have escaped.
func rawPath(r *http.Request) string {
	if r.URL.RawPath != "" {
		return r.URL.RawPath
	}
	return r.URL.EscapedPath()
}

// redirectToFolder adds the trailing slash that the IDE's relative addresses need.
func redirectToFolder(w http.ResponseWriter, r *http.Request, t target) {
	location := t.prefix + "/"
	if r.URL.RawQuery != "" {
		location += "?" + r.URL.RawQuery
	}
	w.Header().Set("Location", location)
	w.WriteHeader(http.StatusPermanentRedirect)
}
