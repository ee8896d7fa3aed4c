package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

type createCmd struct {
	serverFlags
	terminal.Format
	Name        string `arg:"" help:"The new workspace's name."`
	Description string `short:"d" help:"Description of the workspace."`
	Image       string `short:"i" help:"Image (default: that of the server)."`
	Size        string `short:"s" help:"Size, one of codehub sizes (default: that of the server)."`
	Repo        string `placeholder:"URL" help:"Git repository that the first start clones."`
	Branch      string `short:"b" help:"Branch or tag of the repository."`
	Folder      string `placeholder:"PATH" help:"Folder below the home for the repository (default: project/NAME)."`
	Depth       int    `placeholder:"N" help:"Clone only the last N commits."`
	Submodules  bool   `help:"Clone the submodules too."`
	Start       bool   `negatable:"" default:"true" help:"Start it at once."`
	Wait        bool   `short:"w" help:"Wait until it is ready."`
	Template    string `short:"t" help:"Template, one of codehub templates list."`
	paramFlag
	Like string `placeholder:"WORKSPACE" help:"A workspace whose settings the new one gets."`
	ttlFlags
	backupIntervalFlag
	BackupKeep string `placeholder:"RULE" help:"Which backups are kept, such as 24h,7d,4w,6m (default: the server's rule)."`
	envFlag
}

func (cmd createCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	env, err := cmd.variables(os.LookupEnv)
	if err != nil {
		return err
	}
	parameters, err := cmd.values()
	if err != nil {
		return err
	}
	like := ""
	if cmd.Like != "" {
		from, err := resolve(ctx, c, cmd.Like, false)
		if err != nil {
			return err
		}
		like = from.ID
	}
	want := "RUNNING"
	if !cmd.Start {
		want = "STANDBY"
	}
	if cmd.Repo == "" && (cmd.Branch != "" || cmd.Folder != "" || cmd.Depth != 0 || cmd.Submodules) {
		return terminal.Exit(terminal.ExitUsage, errors.New("--branch, --folder, --depth and --submodules need --repo"))
	}
	in := api.CreateWorkspace{Name: cmd.Name, Description: cmd.Description, ImageRef: cmd.Image, Size: cmd.Size, DesiredState: &want,
		StandbyTTLSeconds: cmd.StandbyTTL.seconds, ArchiveTTLSeconds: cmd.ArchiveTTL.seconds,
		BackupIntervalSeconds: cmd.BackupInterval.seconds, BackupKeep: cmd.BackupKeep,
		Env: env, TimeZone: timeZone(os.Getenv("TZ"), os.DirFS("/")), Template: cmd.Template, Parameters: parameters, Like: like}
	if cmd.Repo != "" {
		in.Repositories = []api.Repository{{URL: cmd.Repo, Branch: cmd.Branch, Path: cmd.Folder, Depth: cmd.Depth, Submodules: cmd.Submodules}}
	}
	w, then, err := atTurn(ctx, c, func(queueAtLimit bool) (api.Workspace, error) {
		in.QueueAtLimit = queueAtLimit
		return c.Create(ctx, in)
	})
	if err == nil {
		// A failure would hide that the workspace is there.
		lacks, _ := missingSecrets(ctx, c, w)
		for _, m := range lacks {
			fmt.Fprintln(k.Stderr, missingWords(m))
		}
	}
	if err == nil && cmd.Wait {
		w, err = reach(ctx, k, c, w, want)
		then = ""
		if err == nil && cmd.Start && (len(w.Repositories) > 0 || len(w.Extensions) > 0 || w.Scripts != nil) {
			_, err = awaitSetup(ctx, k.Stderr, c, w.ID)
		}
	}
	if err != nil {
		return err
	}
	return cmd.Print(k.Stdout, w, fmt.Sprintf("%s   %s   %s%s", terminal.Plain(w.Name), state(w), w.URL, then))
}

// errNothingToSet is the error of a command that changes settings, without any.
var errNothingToSet = errors.New("nothing to set was given")

type setCmd struct {
	onWorkspace
	ttlFlags
	backupIntervalFlag
	api.UpdateWorkspace
	envFlag
	UnsetEnv []string `placeholder:"NAME" sep:"none" help:"Remove an environment variable, from the next start on."`
}

func (s setCmd) Run(ctx context.Context, k *kong.Context) error {
	in := s.UpdateWorkspace
	in.StandbyTTLSeconds, in.ArchiveTTLSeconds = s.StandbyTTL.change(), s.ArchiveTTL.change()
	in.BackupIntervalSeconds = s.BackupInterval.change()
	env, err := s.variables(os.LookupEnv)
	if err != nil {
		return err
	}
	if len(env)+len(s.UnsetEnv) > 0 {
		change := map[string]*string{}
		for name, value := range env {
			change[name] = &value
		}
		for _, name := range s.UnsetEnv {
			if _, both := change[name]; both {
				return fmt.Errorf("%s is both set and removed", name)
			}
			change[name] = nil
		}
		in.Env = api.Value(change)
	}
	if in == (api.UpdateWorkspace{}) {
		return errNothingToSet
	}
	return s.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		w, err := c.Update(ctx, id, in)
		out, text, err := withLifetime(w, err)
		if in.ImageRef != nil && w.PendingRequest != nil && *w.PendingRequest == "recover" {
			text += "; trying again with the new image"
		}
		return out, text, err
	})
}
