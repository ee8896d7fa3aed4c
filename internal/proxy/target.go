package proxy

import (
	"net/http"
	"strings"

	"codehub/internal/workspace"
)

// pathPrefix is where workspaces live in path mode, and their entry always.
const pathPrefix = "/w/"

// target is the workspace that a request means.
type target struct {
	id workspace.ID
	// prefix is what the workspace's paths begin with for its visitors,
	// without the slash at the end.
	prefix string
	// path and rawPath are the path below the prefix, as url.URL keeps one:
	// escaped as it came. Empty if the slash after the prefix is missing.
	path, rawPath string
}

// underPrefix reports whether the path belongs to workspaces, valid or not.
func underPrefix(r *http.Request) bool {
	return r.URL.Path == "/w" || strings.HasPrefix(r.URL.Path, pathPrefix)
}

// parseTarget reads the workspace from the path. Only the literal form
// counts: an escaped or differently written prefix names nothing.
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

// rawPath is the path as it stood in the request line. URL.EscapedPath is
// not that where a client left bytes unescaped that it should not have.
func rawPath(r *http.Request) string {
	if r.URL.RawPath != "" {
		return r.URL.RawPath
	}
	return r.URL.EscapedPath()
}

// redirectToFolder adds the missing slash, without which the IDE's relative
// addresses lead elsewhere.
func redirectToFolder(w http.ResponseWriter, r *http.Request, t target) {
	location := t.prefix + "/"
	if r.URL.RawQuery != "" {
		location += "?" + r.URL.RawQuery
	}
	w.Header().Set("Location", location)
	w.WriteHeader(http.StatusPermanentRedirect)
}
