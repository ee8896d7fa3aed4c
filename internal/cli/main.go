package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"codehub/internal/base/setting"
	"codehub/internal/cli/terminal"
)

// versionVar is the kong variable that holds the program's version.
const versionVar = "codehub_version"

// Main runs the command that args name among commands, a pointer to a struct of
// kong commands, and returns the exit code. SIGINT and SIGTERM end the command's
// context; a second one ends the program.
func Main(commands any, version string, args []string) int {
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parser, err := Parser(commands, version)
	if err != nil {
		fmt.Fprintln(os.Stderr, "codehub:", err)
		return terminal.ExitUsage
	}
	command, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "codehub:", redacted(err.Error()))
		fmt.Fprintln(os.Stderr, "codehub --help lists the commands, codehub COMMAND --help a command's settings.")
		return terminal.ExitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	command.BindTo(ctx, (*context.Context)(nil))
	err = command.Run()
	if message := messageOf(err); message != "" {
		fmt.Fprintln(os.Stderr, "codehub:", message)
	}
	return exitCode(err)
}

// Parser returns the parser of commands.
func Parser(commands any, version string) (*kong.Kong, error) {
	return kong.New(commands,
		kong.Name("codehub"),
		kong.Description("Development environments in the browser, on your own machines."),
		kong.UsageOnError(),
		kong.Vars{"version": "codehub " + version, versionVar: version},
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		setting.Seconds,
	)
}

// VersionCommand is the command codehub version.
type VersionCommand struct{}

// Run prints the version.
func (VersionCommand) Run(k *kong.Context, vars kong.Vars) error {
	fmt.Fprintln(k.Stdout, vars["version"])
	return nil
}
