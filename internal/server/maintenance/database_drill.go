package maintenance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/internal/arrivals/rollback"
	"codehub/internal/cli/terminal"
	"codehub/internal/control/backup"
	"codehub/internal/server/config"
	"codehub/internal/server/installation"
)

// databaseDrillCmd has the settings of serve, to find the installation.
type databaseDrillCmd struct {
	config.Config `embed:""`
	terminal.Format
}

// Help describes what a drill does.
func (databaseDrillCmd) Help() string {
	return `Servers and workspaces can run. The last backup in the bucket is restored into a scratch database, which is compared with Docker or Kubernetes, the bucket and the keys of secrets, and removed. Nothing else changes. The role of the database needs the attribute CREATEDB. The exit status is 1 if the backup cannot be restored completely.`
}

func (c *databaseDrillCmd) Run(ctx context.Context, k *kong.Context) error {
	if err := c.Resolve(); err != nil {
		return err
	}
	d, err := c.drill(ctx)
	if err != nil {
		return err
	}
	if err := c.Print(k.Stdout, d, drillText(d)); err != nil {
		return err
	}
	if d.Problem != "" {
		err = errors.New(d.Problem)
	}
	return err
}

func (c *databaseDrillCmd) drill(ctx context.Context) (d api.DatabaseDrill, err error) {
	log := c.Logger(os.Stderr)
	db, dsn, release, err := installation.OpenDatabase(ctx, c.Config, log)
	if err != nil {
		return d, err
	}
	defer release()
	id, err := db.Installation(ctx)
	if err != nil {
		return d, err
	}
	b, err := installation.OpenBucket(c.Config, id, nil, log)
	if err != nil {
		return d, err
	}
	keys, err := installation.OpenKeys(c.Config)
	if err != nil {
		return d, err
	}
	rt, err := openRuntime(ctx, c.Config, id, log)
	if err != nil {
		return d, err
	}
	defer rt.Close()
	plan := rollback.New(rollback.Config{Runtime: rt, Bucket: b, DeleteGrace: c.Retention.DeleteGrace, Log: log})
	return backup.Drill(ctx, backup.DrillConfig{Bucket: b, DSN: dsn, DB: db, Keys: keys, Compare: plan.Compare})
}

// drillText describes the result of a drill.
func drillText(d api.DatabaseDrill) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Backup: %s\n", d.Backup)
	if d.BackupAt == nil {
		return b.String()
	}
	fmt.Fprintf(&b, "Restored: %d rows of %d tables, from %s. Encrypted values decrypted: %d.\n", d.Rows, d.Tables, terminal.Time(*d.BackupAt), d.Secrets)
	c := d.Comparison
	fmt.Fprintf(&b, "Workspaces: %d. Unchanged since the backup: %d. Missing: %d.\n", c.Workspaces, c.Unchanged, c.Missing)
	for _, reason := range slices.Sorted(maps.Keys(c.Changes)) {
		fmt.Fprintf(&b, "Changed since the backup: %d. %s\n", c.Changes[reason], rollback.Reason(reason).Text())
	}
	return b.String()
}
