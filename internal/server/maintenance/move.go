package maintenance

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"codehub/client"
	"codehub/internal/arrivals/move"
	"codehub/internal/base/setting"
	"codehub/internal/cli/terminal"
	"codehub/internal/server/config"
	"codehub/internal/server/installation"
)

// moveToken is the variable of the source's API token. There is no flag for it, because
// other users of the machine can read arguments.
const moveToken = "CODEHUB_MOVE_TOKEN"

// moveCmd moves workspaces of another installation here. It has the settings of serve, to
// find this installation.
type moveCmd struct {
	config.Config `embed:""`

	From      string `name:"from" env:"CODEHUB_MOVE_FROM" required:"" placeholder:"URL" help:"Address of the other installation's server."`
	Workspace string `name:"workspace" xor:"what" required:"" placeholder:"NAME" help:"Move one workspace: its id, or owner/name."`
	User      string `name:"user" xor:"what" required:"" placeholder:"NAME" help:"Move a user with all workspaces."`
	All       bool   `name:"all" xor:"what" required:"" help:"Move all users and workspaces."`
	Remove    bool   `name:"remove" help:"Delete each moved workspace from the other installation."`
	JoinUsers bool   `name:"join-users" help:"Treat users of the same name as one user."`
	DryRun    bool   `name:"dry-run" help:"Show what would change without applying it."`
	terminal.Format
}

// Help describes the token and the order of the steps.
func (moveCmd) Help() string {
	return `Set ` + moveToken + ` to an API token of an administrator of the other installation, and run codehub allow-moves on its machine first.`
}

func (c *moveCmd) Run(ctx context.Context) error {
	if err := c.Resolve(); err != nil {
		return err
	}
	source, err := c.source()
	if err != nil {
		return err
	}
	report, err := c.move(ctx, source, c.Config.Logger(os.Stderr))
	if report != nil {
		if err := c.Print(os.Stdout, report, moveText(*report)); err != nil {
			return err
		}
	}
	if err == nil && report.Left > 0 {
		err = fmt.Errorf("%d items were not moved; the report has the reasons", report.Left)
	}
	return err
}

func (c *moveCmd) source() (*client.Client, error) {
	token := os.Getenv(moveToken)
	if token == "" {
		return nil, &setting.Problem{Setting: moveToken, Why: "it is not set", Do: "set it to an API token of an administrator of the other installation"}
	}
	source, err := client.New(c.From, token, client.WithUserAgent("codehub-move"))
	if err != nil {
		return nil, &setting.Problem{Setting: "--from", Why: err.Error(), Do: "give the CODEHUB_URL of the other installation"}
	}
	return source, nil
}

func (c *moveCmd) move(ctx context.Context, source *client.Client, log *slog.Logger) (*move.Report, error) {
	o, err := installation.Open(ctx, c.Config, "codehub-move", log)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	if !c.DryRun {
		if err := bucketReady(ctx, o, "the move stores archives in it"); err != nil {
			return nil, err
		}
	}
	report, err := move.Run(ctx, move.Config{
		Source: source, Selection: move.Selection{Workspace: c.Workspace, User: c.User, All: c.All},
		DB: o.DB, Bucket: o.Bucket, Storage: c.Defaults.StorageBackend, Images: c.Defaults.Images,
		JoinUsers: c.JoinUsers, Remove: c.Remove, DryRun: c.DryRun, Log: log,
	})
	report.Warnings = append(report.Warnings, accountWarnings(ctx, c.Config, o.DB)...)
	return &report, err
}

// moveText formats the report as tables.
func moveText(r move.Report) string {
	var b strings.Builder
	if len(r.Users) > 0 {
		rows := [][]string{{"USER", "RESULT", "NOTES"}}
		for _, u := range r.Users {
			rows = append(rows, []string{u.Username, r.Shown(u.Result), remarks(u.Reason, u.Notes)})
		}
		fmt.Fprintln(&b, terminal.Table(rows))
	}
	if len(r.Workspaces) > 0 {
		rows := [][]string{{"OWNER", "WORKSPACE", "RESULT", "SIZE", "SOURCE", "ID", "NOTES"}}
		for _, w := range r.Workspaces {
			size := ""
			if w.Home != nil {
				size = terminal.Size(w.Home.Size)
				if w.Home.Skipped > 0 {
					w.Notes = append(w.Notes, fmt.Sprintf("%d sockets, FIFOs or devices were not archived", w.Home.Skipped))
				}
			}
			rows = append(rows, []string{w.Owner, w.Name, r.Shown(w.Result), size, w.Source, w.ID, remarks(w.Reason, w.Notes)})
		}
		fmt.Fprintln(&b, terminal.Table(rows))
	}
	printWarnings(&b, r.Warnings)
	b.WriteString(moveSum(r))
	return b.String()
}

func moveSum(r move.Report) string {
	n, removed := map[string]int{}, 0
	for _, w := range r.Workspaces {
		n[w.Result]++
		if w.Source == move.Removed {
			removed++
		}
	}
	return fmt.Sprintf("%d workspaces %s, %d moved before; %d removed from the source; %d items left.\n",
		n[move.Moved], r.Shown(move.Moved), n[move.Already], removed, r.Left)
}
