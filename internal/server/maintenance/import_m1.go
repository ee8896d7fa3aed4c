package maintenance

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/moby/client"

	"codehub/internal/arrivals/importm1"
	"codehub/internal/base/setting"
	"codehub/internal/cli/terminal"
	"codehub/internal/postgres"
	"codehub/internal/server/config"
	"codehub/internal/server/installation"
	"codehub/internal/workspace/imageref"
)

// importM1Cmd imports the data of codehub's first version. It has the settings of
// serve, to find the installation.
type importM1Cmd struct {
	config.Config `embed:""`

	From      string `name:"from" env:"CODEHUB_IMPORT_FROM" required:"" placeholder:"URL" help:"PostgreSQL of the first version; it is only read."`
	Homes     string `name:"homes" required:"" placeholder:"FOLDER" help:"Folder of its homes, with users in it; it is only read."`
	Admin     string `name:"admin" placeholder:"NAME" help:"Imported user who becomes an administrator."`
	JoinUsers bool   `name:"join-users" help:"Treat users of the same name as one user."`
	Image     string `name:"image" placeholder:"IMAGE" help:"Image for all imported workspaces."`
	DryRun    bool   `name:"dry-run" help:"Show what would change without applying it."`
	terminal.Format
}

func (c *importM1Cmd) Run(ctx context.Context) error {
	if err := c.Resolve(); err != nil {
		return err
	}
	if c.Image != "" && !imageref.Valid(c.Image) {
		return &setting.Problem{Setting: "--image", Why: fmt.Sprintf("%q is not an image reference", c.Image), Do: "use one like codehub/workspace:latest"}
	}
	log := c.Config.Logger(os.Stderr)
	report, err := c.bring(ctx, log)
	if report != nil {
		if err := c.Print(os.Stdout, report, importText(*report)); err != nil {
			return err
		}
	}
	if err == nil && report.Left > 0 {
		err = fmt.Errorf("%d items were not imported; the report has the reasons", report.Left)
	}
	return err
}

func (c *importM1Cmd) bring(ctx context.Context, log *slog.Logger) (*importm1.Report, error) {
	if err := c.apart(ctx); err != nil {
		return nil, err
	}
	source, err := importm1.ReadSource(ctx, c.From)
	if err != nil {
		return nil, err
	}
	homes, err := filepath.Abs(c.Homes)
	if err != nil {
		return nil, err
	}
	docker, err := client.New(client.FromEnv)
	if err != nil {
		return nil, fmt.Errorf("reach Docker: %w", err)
	}
	defer docker.Close()
	o, err := installation.Open(ctx, c.Config, "codehub-import-m1", log)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	if !c.DryRun {
		if err := bucketReady(ctx, o, "the import stores homes in it"); err != nil {
			return nil, err
		}
	}
	report, err := importm1.Run(ctx, importm1.Config{
		Source: source, Homes: homes, Docker: docker, DB: o.DB, Bucket: o.Bucket,
		Storage: c.Defaults.StorageBackend, DefaultImage: c.Defaults.DefaultImage, Images: c.Defaults.Images, Image: c.Image,
		Admin: c.Admin, JoinUsers: c.JoinUsers, DryRun: c.DryRun,
		Log: log,
	})
	if !readsAllFiles() {
		report.Warnings = append(report.Warnings, "not run as root, nor with CAP_DAC_READ_SEARCH: homes with files that only other users can read cannot be copied")
	}
	report.Warnings = append(report.Warnings, accountWarnings(ctx, c.Config, o.DB)...)
	return &report, err
}

// accountWarnings warns of several accounts where codehub refuses a second one otherwise
// (docs/adr/0030-localhost-has-one-account.md): these commands bring what another installation had.
func accountWarnings(ctx context.Context, cfg config.Config, db *postgres.DB) []string {
	if !cfg.OneAccount() {
		return nil
	}
	n, err := db.EnabledUserCount(ctx)
	if err != nil || n < 2 {
		return nil // the command has failed on the database before
	}
	return []string{fmt.Sprintf("%d accounts can log in, and CODEHUB_URL is on localhost, where forwarded ports of other users' workspaces can take over sessions: "+
		"set CODEHUB_URL to an https address with another host, or CODEHUB_ALLOW_HTTP=true if all users trust each other", n)}
}

