package maintenance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"codehub/internal/arrivals/adopt"
	"codehub/internal/base/setting"
	"codehub/internal/cli/terminal"
	"codehub/internal/server/config"
	"codehub/internal/server/installation"
	"codehub/internal/storage/bucket"
	"codehub/internal/users/auth"
	"codehub/internal/workspace/imageref"
)

// adoptCmd rebuilds the rows of a lost database from the bucket. It has the settings
// of serve, to find the installation.
type adoptCmd struct {
	config.Config `embed:""`

	Installation string            `name:"installation" placeholder:"ID" help:"Installation whose archives are adopted."`
	Owner        string            `name:"owner" placeholder:"NAME" help:"Owner of all adopted workspaces (default: the previous owners)."`
	OwnerMap     map[string]string `name:"owner-map" placeholder:"OLD=NEW" help:"Replace owners; missing users are created with a password shown once."`
	Admin        string            `name:"admin" placeholder:"NAME" help:"Created user who becomes an administrator."`
	Image        string            `name:"image" placeholder:"IMAGE" help:"Image of adopted workspaces (default: --default-image)."`
	DryRun       bool              `name:"dry-run" help:"Show what would change without applying it."`
	terminal.Format
}

func (c *adoptCmd) Run(ctx context.Context) error {
	if err := c.Resolve(); err != nil {
		return err
	}
	if c.Image == "" {
		c.Image = c.Defaults.DefaultImage
	}
	if !imageref.Valid(c.Image) {
		return &setting.Problem{Setting: "--image", Why: fmt.Sprintf("%q is not an image reference", c.Image), Do: "use one like codehub/workspace:latest"}
	}
	if !c.Defaults.Images.Allows(c.Image) {
		return &setting.Problem{Setting: "--image", Why: fmt.Sprintf("%q is not allowed by CODEHUB_ALLOWED_IMAGES", c.Image), Do: "use one of " + c.Defaults.Images.String()}
	}
	report, err := c.adopt(ctx, c.Config.Logger(os.Stderr))
	if report != nil {
		// The report has passwords, so print it even after an error.
		if printed := c.Print(os.Stdout, report, adoptionText(*report)); printed != nil {
			return errors.Join(err, printed)
		}
	}
	if err == nil && report.Left > 0 {
		err = fmt.Errorf("%d workspaces were not adopted; the report has the reasons", report.Left)
	}
	return err
}

func (c *adoptCmd) adopt(ctx context.Context, log *slog.Logger) (*adopt.Report, error) {
	o, err := installation.Open(ctx, c.Config, "codehub-adopt", log)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	report, err := adopt.Run(ctx, adopt.Config{
		DB: o.DB, Session: o.Session, Own: o.Bucket,
		Open:       func(id string) (*bucket.Bucket, error) { return installation.OpenBucket(c.Config, id, nil, log) },
		Alone:      o.Alone,
		CreateUser: auth.New(o.DB, auth.Config{URL: c.PublicURL, Log: log}).CreateUser,

		Installation: c.Installation, Owner: c.Owner, Owners: c.OwnerMap, Admin: c.Admin, Image: c.Image,
		Storage: c.Defaults.StorageBackend, DryRun: c.DryRun, Log: log,
	})
	if report != nil {
		report.Warnings = append(report.Warnings, accountWarnings(ctx, c.Config, o.DB)...)
	}
	return report, err
}

// adoptionText formats the report as tables.
func adoptionText(r adopt.Report) string {
	var b strings.Builder
	if len(r.Users) > 0 {
		rows := [][]string{{"NEW USER", "PASSWORD", "NOTES"}}
		for _, u := range r.Users {
			notes := ""
			if u.Admin {
				notes = "administrator"
			}
			rows = append(rows, []string{u.Username, u.Password, notes})
		}
		fmt.Fprintln(&b, terminal.Table(rows))
		if !r.DryRun {
			fmt.Fprint(&b, "These passwords are shown only once. Give them to the users.\n\n")
		}
	}
	if len(r.Workspaces) > 0 {
		rows := [][]string{{"WORKSPACE", "OWNER", "RESULT", "ARCHIVES", "NEWEST", "SIZE", "ID", "NOTES"}}
		for _, w := range r.Workspaces {
			notes := w.Reason
			if w.Name != w.OldName && notes == "" {
				notes = "was named " + w.OldName
			}
			rows = append(rows, []string{w.Name, w.Owner, string(w.Result), fmt.Sprint(w.Archives), terminal.Time(w.Newest), terminal.Size(w.Bytes), string(w.ID), notes})
		}
		fmt.Fprintln(&b, terminal.Table(rows))
	}
	for _, u := range r.Unusable {
		fmt.Fprintf(&b, "Skipped: %s: %s\n", terminal.Plain(u.Key), terminal.Plain(u.Why))
	}
	switch {
	case r.TakenOver && r.DryRun:
		fmt.Fprintf(&b, "The database would take the id of installation %s.\n", r.Installation)
	case r.TakenOver:
		fmt.Fprintf(&b, "The database now has the id of installation %s and owns its remaining containers and volumes.\n", r.Installation)
		fmt.Fprintln(&b, "A home that was not archived is still in its volume. The volume is not changed, and blocks the restore of its workspace.")
	case r.Copied:
		fmt.Fprintf(&b, "The archives are copies; installation %s keeps its own.\n", r.Installation)
	}
	if len(r.Others) > 0 {
		fmt.Fprintf(&b, "The bucket also has archives of other installations: %s (see --installation).\n", strings.Join(r.Others, ", "))
	}
	printWarnings(&b, r.Warnings)
	counts := map[adopt.Result]int{}
	for _, w := range r.Workspaces {
		counts[w.Result]++
	}
	var parts []string
	for _, result := range []adopt.Result{adopt.Adopted, adopt.Revived, adopt.Recorded, adopt.Known, adopt.Left} {
		if n := counts[result]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s: %d", result, n))
		}
	}
	if len(parts) == 0 {
		parts = []string{"there is nothing to adopt"}
	}
	fmt.Fprintln(&b, strings.Join(parts, ", "))
	if r.DryRun {
		fmt.Fprintln(&b, "Nothing was changed: this was a dry run.")
	}
	return b.String()
}
