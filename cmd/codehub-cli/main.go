// Command codehub-cli is the client of a server of codehub, for Linux, macOS and Windows: the
// client commands of codehub, without the server and without what runs inside workspaces. It is
// installed as codehub.
package main

import (
	"os"

	"github.com/alecthomas/kong"

	"codehub/internal/cli"
)

// version is set by the build.
var version = "dev"

type commands struct {
	Version cli.VersionCommand `cmd:"" help:"Print the version."`

	Client cli.Commands `embed:""`

	ShowVersion kong.VersionFlag `name:"version" help:"Print the version."`
}

func main() {
	os.Exit(cli.Main(&commands{}, version, os.Args[1:]))
}
