package internal

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// folders are those of docs/architecture.md, in its order: the packages of one import only
// those of folders before it, and of its own.
var folders = []string{
	"base", "workspace", "bus", "archive", "gateway", "postgres", "runtime", "storage",
	"users", "running", "control", "arrivals", "web", "cli", "server", "testing",
}

// wired are the packages that a server chooses by its settings. Only the server, the
// programs, tests and benchmarks import them.
var wired = []string{
	"postgres/embedded", "runtime/docker", "runtime/kube", "control/reconcile", "control/lease", "bus/redisbus", "server", "server/maintenance",
}

// only names the packages that may import no others of codehub than these.
var only = map[string][]string{
	"codehub/api":                {},
	"codehub/client":             {"codehub/api", "codehub/internal/gateway/tunnel"},
	"codehub/internal/workspace": {},
	"codehub/internal/archive":   {"codehub/internal/base/treewalk"},
	// The commands know a server by its API alone.
	"codehub/internal/cli": {
		"codehub/api", "codehub/client", "codehub/internal/base/flow", "codehub/internal/base/setting", "codehub/internal/cli/terminal", "codehub/internal/gateway/tunnel",
		"codehub/internal/runtime/agent", "codehub/internal/runtime/agent/busy", "codehub/internal/web/dashboard/catalogue",
	},
	// A part of the command line, also on Windows and macOS.
	"codehub/internal/runtime/agent": {"codehub/internal/workspace"},
}

func TestImportGraph(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "codehub/...").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		pkg, imports := fields[0], fields[1:]
		from := folderOf(pkg)
		if from == "" && strings.HasPrefix(pkg, "codehub/internal/") {
			t.Errorf("%s is in no folder that docs/architecture.md names", pkg)
		}
		may, limited := only[pkg]
		for _, imp := range imports {
			if !strings.HasPrefix(imp, "codehub/") {
				if first, _, _ := strings.Cut(imp, "/"); strings.Contains(first, ".") && (pkg == "codehub/api" || pkg == "codehub/internal/workspace") {
					t.Errorf("%s imports %s; it uses the standard library alone", pkg, imp)
				}
				continue
			}
			if to := folderOf(imp); from != "" && slices.Index(folders, to) > slices.Index(folders, from) {
				t.Errorf("%s imports %s: %s comes after %s in docs/architecture.md", pkg, imp, to, from)
			}
			if limited && !slices.Contains(may, imp) {
				t.Errorf("%s imports %s; of ours it may import %v", pkg, imp, may)
			}
			if short := strings.TrimPrefix(imp, "codehub/internal/"); slices.Contains(wired, short) && !wires(pkg, short) {
				t.Errorf("%s imports %s, which the server chooses by its settings", pkg, imp)
			}
		}
	}
}

// folderOf returns the folder of a package below internal, or "".
func folderOf(pkg string) string {
	below, ok := strings.CutPrefix(pkg, "codehub/internal/")
	folder, _, _ := strings.Cut(below, "/")
	if !ok || !slices.Contains(folders, folder) {
		return ""
	}
	return folder
}

// wires reports whether pkg may import the package leaf of wired.
func wires(pkg, leaf string) bool {
	folder := folderOf(pkg)
	return folder == "server" || folder == "testing" || folder == "" || strings.HasPrefix(pkg, "codehub/internal/"+leaf+"/")
}
