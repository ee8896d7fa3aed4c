// Command codehub-agent is the codehub of workspaces: their first process, and the client
// that users have there. It is a part of codehub's executable (internal/runtime/agent/program).
package main

import (
	"os"
	"path/filepath"

	"github.com/alecthomas/kong"

	"codehub/internal/base/trust"
	"codehub/internal/cli"
	"codehub/internal/runtime"
	"codehub/internal/runtime/agent"
	"codehub/internal/runtime/agent/inside"
	"codehub/internal/runtime/kube/copytree"
	"codehub/internal/runtime/kube/enter"
)

// version is set by the build.
var version = "dev"

type commands struct {
	Version cli.VersionCommand `cmd:"" help:"Print the version."`
	Client  cli.Commands       `embed:""`

	ShowVersion kong.VersionFlag `name:"version" help:"Print the version."`
}

func main() {
	if name := filepath.Base(os.Args[0]); name == agent.GitHubClient || name == agent.GitLabClient {
		os.Exit(cli.GitClient(version, os.Args))
	}
	if len(os.Args) > 1 && os.Args[1] == runtime.AgentCommand {
		os.Exit(inside.Main(os.Args[2:], version))
	}
	if len(os.Args) > 1 && os.Args[1] == copytree.Command {
		os.Exit(copytree.Main(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == enter.Command {
		os.Exit(enter.Main(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == trust.Command {
		os.Exit(trust.Main(os.Args[2:]))
	}
	os.Exit(cli.Main(&commands{}, version, os.Args[1:]))
}
