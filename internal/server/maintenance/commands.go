// Package maintenance is the commands that an administrator runs on the server's
// machine. They open the database, the bucket or Docker themselves, so that they
// work without a server.
package maintenance

import (
	"context"
	"fmt"

	"codehub/internal/postgres"
	"codehub/internal/server/config"
	"codehub/internal/server/installation"
)

// Commands are the commands of this package.
type Commands struct {
	Config        configCmd        `cmd:"" help:"Check the settings."`
	Migrate       migrateCmd       `cmd:"" help:"Apply database migrations."`
	Database      databaseCmd      `cmd:"" help:"Back up, restore or upgrade the database."`
	GC            gcCmd            `cmd:"" name:"gc" help:"Remove archives that are no longer needed."`
	Import        importCmd        `cmd:"" name:"import" help:"Import users and workspaces from elsewhere."`
	AllowMoves    allowMovesCmd    `cmd:"" name:"allow-moves" help:"Let administrators move workspaces to another installation."`
	Uninstall     uninstallCmd     `cmd:"" name:"uninstall" help:"Remove an installation's containers and volumes."`
	Pack          packCmd          `cmd:"" help:"Back a folder up, without a server."`
	Unpack        unpackCmd        `cmd:"" help:"Unpack a home from a backup."`
	SecretKey     secretKeyCmd     `cmd:"" name:"secret-key" help:"Manage the keys that encrypt secrets."`
	ArchiveKey    archiveKeyCmd    `cmd:"" name:"archive-key" help:"Manage the keys that encrypt archives."`
	ResetPassword resetPasswordCmd `cmd:"" name:"reset-password" help:"Set a user's password in the database."`
}

type migrateCmd struct {
	DatabaseURL string `name:"database-url" env:"CODEHUB_DATABASE_URL" required:"" help:"PostgreSQL to migrate. The embedded one is migrated by serve."`
	Check       bool   `help:"Only say which migrations are pending, and whether all servers have to be stopped for them."`
}

// BeforeReset reads the database's address if it is in a file.
func (migrateCmd) BeforeReset() error { return config.ReadSecrets() }

func (m migrateCmd) Run(ctx context.Context) error {
	if err := installation.CheckSession(ctx, m.DatabaseURL); err != nil {
		return err
	}
	if !m.Check {
		return postgres.Migrate(ctx, m.DatabaseURL)
	}
	p, err := postgres.WouldMigrate(ctx, m.DatabaseURL)
	if err != nil {
		return err
	}
	_, err = fmt.Println(pendingText(p))
	return err
}

func pendingText(p postgres.Pending) string {
	switch {
	case p.Migrations == 0:
		return "No migration is pending. Servers of this version can start while others run."
	case p.StopFirst:
		return fmt.Sprintf("Pending migrations: %d. Stop all servers before one of this version starts.", p.Migrations)
	}
	return fmt.Sprintf("Pending migrations: %d. Servers of the earlier version can run on while those of this version start.", p.Migrations)
}
