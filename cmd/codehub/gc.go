package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"codehub/internal/config"
	"codehub/internal/gc"
	"codehub/internal/postgres"
)

// gcCmd is one garbage collection, beside a server or without one. It takes the
// settings of serve, so that it finds this installation.
type gcCmd struct {
	config.Config `embed:""`

	DryRun bool `name:"dry-run" help:"Say what would go, what is kept and why, and remove nothing."`
	outputFlags
}

func (c *gcCmd) Run(ctx context.Context) error {
	if err := c.Resolve(); err != nil {
		return err
	}
	report, err := c.collect(ctx, newLogger(c.Config))
	if report != nil {
		if err := c.print(os.Stdout, report, collectionText(*report)); err != nil {
			return err
		}
	}
	if err == nil && report.Failed > 0 {
		err = fmt.Errorf("%d archives could not be removed; the next collection tries again", report.Failed)
	}
	return err
}

func (c *gcCmd) collect(ctx context.Context, log *slog.Logger) (*gc.Report, error) {
	o, err := open(ctx, c.Config, "codehub-gc", log)
	if err != nil {
		return nil, err
	}
	defer o.release()
	report, err := gc.Collect(ctx, gc.Config{
		Bucket: o.bucket, Log: log,
		Settings: gc.Settings{Keep: c.ArchiveKeep, Delay: c.GCDelay, DeleteGrace: c.DeleteGrace},
	}, o.session, gc.Options{DryRun: c.DryRun})
	if errors.Is(err, postgres.ErrCollecting) {
		err = fmt.Errorf("%w; try again when it is done, or look with --dry-run", err)
	}
	return report, err
}

// collectionText is the report for people.
func collectionText(r gc.Report) string {
	var b strings.Builder
	if len(r.Items) > 0 {
		rows := [][]string{{"", "WORKSPACE", "SIZE", "WHY", "ARCHIVE"}}
		order := gc.Verdicts()
		slices.Reverse(order)
		items := slices.Clone(r.Items)
		slices.SortStableFunc(items, func(a, b gc.Item) int { return slices.Index(order, a.Verdict) - slices.Index(order, b.Verdict) })
		for _, i := range items {
			why := i.Reason
			switch {
			case i.Error != "":
				why += "; it could not be removed: " + i.Error
			case i.Due != nil:
				why += "; it goes on " + i.Due.Local().Format(time.DateTime)
			}
			name := i.Name
			if name == "" {
				name = string(i.Workspace)
			}
			rows = append(rows, []string{string(i.Verdict), name, sizeOf(i.Size), why, i.Key})
		}
		fmt.Fprintln(&b, table(rows))
	}
	if r.Restored {
		fmt.Fprintln(&b, "The bucket was last collected by another database, or by this one at a later time: it was restored from a")
		fmt.Fprintln(&b, "backup, or a copy of it uses the same bucket. Every wait begins anew with the server's next collection.")
	}
	var parts []string
	for _, v := range gc.Verdicts() {
		if n, bytes := r.Count(v); n > 0 {
			parts = append(parts, fmt.Sprintf("%s: %d (%s)", v, n, sizeOf(bytes)))
		}
	}
	if len(parts) == 0 {
		parts = []string{"there are no archives"}
	}
	fmt.Fprintln(&b, strings.Join(parts, ", "))
	if r.Aborted > 0 {
		fmt.Fprintf(&b, "Removed what %d broken uploads had left behind.\n", r.Aborted)
	}
	if r.Released > 0 {
		fmt.Fprintf(&b, "Nothing is left of %d deleted workspaces.\n", r.Released)
	}
	if r.DryRun {
		fmt.Fprintln(&b, "Nothing was changed: this was a dry run.")
	}
	return b.String()
}
