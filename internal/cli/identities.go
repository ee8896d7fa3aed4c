package cli

import (
	"bufio"
	"context"
	"fmt"
	"os"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

type identitiesCmd struct {
	List   identitiesListCmd   `cmd:"" aliases:"ls" help:"List your logins of identity providers."`
	Unlink identitiesUnlinkCmd `cmd:"" help:"Unlink a login of an identity provider."`
}

type identitiesListCmd struct {
	serverFlags
	terminal.Format
}

func (l identitiesListCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	list, err := c.Identities(ctx)
	if err != nil {
		return err
	}
	return l.Print(k.Stdout, list, identityTable(list))
}

func identityTable(list []api.Identity) string {
	rows := [][]string{{"PROVIDER", "USERNAME", "SUBJECT", "ACCEPTED", "LAST CHECK", "ID"}}
	for _, i := range list {
		accepted := "yes"
		if !i.Active {
			accepted = "no"
		}
		checked := terminal.Time(i.CheckedAt)
		if i.CheckedAt.Unix() == 0 {
			checked = "never" // it came with a move
		}
		rows = append(rows, []string{i.Issuer, i.Username, i.Subject, accepted, checked, i.ID})
	}
	return terminal.Table(rows)
}

// Help describes what ends, and where the password comes from.
func (identitiesUnlinkCmd) Help() string {
	return `Sessions that began with it end. The current password is asked for, or read from standard input. Logins are linked in the dashboard, under Password and access.`
}

type identitiesUnlinkCmd struct {
	serverFlags
	Identity string `arg:"" help:"The identity's id."`
}

func (u identitiesUnlinkCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	password, err := terminal.AskSecret(k.Stderr, bufio.NewReader(os.Stdin), "Current password: ")
	if err != nil {
		return err
	}
	if err := c.UnlinkIdentity(ctx, u.Identity, password); err != nil {
		return err
	}
	fmt.Fprintln(k.Stderr, "The login is unlinked.")
	return nil
}
