package maintenance

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"codehub/api"
	"codehub/internal/base/setting"
	"codehub/internal/cli/terminal"
	"codehub/internal/control/admin"
	"codehub/internal/postgres/embedded"
	"codehub/internal/server/config"
	"codehub/internal/server/installation"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// resetPasswordCmd sets a password in the database, for when no administrator can
// log in. It has the settings of serve, to find the installation.
type resetPasswordCmd struct {
	config.Config `embed:""`

	User  string `required:"" help:"The username."`
	Admin bool   `help:"Also grant administrator access."`

	PasswordLogin time.Duration `name:"password-login" default:"24h" min:"0s" max:"720h" help:"How long the user may log in with it where CODEHUB_NO_PASSWORD_LOGIN turns password logins off."`
}

// Help says how to log in where password logins are turned off.
func (resetPasswordCmd) Help() string {
	return `The command also ends all sessions, API tokens and SSH keys of the user, removes the passkeys and recovery codes, enables the user, ends a suspension by an identity provider, and lifts a lockout. Where password logins are turned off, the user logs in at /login?with=password.`
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

// reset also removes the passkeys, enables the user, ends a suspension and lifts a lockout.
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
	if _, err := db.RemovePasskeys(ctx, workspace.System, user.ID); err != nil {
		return err
	}
	if c.Logins.NoPasswordLogin {
		if err := db.AllowPasswordLogin(ctx, user.ID, c.PasswordLogin); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "Password logins are turned off. For %s the user may log in with this one at %s/login?with=password\n", setting.Duration(c.PasswordLogin), c.PublicURL)
	}
	said := ""
	if account.Passkeys > 0 {
		said = " The passkeys are removed."
	}
	if account.Admin {
		said += " The user is an administrator."
	}
	fmt.Fprintf(os.Stderr, "The password of %s is set.%s All sessions, API tokens and SSH keys have ended.\n", terminal.Plain(account.Username), said)
	return nil
}
