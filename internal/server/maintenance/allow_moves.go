package maintenance

import (
	"context"
	"fmt"
	"os"
	"time"

	"codehub/internal/base/setting"
	"codehub/internal/cli/terminal"
	"codehub/internal/postgres/embedded"
	"codehub/internal/server/config"
	"codehub/internal/server/installation"
)

// allowMovesCmd lets administrators move workspaces away for a while. It has the settings of
// serve, to find the installation.
type allowMovesCmd struct {
	config.Config `embed:""`

	For time.Duration `name:"for" default:"24h" min:"0s" max:"8760h" help:"How long moves are allowed from now on (0 = no longer)."`
}

// Help says what it allows.
func (allowMovesCmd) Help() string {
	return `While moves are allowed, an administrator's API token can read the archives and settings of all workspaces, with the values of their environment variables, and can stop, archive and delete workspaces. The audit log records each of these.`
}

func (c *allowMovesCmd) Run(ctx context.Context) error {
	if err := c.Resolve(); err != nil {
		return err
	}
	if c.DatabaseURL == "" && !embedded.Exists(c.DataDir) {
		// Opening the database would create one.
		return &setting.Problem{Setting: "CODEHUB_DATA_DIR", Why: "no codehub has its database in " + c.DataDir,
			Do: "use the settings of serve (CODEHUB_DATA_DIR or CODEHUB_DATABASE_URL)"}
	}
	db, _, release, err := installation.OpenDatabase(ctx, c.Config, c.Config.Logger(os.Stderr))
	if err != nil {
		return err
	}
	defer release()
	until, err := db.AllowMoves(ctx, c.For)
	if err != nil {
		return err
	}
	if until == nil {
		fmt.Println("Moves are no longer allowed.")
		return nil
	}
	fmt.Printf("Moves are allowed until %s.\n", terminal.Time(*until))
	return nil
}
