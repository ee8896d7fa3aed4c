package cli

import (
	"context"
	"fmt"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

type passkeysCmd struct {
	List   passkeysListCmd   `cmd:"" aliases:"ls" help:"List your passkeys."`
	Rename passkeysRenameCmd `cmd:"" help:"Rename a passkey."`
}

// Help describes where passkeys are added and removed.
func (passkeysCmd) Help() string {
	return `Passkeys are added and removed in the dashboard, under Password and access, after a login that needed one.`
}

type passkeysListCmd struct {
	serverFlags
	terminal.Format
}

func (l passkeysListCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	list, err := c.Passkeys(ctx)
	if err != nil {
		return err
	}
	return l.Print(k.Stdout, list, passkeyTable(list))
}

func passkeyTable(list api.PasskeyList) string {
	if len(list.Passkeys) == 0 {
		return "There are no passkeys."
	}
	rows := [][]string{{"NAME", "", "ADDED", "LAST USED", "ID"}}
	for _, p := range list.Passkeys {
		mark := ""
		switch {
		case !p.Usable:
			mark = "for another address"
		case p.ClonedAt != nil:
			mark = "may have been copied"
		}
		rows = append(rows, []string{p.Name, mark, terminal.Time(p.CreatedAt), orNever(p.LastUsedAt), p.ID})
	}
	return terminal.Table(rows) + fmt.Sprintf("Recovery codes left: %d\n", list.RecoveryCodes)
}

type passkeysRenameCmd struct {
	serverFlags
	Passkey string `arg:"" help:"The passkey's name or id."`
	Name    string `arg:"" help:"The new name."`
}

func (r passkeysRenameCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	list, err := c.Passkeys(ctx)
	if err != nil {
		return err
	}
	var found []api.Passkey
	for _, have := range list.Passkeys {
		if have.ID == r.Passkey || have.Name == r.Passkey {
			found = append(found, have)
		}
	}
	switch {
	case len(found) == 0:
		return terminal.NotFound("there is no passkey %q", r.Passkey)
	case len(found) > 1:
		return fmt.Errorf("several passkeys are called %q; give an id, as in: codehub passkeys list", r.Passkey)
	}
	if err := c.RenamePasskey(ctx, found[0].ID, r.Name); err != nil {
		return err
	}
	fmt.Fprintln(k.Stderr, "The passkey is renamed.")
	return nil
}
