// Command codehub serves cloud development environments and is the client of
// such a server (design §13).
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/runtime/docker"
	"codehub/internal/storagejob"
)

// version is set by the build.
var version = "dev"

type cli struct {
	Serve   serveCmd   `cmd:"" help:"Run the server: dashboard, API, proxy and coordinator."`
	Migrate migrateCmd `cmd:"" help:"Apply database migrations."`
	Version versionCmd `cmd:"" help:"Print the version."`

	ShowVersion kong.VersionFlag `name:"version" help:"Print the version."`

	Adopt    adoptCmd    `cmd:"" name:"adopt-archives" help:"Rebuild a lost database from the archives."`
	GC       gcCmd       `cmd:"" name:"gc" help:"Remove archives that are no longer needed."`
	ImportM1 importM1Cmd `cmd:"" name:"import-m1" help:"Import the data of codehub's first version."`

	Uninstall uninstallCmd `cmd:"" name:"uninstall" help:"Remove an installation's resources from Docker."`

	ResetPassword resetPasswordCmd `cmd:"" name:"reset-password" help:"Set a user's password in the database."`

	ClientCmds
}

func main() {
	// The runtime's helper containers run this same executable; what they
	// call is not for people and has no place in the help.
	if len(os.Args) > 1 && os.Args[1] == docker.HelperCommand {
		os.Exit(docker.HelperMain(os.Args[2:]))
	}
	// So do its storage jobs.
	if len(os.Args) == 2 && os.Args[1] == runtime.JobCommand {
		os.Exit(storagejob.Main())
	}
	if len(os.Args) == 2 && os.Args[1] == runtime.CopyCommand {
		os.Exit(storagejob.CopyMain())
	}
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	if len(args) == 0 {
		args = []string{"--help"}
	}
	var c cli
	parser, err := newParser(&c)
	if err != nil {
		fmt.Fprintln(os.Stderr, "codehub:", err)
		return exitUsage
	}
	ctx, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "codehub:", redacted(err.Error()))
		fmt.Fprintln(os.Stderr, "codehub --help lists the commands, codehub COMMAND --help a command's settings.")
		return exitUsage
	}
	sigctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// Whoever asks twice does not want to wait for an orderly end.
	defer context.AfterFunc(sigctx, stop)()
	ctx.BindTo(sigctx, (*context.Context)(nil))
	err = ctx.Run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "codehub:", redacted(explain(err).Error()))
	}
	return exitCode(err)
}

func newParser(c *cli) (*kong.Kong, error) {
	return kong.New(c,
		kong.Name("codehub"),
		kong.Description("Development environments in the browser, on your own machines."),
		kong.UsageOnError(),
		kong.Vars{"version": "codehub " + version},
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
	)
}

type versionCmd struct{}

func (versionCmd) Run() error {
	fmt.Println("codehub", version)
	return nil
}

type migrateCmd struct {
	DatabaseURL string `name:"database-url" env:"CODEHUB_DATABASE_URL" required:"" help:"PostgreSQL to migrate. The embedded one is migrated by serve."`
}

func (m migrateCmd) Run(ctx context.Context) error {
	return postgres.Migrate(ctx, m.DatabaseURL)
}
