package maintenance

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"

	"codehub/api"
	"codehub/internal/admin"
	"codehub/internal/auth"
	"codehub/internal/cli/terminal"
	"codehub/internal/config"
	"codehub/internal/installation"
	"codehub/internal/postgres/embedded"
	"codehub/internal/setting"
	"codehub/internal/workspace"
)

// resetPasswordCmd sets a password in the database, for when no administrator can
// log in. It has the settings of serve, to find the installation.
type resetPasswordCmd struct {
	config.Config `embed:""`

	User  string `required:"" help:"The username."`
	Admin bool   `help:"Also grant administrator access."`
}

func (c *resetPasswordCmd) Run(ctx context.Context) error {
	if err := c.Resolve(); err != nil {
		return err
	}
	if c.DatabaseURL == "" && !embedded.Exists(c.DataDir) {
		// Opening the database would create one without users.
		return &setting.Problem{Setting: "CODEHUB_DATA_DIR", Why: "no codehub has its database in " + c.DataDir,
			Do: "use the settings of serve (CODEHUB_DATA_DIR or CODEHUB_DATABASE_URL)"}
	}
	password, err := terminal.AskNewPassword(os.Stderr, bufio.NewReader(os.Stdin))
	if err != nil {
		return err
	}
	return c.reset(ctx, password, c.Config.Logger(os.Stderr))
}

// reset also enables the user and lifts a lock-out.
func (c *resetPasswordCmd) reset(ctx context.Context, password string, log *slog.Logger) error {
	db, _, release, err := installation.OpenDatabase(ctx, c.Config, log)
	if err != nil {
		return err
	}
	defer release()
	user, err := db.UserByName(ctx, c.User)
	if workspace.CodeOf(err) == workspace.CodeNotFound {
		return terminal.NotFound("there is no user %q", c.User)
	}
	if err != nil {
		return err
	}
	enabled := false
	patch := api.PatchAccount{Disabled: &enabled, Password: &password}
	if c.Admin {
		patch.Admin = &c.Admin
	}
	service := admin.New(admin.Config{Store: db, Passwords: auth.New(db, auth.Config{URL: c.PublicURL, Log: log})})
	account, err := service.PatchAccount(ctx, workspace.System, user.ID, patch)
	if err != nil {
		return err
	}
	said := ""
	if account.Admin {
		said = " The user is an administrator."
	}
	fmt.Fprintf(os.Stderr, "The password of %s is set.%s All sessions and tokens have ended.\n", terminal.Plain(account.Username), said)
	return nil
}