// printWarnings adds the warnings of a report.
func printWarnings(b *strings.Builder, warnings []string) {
	for _, w := range warnings {
		fmt.Fprintf(b, "Warning: %s\n", terminal.Plain(w))
	}
}

// bucketReady returns an error unless the bucket responds and is this installation's. why says
// what the command needs it for.
func bucketReady(ctx context.Context, o *installation.Installation, why string) error {
	used, err := o.DB.HasArchives(ctx)
	if err != nil {
		return err
	}
	if err := o.Bucket.Check(ctx, used); err != nil {
		return &setting.Problem{Setting: "CODEHUB_ARCHIVE_URL", Why: err.Error(), Do: "make the bucket reachable: " + why}
	}
	return nil
}

// apart refuses the first version's database as this version's own: migrations would
// write to it.
func (c *importM1Cmd) apart(ctx context.Context) error {
	if c.DatabaseURL == "" {
		return nil
	}
	if holds, err := importm1.IsFirstVersion(ctx, c.DatabaseURL); err != nil || !holds {
		return err
	}
	return &setting.Problem{Setting: "CODEHUB_DATABASE_URL", Why: "it is a database of the first version", Do: "use another database for this version, or leave it unset for the embedded one"}
}

// importText formats the report as tables.
func importText(r importm1.Report) string {
	var b strings.Builder
	if len(r.Users) > 0 {
		rows := [][]string{{"USER", "HERE", "RESULT", "NOTES"}}
		for _, u := range r.Users {
			if u.Admin {
				u.Notes = append([]string{"administrator"}, u.Notes...)
			}
			rows = append(rows, []string{u.OldName, u.Username, u.Result, remarks(u.Reason, u.Notes)})
		}
		fmt.Fprintln(&b, terminal.Table(rows))
	}
	if len(r.Workspaces) > 0 {
		rows := [][]string{{"OWNER", "WORKSPACE", "STATUS", "RESULT", "DESIRED", "COPIED", "OLD ID", "ID", "NOTES"}}
		for _, w := range r.Workspaces {
			copied := ""
			if w.Home != nil {
				copied = terminal.Size(w.Home.Bytes)
				if w.Home.Skipped > 0 {
					w.Notes = append(w.Notes, fmt.Sprintf("%d sockets, FIFOs or devices not copied", w.Home.Skipped))
				}
			}
			if w.Container != "" {
				w.Notes = append(w.Notes, "old container "+w.Container)
			}
			name := w.Name
			if name == "" {
				name = w.OldName
			}
			rows = append(rows, []string{w.Owner, name, w.Status, w.Result, w.DesiredState, copied, w.OldID, w.ID, remarks(w.Reason, w.Notes)})
		}
		fmt.Fprintln(&b, terminal.Table(rows))
	}
	for _, home := range r.UnknownHomes {
		fmt.Fprintf(&b, "Skipped: home of a workspace that is not in the database: %s\n", terminal.Plain(home))
	}
	printWarnings(&b, r.Warnings)
	b.WriteString(importSum(r))
	return b.String()
}

func importSum(r importm1.Report) string {
	n := map[string]int{}
	for _, w := range r.Workspaces {
		n[w.Result]++
	}
	imported := "imported"
	if r.DryRun {
		imported = "would be imported"
	}
	return fmt.Sprintf("%d workspaces %s, %d imported before, %d deleted; %d items skipped.\n",
		n[importm1.Imported], imported, n[importm1.Already], n[importm1.Deleted], r.Left)
}

func remarks(reason string, notes []string) string {
	if reason != "" {
		notes = append([]string{reason}, notes...)
	}
	return strings.Join(notes, "; ")
}
