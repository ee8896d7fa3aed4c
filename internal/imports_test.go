package internal

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// allowed says which packages of codehub a package may import; a package that
// is not named may import any but the leaves. The rules are those of the
// layout in docs/architecture.md.
var allowed = map[string][]string{
	"codehub/api":                               {},
	"codehub/internal/workspace":                {},
	"codehub/client":                            {"codehub/api", "codehub/internal/tunnel"},
	"codehub/internal/tunnel":                   {},
	"codehub/internal/ports":                    {"codehub/internal/agent", "codehub/internal/attach", "codehub/internal/lifecycle", "codehub/internal/origin", "codehub/internal/runtime", "codehub/internal/setting", "codehub/internal/workspace", "codehub/internal/postgres"},
	"codehub/internal/lifecycle":                {"codehub/internal/workspace", "codehub/internal/environ", "codehub/internal/setting"},
	"codehub/internal/environ":                  {},
	"codehub/internal/frominside":               {"codehub/internal/agent", "codehub/internal/auth", "codehub/internal/postgres", "codehub/internal/runtime", "codehub/internal/workspace"},
	"codehub/internal/runtime":                  {"codehub/internal/workspace"},
	"codehub/internal/accesslog":                {},
	"codehub/internal/front":                    {"codehub/internal/health", "codehub/internal/setting"},
	"codehub/internal/health":                   {},
	"codehub/internal/imageref":                 {},
	"codehub/internal/origin":                   {"codehub/internal/workspace"},
	"codehub/internal/setting":                  {},
	"codehub/internal/trust":                    {},
	"codehub/internal/wire":                     {},
	"codehub/internal/inbound":                  {},
	"codehub/internal/continuation":             {},
	"codehub/internal/eventstream":              {"codehub/internal/continuation", "codehub/internal/inbound"},
	"codehub/internal/memlimit":                 {"codehub/internal/setting"},
	"codehub/internal/service":                  {"codehub/internal/workspace", "codehub/internal/setting", "codehub/internal/imageref", "codehub/api", "codehub/internal/lifecycle"},
	"codehub/internal/ballast":                  {"codehub/internal/health", "codehub/internal/setting"},
	"codehub/internal/config":                   {"codehub/internal/activity", "codehub/internal/ballast", "codehub/internal/auth", "codehub/internal/gc", "codehub/internal/reconcile", "codehub/internal/runtime/docker", "codehub/internal/runtime/kube", "codehub/internal/workspace", "codehub/internal/ttl", "codehub/internal/setting", "codehub/internal/bucket", "codehub/internal/bus/redisbus", "codehub/internal/lifecycle", "codehub/internal/postgres", "codehub/internal/service", "codehub/internal/front", "codehub/internal/origin", "codehub/internal/inbound", "codehub/internal/proxy", "codehub/internal/memlimit", "codehub/internal/sshgate", "codehub/internal/signin", "codehub/internal/trust"},
	"codehub/internal/imagebuild":               {"codehub/internal/imageref"},
	"codehub/internal/cli":                      {"codehub/api", "codehub/client", "codehub/internal/cli/terminal", "codehub/internal/dashboard/catalogue", "codehub/internal/tunnel", "codehub/internal/agent", "codehub/internal/agent/busy", "codehub/internal/setting"},
	"codehub/internal/cli/terminal":             {"codehub/internal/setting"},
	"codehub/internal/installation":             {"codehub/internal/health", "codehub/internal/archive/store", "codehub/internal/breaker", "codehub/internal/bucket", "codehub/internal/config", "codehub/internal/lease", "codehub/internal/postgres", "codehub/internal/postgres/embedded", "codehub/internal/setting"},
	"codehub/cmd/codehub-agent":                 {"codehub/internal/agent/inside", "codehub/internal/cli", "codehub/internal/runtime", "codehub/internal/runtime/kube/copytree", "codehub/internal/runtime/kube/enter", "codehub/internal/trust"},
	"codehub/cmd/codehub":                       {"codehub/internal/agent/inside", "codehub/internal/cli", "codehub/internal/maintenance", "codehub/internal/runtime", "codehub/internal/runtime/docker", "codehub/internal/runtime/kube/inside", "codehub/internal/server", "codehub/internal/storagejob", "codehub/internal/runtime/kube/copytree", "codehub/internal/runtime/kube/enter", "codehub/internal/trust"},
	"codehub/internal/breaker":                  {"codehub/internal/health", "codehub/api"},
	"codehub/internal/bus":                      {"codehub/internal/workspace"},
	"codehub/internal/bus/redisbus":             {"codehub/internal/health", "codehub/internal/workspace", "codehub/internal/activity", "codehub/internal/setting"},
	"codehub/internal/auth":                     {"codehub/internal/front", "codehub/internal/health", "codehub/api", "codehub/internal/workspace", "codehub/internal/postgres"},
	"codehub/internal/admin":                    {"codehub/api", "codehub/internal/imagebuild", "codehub/internal/replica", "codehub/internal/runtime", "codehub/internal/workspace", "codehub/internal/postgres", "codehub/internal/auth"},
	"codehub/internal/signin":                   {"codehub/internal/auth", "codehub/internal/health", "codehub/internal/origin", "codehub/internal/postgres", "codehub/internal/setting", "codehub/internal/workspace"},
	"codehub/internal/agent":                    {},
	"codehub/internal/agent/agenttest":          {"codehub/internal/agent", "codehub/internal/agent/inside", "codehub/internal/harness", "codehub/internal/runtime", "codehub/internal/workspace"},
	"codehub/internal/agent/busy":               {"codehub/internal/agent"},
	"codehub/internal/agent/program":            {},
	"codehub/internal/agent/inside":             {"codehub/internal/agent", "codehub/internal/agent/busy", "codehub/internal/runtime"},
	"codehub/internal/attach":                   {"codehub/internal/activity", "codehub/internal/agent", "codehub/internal/lifecycle", "codehub/internal/runtime", "codehub/internal/workspace"},
	"codehub/internal/archive":                  {"codehub/internal/treewalk"},
	"codehub/internal/lease":                    {"codehub/internal/health"},
	"codehub/internal/replica":                  {"codehub/internal/health", "codehub/api", "codehub/internal/postgres"},
	"codehub/internal/activity":                 {"codehub/internal/health", "codehub/internal/workspace"},
	"codehub/internal/usage":                    {"codehub/internal/agent", "codehub/internal/health", "codehub/internal/lifecycle", "codehub/internal/postgres", "codehub/internal/workspace"},
	"codehub/internal/ttl":                      {"codehub/internal/health", "codehub/internal/workspace", "codehub/internal/activity", "codehub/internal/postgres", "codehub/internal/agent", "codehub/internal/runtime"},
	"codehub/internal/postgres":                 {"codehub/internal/setting", "codehub/internal/health", "codehub/internal/imageref", "codehub/internal/lifecycle", "codehub/internal/workspace", "codehub/internal/activity", "codehub/internal/environ"},
	"codehub/internal/sshgate":                  {"codehub/internal/activity", "codehub/internal/agent", "codehub/internal/attach", "codehub/internal/auth", "codehub/internal/front", "codehub/internal/lifecycle", "codehub/internal/postgres", "codehub/internal/setting", "codehub/internal/workspace"},
	"codehub/internal/runtime/docker":           {"codehub/internal/agent/program", "codehub/internal/imagebuild", "codehub/internal/health", "codehub/internal/workspace", "codehub/internal/runtime", "codehub/internal/imageref", "codehub/internal/runtime/docker/seccomp", "codehub/internal/runtime/docker/wall", "codehub/internal/setting", "codehub/internal/breaker", "codehub/internal/archive", "codehub/internal/treewalk", "codehub/internal/treewipe", "codehub/internal/registry", "codehub/internal/runtime/account", "codehub/internal/runtime/docker/homequota", "codehub/internal/trust"},
	"codehub/internal/runtime/kube":             {"codehub/internal/breaker", "codehub/internal/health", "codehub/internal/runtime", "codehub/internal/runtime/kube/inside", "codehub/internal/setting", "codehub/internal/workspace", "codehub/internal/imageref", "codehub/internal/registry", "codehub/internal/runtime/account", "codehub/internal/runtime/kube/copytree", "codehub/internal/runtime/kube/enter", "codehub/internal/trust"},
	"codehub/internal/activity/vscode":          {"codehub/internal/activity"},
	"codehub/internal/proxy":                    {"codehub/internal/agent", "codehub/internal/ports", "codehub/internal/continuation", "codehub/internal/wire", "codehub/internal/front", "codehub/internal/origin", "codehub/internal/inbound", "codehub/internal/health", "codehub/internal/accesslog", "codehub/internal/lifecycle", "codehub/api", "codehub/internal/workspace", "codehub/internal/runtime", "codehub/internal/activity", "codehub/internal/activity/vscode", "codehub/internal/service"},
	"codehub/internal/reconcile":                {"codehub/internal/health", "codehub/internal/imageref", "codehub/internal/workspace", "codehub/internal/lifecycle", "codehub/internal/runtime", "codehub/internal/postgres", "codehub/internal/archive", "codehub/internal/archive/store", "codehub/internal/storagejob", "codehub/internal/setting", "codehub/internal/environ"},
	"codehub/internal/move":                     {"codehub/api", "codehub/client", "codehub/internal/archive", "codehub/internal/archive/store", "codehub/internal/auth", "codehub/internal/bucket", "codehub/internal/environ", "codehub/internal/imageref", "codehub/internal/lifecycle", "codehub/internal/postgres", "codehub/internal/workspace"},
	"codehub/internal/importm1":                 {"codehub/internal/imageref", "codehub/internal/workspace", "codehub/internal/postgres", "codehub/internal/archive", "codehub/internal/archive/store", "codehub/internal/auth", "codehub/internal/bucket"},
	"codehub/internal/adopt":                    {"codehub/internal/workspace", "codehub/internal/postgres", "codehub/internal/archive", "codehub/internal/archive/store", "codehub/internal/bucket"},
	"codehub/internal/gc":                       {"codehub/internal/health", "codehub/internal/lifecycle", "codehub/internal/mark", "codehub/internal/workspace", "codehub/internal/postgres", "codehub/internal/archive", "codehub/internal/archive/store", "codehub/internal/bucket"},
	"codehub/internal/mark":                     {"codehub/internal/health", "codehub/internal/workspace", "codehub/internal/postgres", "codehub/internal/archive/store", "codehub/internal/bucket", "codehub/internal/runtime"},
	"codehub/internal/rollback":                 {"codehub/internal/lifecycle", "codehub/api", "codehub/internal/workspace", "codehub/internal/postgres", "codehub/internal/adopt", "codehub/internal/bucket", "codehub/internal/mark", "codehub/internal/runtime", "codehub/internal/service"},
	"codehub/internal/storagejob":               {"codehub/internal/workspace", "codehub/internal/archive", "codehub/internal/archive/store", "codehub/internal/archive/transfer", "codehub/internal/runtime", "codehub/internal/treewipe"},
	"codehub/internal/treewalk":                 {},
	"codehub/internal/treewipe":                 {"codehub/internal/treewalk"},
	"codehub/internal/fsxattr":                  {},
	"codehub/internal/bucket":                   {"codehub/internal/health", "codehub/internal/breaker", "codehub/internal/workspace", "codehub/internal/lifecycle", "codehub/internal/runtime", "codehub/internal/archive", "codehub/internal/archive/store", "codehub/internal/archive/transfer", "codehub/internal/storagejob", "codehub/internal/setting"},
	"codehub/internal/runtime/docker/homequota": {"codehub/internal/fsxattr"},

	"codehub/internal/registry":              {"codehub/internal/imageref"},
	"codehub/internal/runtime/account":       {"codehub/internal/runtime", "codehub/internal/workspace"},
	"codehub/internal/runtime/kube/copytree": {},
	"codehub/internal/runtime/kube/enter":    {"codehub/internal/trust"},

	"codehub/internal/archive/store":    {"codehub/internal/archive/transfer"},
	"codehub/internal/archive/transfer": {},
}

