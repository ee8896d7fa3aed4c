package maintenance

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/alecthomas/kong"

	"codehub/internal/base/setting"
	"codehub/internal/postgres/embedded"
	"codehub/internal/server/config"
)

type databaseCmd struct {
	Upgrade databaseUpgradeCmd `cmd:"" help:"Move the embedded database to a newer PostgreSQL."`
	Backup  databaseBackupCmd  `cmd:"" help:"Back up the database."`
	Backups databaseBackupsCmd `cmd:"" help:"List the backups in the bucket."`
	Drill   databaseDrillCmd   `cmd:"" help:"Try the restore of the last backup."`
	Restore databaseRestoreCmd `cmd:"" help:"Restore the database from a backup or dump."`
}

// databaseUpgradeCmd has the settings of serve, to find the installation.
type databaseUpgradeCmd struct {
	config.Config `embed:""`
}

// Help describes what is needed and what remains.
func (databaseUpgradeCmd) Help() string {
	return `The server must be stopped; workspaces run on. The programs of both versions of PostgreSQL must be installed. The former database is kept. If the command fails or is killed, the database is as before, and the command can run again.`
}

func (c *databaseUpgradeCmd) Run(ctx context.Context, k *kong.Context) error {
	cfg, err := embeddedDatabase(&c.Config)
	if err != nil {
		return err
	}
	if !embedded.Exists(c.DataDir) {
		return &setting.Problem{Setting: "CODEHUB_DATA_DIR", Why: "no codehub has its database in " + c.DataDir, Do: "use the settings of serve"}
	}
	done, err := embedded.Upgrade(ctx, cfg)
	if err != nil {
		return err
	}
	if done.From == done.To {
		_, err = fmt.Fprintf(k.Stdout, "The database is of PostgreSQL %d, the newest version that is installed. Nothing was changed.\n", done.To)
		return err
	}
	_, err = fmt.Fprintf(k.Stdout, "The database has moved from PostgreSQL %d to %d, with all %d rows of %d tables.\nThe former one is kept in %s, and a dump in %s.\nStart codehub again. Once it works, remove the former one.\n",
		done.From, done.To, done.Rows, done.Tables, done.Kept, done.Dump)
	return err
}

// databaseRestoreCmd has the settings of serve, to find the installation.
type databaseRestoreCmd struct {
	config.Config `embed:""`

	File         string `arg:"" help:"A backup or, for the embedded database, a dump in the custom format of pg_dump: a file, or latest or a time for a backup in the bucket."`
	Installation string `name:"installation" placeholder:"ID" help:"Installation whose backup in the bucket is restored."`
}

// Help describes what is needed and what remains.
func (databaseRestoreCmd) Help() string {
	return `All servers must be stopped; workspaces run on. An external database must be empty. The former embedded database is kept. Dumps from before migrations are in backups in the data folder. If the command fails or is killed, the database is as before, except that an external one keeps the migrations, and the command can run again. The server then goes on hold if something has changed since the dump; see codehub reconcile-restore.`
}

func (c *databaseRestoreCmd) Run(ctx context.Context, k *kong.Context) error {
	if err := c.Resolve(); err != nil {
		return err
	}
	f, name, release, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer release()
	if isBackup(f) {
		return c.restoreBackup(ctx, k, f, name)
	}
	cfg, err := embeddedDatabase(&c.Config)
	if err != nil {
		return err
	}
	file, err := filepath.Abs(c.File)
	if err != nil {
		return err
	}
	done, err := embedded.Restore(ctx, cfg, file)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(k.Stdout, "The database is restored in PostgreSQL %d, with %d rows of %d tables.\n", done.To, done.Rows, done.Tables); err != nil || done.Kept == "" {
		return err
	}
	_, err = fmt.Fprintf(k.Stdout, "The former one is kept in %s.\n", done.Kept)
	return err
}

// embeddedDatabase finds the embedded database of the settings.
func embeddedDatabase(c *config.Config) (embedded.Config, error) {
	if err := c.Resolve(); err != nil {
		return embedded.Config{}, err
	}
	if c.DatabaseURL != "" {
		return embedded.Config{}, &setting.Problem{Setting: "CODEHUB_DATABASE_URL", Why: "the command is for the embedded database",
			Do: "use the programs of PostgreSQL (pg_upgrade, pg_restore) for one of your own, or codehub database backup and restore"}
	}
	return embedded.Config{Dir: c.DataDir, Log: c.Logger(os.Stderr)}, nil
}
