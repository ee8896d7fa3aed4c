package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/adopt"
	"codehub/internal/auth"
	"codehub/internal/bucket"
	"codehub/internal/config"
	"codehub/internal/lease"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// adoptCmd rebuilds the rows of a lost database from the bucket. It takes the
// settings of serve, so that it finds this installation.
type adoptCmd struct {
	config.Config `embed:""`

	Installation string            `name:"installation" placeholder:"ID" help:"Whose archives, if the bucket has those of several installations."`
	Owner        string            `name:"owner" placeholder:"NAME" help:"User who is to own all that is adopted, instead of who did."`
	OwnerMap     map[string]string `name:"owner-map" placeholder:"OLD=NEW" help:"User who is to own what another did; those who are not there are made, each with a password that is shown once."`
	Admin        string            `name:"admin" placeholder:"NAME" help:"Who of the users that are made becomes an administrator."`
	Image        string            `name:"image" placeholder:"IMAGE" help:"Image of what is adopted, which archives do not tell (default: that of --default-image)."`
	DryRun       bool              `name:"dry-run" help:"Say what would be done, and do none of it."`
	outputFlags
}

func (c *adoptCmd) Run(ctx context.Context) error {
	if err := c.Resolve(); err != nil {
		return err
	}
	if c.Image == "" {
		c.Image = c.DefaultImage
	}
	if !workspace.ValidImageRef(c.Image) {
		return &config.Problem{Setting: "--image", Why: fmt.Sprintf("%q is no image reference", c.Image), Do: "give one like codehub/workspace:latest"}
	}
	report, err := c.adopt(ctx, newLogger(c.Config))
	if report != nil {
		// Passwords are in it: it is printed whatever came up.
		if printed := c.print(os.Stdout, report, adoptionText(*report)); printed != nil {
			return errors.Join(err, printed)
		}
	}
	if err == nil && report.Left > 0 {
		err = fmt.Errorf("%d workspaces were left; why is in the report", report.Left)
	}
	return err
}

func (c *adoptCmd) adopt(ctx context.Context, log *slog.Logger) (*adopt.Report, error) {
	o, err := open(ctx, c.Config, "codehub-adopt", log)
	if err != nil {
		return nil, err
	}
	defer o.release()
	return adopt.Run(ctx, adopt.Config{
		DB: o.db, Session: o.session, Own: o.bucket,
		Open:       func(id string) (*bucket.Bucket, error) { return openBucket(c.Config, id, log) },
		Alone:      func(ctx context.Context) error { return alone(ctx, o.session) },
		CreateUser: auth.New(o.db, auth.Config{URL: c.PublicURL, Log: log}).CreateUser,

		Installation: c.Installation, Owner: c.Owner, Owners: c.OwnerMap, Admin: c.Admin, Image: c.Image,
		Instance: workspace.InstanceLocalDocker, Storage: c.Storage, DryRun: c.DryRun, Log: log,
	})
}

// alone keeps servers from leading for as long as the session lives.
func alone(ctx context.Context, session postgres.Session) error {
	return session.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		held, err := lease.Hold(ctx, conn)
		if err == nil && !held {
			err = errors.New("a codehub server runs on this database: stop it first, so that the database can become that of another installation")
		}
		return err
	})
}

// adoptionText is the report for people.
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
		fmt.Fprintln(&b, table(rows))
		if !r.DryRun {
			fmt.Fprint(&b, "These passwords are shown this once: hand them to their owners.\n\n")
		}
	}
	if len(r.Workspaces) > 0 {
		rows := [][]string{{"WORKSPACE", "OWNER", "RESULT", "ARCHIVES", "NEWEST", "SIZE", "ID", "NOTES"}}
		for _, w := range r.Workspaces {
			notes := w.Reason
			if w.Name != w.OldName && notes == "" {
				notes = "was named " + w.OldName
			}
			rows = append(rows, []string{w.Name, w.Owner, string(w.Result), fmt.Sprint(w.Archives), w.Newest.Local().Format(time.DateTime), sizeOf(w.Bytes), string(w.ID), notes})
		}
		fmt.Fprintln(&b, table(rows))
	}
	for _, u := range r.Unusable {
		fmt.Fprintf(&b, "Left alone: %s: %s\n", plain(u.Key), plain(u.Why))
	}
	switch {
	case r.TakenOver && r.DryRun:
		fmt.Fprintf(&b, "The database would become that of installation %s.\n", r.Installation)
	case r.TakenOver:
		fmt.Fprintf(&b, "The database is that of installation %s now: containers and volumes that are left of it are its own.\n", r.Installation)
		fmt.Fprintln(&b, "A home that was not archived is in its volume still. It is left alone, and keeps its workspace from being restored.")
	case r.Copied:
		fmt.Fprintf(&b, "The archives are copies of those of installation %s, which keeps its own.\n", r.Installation)
	}
	if len(r.Others) > 0 {
		fmt.Fprintf(&b, "The bucket also has archives of: %s (see --installation).\n", strings.Join(r.Others, ", "))
	}
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