// leaves may be imported only by the packages of mayWire.
var leaves = []string{
	"codehub/internal/cli",
	"codehub/internal/installation",
	"codehub/internal/maintenance",
	"codehub/internal/server",
	"codehub/internal/runtime/docker",
	"codehub/internal/runtime/kube",
	"codehub/internal/reconcile",
	"codehub/internal/lease",
	"codehub/internal/config",
	"codehub/internal/postgres/embedded",
	"codehub/internal/bus/redisbus",
}

func TestImportGraph(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "codehub/...")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	found := 0
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		pkg, imports := fields[0], fields[1:]
		may, named := allowed[pkg]
		if named {
			found++
		}
		for _, imp := range imports {
			if !strings.HasPrefix(imp, "codehub/") {
				continue
			}
			if named && !slices.Contains(may, imp) {
				t.Errorf("%s imports %s; it may import %v of ours", pkg, imp, may)
			}
			if slices.Contains(leaves, imp) && !mayWire(pkg, imp) {
				t.Errorf("%s imports %s, which only the packages that wire codehub may import", pkg, imp)
			}
		}
		if (pkg == "codehub/internal/workspace" || pkg == "codehub/api") && slices.ContainsFunc(imports, outsideStdlib) {
			t.Errorf("%s imports more than the standard library: %v", pkg, imports)
		}
	}
	if found != len(allowed) {
		t.Errorf("%d of %d packages with rules exist: mend the table", found, len(allowed))
	}
}

// mayWire reports whether pkg may import the leaf imp: it is the program, one of
// the packages that wire it, or runs it for tests and benchmarks.
func mayWire(pkg, imp string) bool {
	switch pkg {
	case "codehub/cmd/codehub", "codehub/cmd/codehub-agent", "codehub/internal/pgtest", "codehub/bench":
		return true
	case "codehub/internal/config": // takes the settings that these declare
		return slices.Contains([]string{"codehub/internal/bus/redisbus", "codehub/internal/reconcile", "codehub/internal/runtime/docker", "codehub/internal/runtime/kube"}, imp)
	case "codehub/internal/server", "codehub/internal/maintenance", "codehub/internal/installation":
		return !slices.Contains([]string{"codehub/internal/cli", "codehub/internal/server", "codehub/internal/maintenance"}, imp)
	}
	return strings.HasPrefix(pkg, imp+"/") || strings.HasPrefix(pkg, "codehub/internal/e2e") || strings.HasPrefix(pkg, "codehub/internal/runtime/docker/")
}

func outsideStdlib(imp string) bool {
	first, _, _ := strings.Cut(imp, "/")
	return strings.Contains(first, ".")
}
