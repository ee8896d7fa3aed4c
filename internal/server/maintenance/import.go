package maintenance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	docker "github.com/moby/moby/client"

	"codehub/client"
	"codehub/internal/arrivals"
	"codehub/internal/arrivals/adopt"
	"codehub/internal/arrivals/importm1"
	"codehub/internal/arrivals/move"
	"codehub/internal/base/setting"
	"codehub/internal/cli/terminal"
	"codehub/internal/postgres"
	"codehub/internal/server/config"
	"codehub/internal/server/installation"
	"codehub/internal/storage/bucket"
	"codehub/internal/users/auth"
	"codehub/internal/workspace/imageref"
)

// importToken is the variable of the source's API token. There is no flag for it, because
// other users of the machine can read arguments.
const importToken = "CODEHUB_IMPORT_TOKEN"

// importCmd imports users and workspaces. It has the settings of serve, to find this
// installation.
type importCmd struct {
	config.Config `embed:""`

	Source string `arg:"" enum:"bucket,installation,first-version" help:"Where they are: bucket (archives that a lost database had), installation (another one), or first-version (of codehub)."`
	From   string `name:"from" env:"CODEHUB_IMPORT_FROM" placeholder:"URL" help:"Address of the other installation, or of the first version's PostgreSQL."`
	Homes  string `name:"homes" placeholder:"FOLDER" help:"Folder of the first version's homes, with users in it; it is only read."`

	Installation string `name:"installation" placeholder:"ID" help:"Installation whose archives in the bucket are imported."`

	Workspace string            `name:"workspace" xor:"what" required:"" placeholder:"NAME" help:"Import one workspace: its id, or owner/name."`
	User      string            `name:"user" xor:"what" required:"" placeholder:"NAME" help:"Import a user with all workspaces."`
	All       bool              `name:"all" xor:"what" required:"" help:"Import all users and workspaces."`
	Owner     string            `name:"owner" placeholder:"NAME" help:"Owner of all imported workspaces (default: the previous owners)."`
	OwnerMap  map[string]string `name:"owner-map" placeholder:"OLD=NEW" help:"Replace owners; those of archives who are missing are created with a password shown once."`
	JoinUsers bool              `name:"join-users" help:"Treat users of the same name as one user."`
	Admin     string            `name:"admin" placeholder:"NAME" help:"User of the source who becomes an administrator."`
	Image     string            `name:"image" placeholder:"IMAGE" help:"Image of all imported workspaces."`
	Remove    bool              `name:"remove" help:"Delete each imported workspace from the other installation."`
	DryRun    bool              `name:"dry-run" help:"Show what would change without applying it."`
	terminal.Format
}

// Help describes the token and the order of the steps.
func (importCmd) Help() string {
	return `For another installation, set ` + importToken + ` to an API token of one of its administrators, and run codehub allow-moves on its machine first.`
}

func (c *importCmd) Run(ctx context.Context) error {
	if err := c.Resolve(); err != nil {
		return err
	}
	if c.Image != "" && !imageref.Valid(c.Image) {
		return &setting.Problem{Setting: "--image", Why: fmt.Sprintf("%q is not an image reference", c.Image), Do: "use one like codehub/workspace:latest"}
	}
	if c.Image != "" && !c.Defaults.Images.Allows(c.Image, "") {
		return &setting.Problem{Setting: "--image", Why: fmt.Sprintf("%q is not allowed by CODEHUB_ALLOWED_IMAGES", c.Image), Do: "use one of " + c.Defaults.Images.String()}
	}
	for _, f := range []struct {
		flag, source string
		given        bool
	}{{"--homes", "first-version", c.Homes != ""}, {"--installation", "bucket", c.Installation != ""}, {"--remove", "installation", c.Remove}} {
		if f.given && f.source != c.Source {
			return &setting.Problem{Setting: f.flag, Why: "the source is " + c.Source, Do: "use it with the source " + f.source}
		}
	}
	report, err := c.bring(ctx, c.Config.Logger(os.Stderr))
	if report != nil {
		// The report may have passwords, so print it even after an error.
		if printed := c.Print(os.Stdout, report, importText(*report)); printed != nil {
			return errors.Join(err, printed)
		}
	}
	if err == nil && report.Left > 0 {
		err = fmt.Errorf("%d items were not imported; the report has the reasons", report.Left)
	}
	return err
}

// source opens a source outside this installation. release ends its use.
func (c *importCmd) source(ctx context.Context) (_ arrivals.Source, release func(), err error) {
	if c.Source == "bucket" {
		return nil, func() {}, nil
	}
	if c.From == "" {
		return nil, nil, &setting.Problem{Setting: "--from", Why: "it is not set", Do: "give the address of the source"}
	}
	if c.Source == "first-version" {
		return c.first(ctx)
	}
	token := os.Getenv(importToken)
	if token == "" {
		return nil, nil, &setting.Problem{Setting: importToken, Why: "it is not set", Do: "set it to an API token of an administrator of the other installation"}
	}
	other, err := client.New(c.From, token, client.WithUserAgent("codehub-import"))
	if err != nil {
		return nil, nil, &setting.Problem{Setting: "--from", Why: err.Error(), Do: "give the CODEHUB_URL of the other installation"}
	}
	return move.New(move.Config{Client: other, Remove: c.Remove}), func() {}, nil
}

