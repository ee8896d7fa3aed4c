package proxy

import (
	"net/http"
	"strconv"
	"strings"

	"codehub/internal/gateway/origin"
	"codehub/internal/workspace"
)

// pathPrefix is the prefix of all workspaces in path mode.
const pathPrefix = "/w/"

// target is the workspace and path of a request.
type target struct {
	id workspace.ID
	// prefix is the workspace's path prefix on the main origin, without a trailing
	// slash. It is empty on the workspace's own host.
	prefix string
	// host is the workspace's host that was asked; zero on the main origin.
	host workspace.Host
	// path and rawPath are the path below the prefix, as in url.URL, with its
	// original escaping. They are empty if the slash after the prefix is missing.
	path, rawPath string
	// app is the application whose port the path names; only in path mode.
	app application
}

// application is a port of a workspace below /w/{id}/proxy/{port}/. The zero value is
// none.
type application struct {
	port int
	// path and rawPath are those of the target without /proxy/{port}.
	path, rawPath string
}

// appPath begins the path of an application's port, as code-server defines it.
const appPath = "/proxy/"

// parseApplication parses the port and path of an application from the path of a
// target. A port that is not in its only accepted form is left to the IDE.
func parseApplication(rawPath string) (a application, ok bool) {
	after, ok := strings.CutPrefix(rawPath, appPath)
	if !ok {
		return application{}, false
	}
	port, rest := after, ""
	if i := strings.IndexByte(after, '/'); i >= 0 {
		port, rest = after[:i], after[i:]
	}
	if a.port, ok = origin.ParsePort(port); !ok {
		return application{}, false
	}
	var err error
	a.path, a.rawPath, err = splitPath(rest)
	return a, err == nil
}

// appPrefix is the prefix of the application's paths on the main origin.
func (t target) appPrefix() string { return t.prefix + appPath + strconv.Itoa(t.app.port) }

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

// redirectToFolder adds the trailing slash that the relative addresses of an IDE or an
// application need.
func redirectToFolder(w http.ResponseWriter, r *http.Request, prefix string) {
	location := prefix + "/"
	if r.URL.RawQuery != "" {
		location += "?" + r.URL.RawQuery
	}
	w.Header().Set("Location", location)
	w.WriteHeader(http.StatusPermanentRedirect)
}
