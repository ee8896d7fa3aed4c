package maintenance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"codehub/internal/cli/terminal"
	"codehub/internal/control/gc"
	"codehub/internal/postgres"
	"codehub/internal/server/config"
	"codehub/internal/server/installation"
)

// gcCmd collects garbage once, whether or not a server runs. It has the settings
// of serve, to find the installation.
type gcCmd struct {
	config.Config `embed:""`

	DryRun bool `name:"dry-run" help:"List archives and reasons without removing any."`
	terminal.Format
}

func (c *gcCmd) Run(ctx context.Context) error {
	if err := c.Resolve(); err != nil {
		return err
	}
	report, err := c.collect(ctx, c.Config.Logger(os.Stderr))
	if report != nil {
		if err := c.Print(os.Stdout, report, collectionText(*report)); err != nil {
			return err
		}
	}
	if err == nil && report.Failed > 0 {
		err = fmt.Errorf("%d archives could not be removed; the next collection retries", report.Failed)
	}
	return err
}

func (c *gcCmd) collect(ctx context.Context, log *slog.Logger) (*gc.Report, error) {
	o, err := installation.Open(ctx, c.Config, "codehub-gc", log)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	report, err := gc.Collect(ctx, gc.Config{
		Bucket: o.Bucket, Log: log,
		Settings: c.Retention,
	}, o.Session, gc.Options{DryRun: c.DryRun})
	if errors.Is(err, postgres.ErrCollecting) {
		err = fmt.Errorf("%w; retry when it ends, or use --dry-run", err)
	}
	return report, err
}

// collectionText formats the report as a table.
func collectionText(r gc.Report) string {
	var b strings.Builder
	if len(r.Items) > 0 {
		rows := [][]string{{"", "WORKSPACE", "SIZE", "REASON", "ARCHIVE"}}
		order := gc.Verdicts()
		slices.Reverse(order)
		items := slices.Clone(r.Items)
		slices.SortStableFunc(items, func(a, b gc.Item) int { return slices.Index(order, a.Verdict) - slices.Index(order, b.Verdict) })
		for _, i := range items {
			why := i.Reason
			switch {
			case i.Error != "":
				why += "; removal failed: " + i.Error
			case i.Due != nil:
				why += "; removal on " + terminal.Time(*i.Due)
			}
			name := i.Name
			if name == "" {
				name = string(i.Workspace)
			}
			rows = append(rows, []string{string(i.Verdict), name, terminal.Size(i.Size), why, i.Key})
		}
		fmt.Fprintln(&b, terminal.Table(rows))
	}
	if r.Restored {
		fmt.Fprintln(&b, "Another database was the last one used with this bucket. The server goes on hold and collects no garbage.")
		fmt.Fprintln(&b, "Run codehub reconcile-restore.")
	}
	var parts []string
	for _, v := range gc.Verdicts() {
		if n, bytes := r.Count(v); n > 0 {
			parts = append(parts, fmt.Sprintf("%s: %d (%s)", v, n, terminal.Size(bytes)))
		}
	}
	if len(parts) == 0 {
		parts = []string{"there are no archives"}
	}
	fmt.Fprintln(&b, strings.Join(parts, ", "))
	if r.Aborted > 0 {
		fmt.Fprintf(&b, "Removed %d incomplete uploads.\n", r.Aborted)
	}
	if r.Released > 0 {
		fmt.Fprintf(&b, "%d deleted workspaces are completely removed.\n", r.Released)
	}
	if r.DryRun {
		fmt.Fprintln(&b, "Nothing was changed: this was a dry run.")
	}
	return b.String()
}