// first opens the first version.
func (c *importCmd) first(ctx context.Context) (_ arrivals.Source, release func(), err error) {
	if c.Homes == "" {
		return nil, nil, &setting.Problem{Setting: "--homes", Why: "it is not set", Do: "give the folder of the first version's homes"}
	}
	if c.DatabaseURL != "" { // migrations would write to it
		holds, err := importm1.IsFirstVersion(ctx, c.DatabaseURL)
		if err == nil && holds {
			err = &setting.Problem{Setting: "CODEHUB_DATABASE_URL", Why: "it is a database of the first version", Do: "use another database for this version, or leave it unset for the embedded one"}
		}
		if err != nil {
			return nil, nil, err
		}
	}
	source, err := importm1.ReadSource(ctx, c.From)
	if err != nil {
		return nil, nil, err
	}
	homes, err := filepath.Abs(c.Homes)
	if err != nil {
		return nil, nil, err
	}
	engine, err := docker.New(docker.FromEnv)
	if err != nil {
		return nil, nil, fmt.Errorf("reach Docker: %w", err)
	}
	return importm1.New(importm1.Config{Source: source, Homes: homes, Docker: engine}), func() { _ = engine.Close() }, nil
}

func (c *importCmd) bring(ctx context.Context, log *slog.Logger) (*arrivals.Report, error) {
	source, release, err := c.source(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	o, err := installation.Open(ctx, c.Config, "codehub-import", log)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	if source == nil {
		source = adopt.New(adopt.Config{
			Installation: c.Installation, Alone: o.Alone,
			Open:    func(id string) (*bucket.Bucket, error) { return installation.OpenBucket(c.Config, id, nil, log) },
			NewUser: auth.New(o.DB, auth.Config{URL: c.PublicURL, Log: log}).NewUser,
		})
	} else if !c.DryRun {
		if err := bucketReady(ctx, o); err != nil {
			return nil, err
		}
	}
	report, err := arrivals.Run(ctx, arrivals.Config{
		Source: source, Selection: arrivals.Selection{Workspace: c.Workspace, User: c.User},
		DB: o.DB, Bucket: o.Bucket, Storage: c.Defaults.StorageBackend, DefaultImage: c.Defaults.DefaultImage, Images: c.Defaults.Images,
		Image: c.Image, Owner: c.Owner, Owners: c.OwnerMap, Admin: c.Admin, JoinUsers: c.JoinUsers, DryRun: c.DryRun, Log: log,
	})
	if c.Source == "first-version" && !readsAllFiles() {
		report.Warnings = append(report.Warnings, "not run as root, nor with CAP_DAC_READ_SEARCH: homes with files that only other users can read cannot be copied")
	}
	report.Warnings = append(report.Warnings, accountWarnings(ctx, c.Config, o.DB)...)
	return &report, err
}

// accountWarnings warns of several accounts where codehub refuses a second one otherwise
// (docs/adr/0030-localhost-has-one-account.md): an import brings what another installation had.
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

// bucketReady returns an error unless the bucket responds and is this installation's.
func bucketReady(ctx context.Context, o *installation.Installation) error {
	used, err := o.DB.HasArchives(ctx)
	if err != nil {
		return err
	}
	if err := o.Bucket.Check(ctx, used); err != nil {
		return &setting.Problem{Setting: "CODEHUB_ARCHIVE_URL", Why: err.Error(), Do: "make the bucket reachable: the import stores archives in it"}
	}
	return nil
}

// importText formats the report as tables.
func importText(r arrivals.Report) string {
	var b strings.Builder
	if len(r.Users) > 0 {
		rows := [][]string{{"USER", "HERE", "RESULT", "NOTES"}}
		for _, u := range r.Users {
			if u.Admin {
				u.Notes = append([]string{"administrator"}, u.Notes...)
			}
			rows = append(rows, []string{u.OldName, u.Username, r.Shown(u.Result), remarks(u.Reason, u.Notes)})
		}
		fmt.Fprintln(&b, terminal.Table(rows))
	}
	if len(r.Workspaces) > 0 {
		rows := [][]string{{"OWNER", "WORKSPACE", "RESULT", "SIZE", "WAS", "SOURCE", "ID", "NOTES"}}
		for _, w := range r.Workspaces {
			size := ""
			if w.Home != nil {
				size = terminal.Size(w.Home.Size)
				if w.Home.Skipped > 0 {
					w.Notes = append(w.Notes, fmt.Sprintf("%d sockets, FIFOs or devices were not archived", w.Home.Skipped))
				}
			}
			rows = append(rows, []string{w.Owner, cmp.Or(w.Name, w.OldName), r.Shown(w.Result), size, w.State, w.Source, cmp.Or(w.ID, w.OldID), remarks(w.Reason, w.Notes)})
		}
		fmt.Fprintln(&b, terminal.Table(rows))
	}
	for _, warning := range r.Warnings {
		fmt.Fprintf(&b, "Warning: %s\n", terminal.Plain(warning))
	}
	n := map[string]int{}
	for _, w := range r.Workspaces {
		n[w.Result]++
	}
	fmt.Fprintf(&b, "%d workspaces %s, %d imported before, %d deleted; %d items left.\n",
		n[arrivals.Added], r.Shown(arrivals.Added), n[arrivals.Already], n[arrivals.Deleted], r.Left)
	return b.String()
}

func remarks(reason string, notes []string) string {
	if reason != "" {
		notes = append([]string{reason}, notes...)
	}
	return strings.Join(notes, "; ")
}
