// Command codehub serves cloud development environments and is the client of
// such a server.
package main

import (
	"os"

	"github.com/alecthomas/kong"

	"codehub/internal/base/trust"
	"codehub/internal/cli"
	"codehub/internal/runtime"
	"codehub/internal/runtime/agent/inside"
	"codehub/internal/runtime/docker"
	"codehub/internal/runtime/kube/copytree"
	"codehub/internal/runtime/kube/enter"
	podhelper "codehub/internal/runtime/kube/inside"
	"codehub/internal/server"
	"codehub/internal/server/maintenance"
	"codehub/internal/storage/storagejob"
)

// version is set by the build.
var version = "dev"

type commands struct {
	Serve   server.Command     `cmd:"" help:"Run the server: dashboard, API, proxy and controller."`
	Version cli.VersionCommand `cmd:"" help:"Print the version."`

	Maintenance maintenance.Commands `embed:""`
	Client      cli.Commands         `embed:""`

	ShowVersion kong.VersionFlag `name:"version" help:"Print the version."`
}

// newCommands returns the commands of the server and of its client, of which images has both.
func newCommands() *commands {
	c := &commands{}
	c.Client.Images.Plugins = kong.Plugins{&maintenance.Images{}}
	return c
}

func main() {
	// Helper containers, storage jobs and workspaces run this executable with commands
	// of their own, which are not in the help.
	if len(os.Args) > 1 && os.Args[1] == docker.HelperCommand {
		os.Exit(docker.HelperMain(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == podhelper.Command {
		os.Exit(podhelper.Main(os.Args[2:]))
	}
	if len(os.Args) == 2 && os.Args[1] == runtime.JobCommand {
		os.Exit(storagejob.Main())
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
	if len(os.Args) == 2 && os.Args[1] == runtime.CopyCommand {
		os.Exit(storagejob.CopyMain())
	}
	os.Exit(cli.Main(newCommands(), version, os.Args[1:]))
}
