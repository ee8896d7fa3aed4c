package cli

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

// invitationText is the link of a new invitation.
func invitationText(a api.Account) string {
	text := a.InvitationURL
	if a.InvitedUntil != nil {
		text += "\nThe link sets the password of " + terminal.Plain(a.Username) + ". It is valid once, until " + terminal.Time(*a.InvitedUntil) + ", and is shown only now."
	}
	return text
}

// Help describes the link.
func (usersInviteCmd) Help() string {
	return `Prints a link with which the user sets a new password and logs in. It is valid once, for 3 days, and ends an earlier link of the user. A present password stays valid until the link is used.`
}

type usersInviteCmd struct{ onUser }

func (u usersInviteCmd) Run(ctx context.Context, k *kong.Context) error {
	c, id, err := u.find(ctx)
	if err != nil {
		return err
	}
	a, err := c.InviteAccount(ctx, id)
	if err != nil {
		return err
	}
	return u.Print(k.Stdout, a, invitationText(a))
}

// Help describes the list.
func (usersImportCmd) Help() string {
	return `The first line of the list has the columns: name, and optionally admin (true or false), max_running, max_workspaces and max_bytes. An empty value is the default. Each user gets an invitation, as with codehub users invite; the links are printed as CSV. If a line is wrong, or a name is taken, no user is created.`
}

type usersImportCmd struct {
	serverFlags
	terminal.Format
	File string `arg:"" help:"File with the list in CSV; -: standard input."`
}

const maxListFile = 512 << 10 // bytes

func (u usersImportCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	from := io.Reader(os.Stdin)
	if u.File != "-" {
		f, err := os.Open(u.File)
		if err != nil {
			return err
		}
		defer f.Close()
		from = f
	}
	list, err := io.ReadAll(io.LimitReader(from, maxListFile+1))
	switch {
	case err != nil:
		return fmt.Errorf("read the list: %w", err)
	case len(list) > maxListFile:
		return fmt.Errorf("%s is too large for a list of at most 1000 users", u.File)
	case !utf8.Valid(list):
		return fmt.Errorf("%s is not in UTF-8; save it as CSV in UTF-8", u.File)
	}
	made, err := c.ImportAccounts(ctx, api.ImportAccounts{CSV: string(list)})
	if err != nil {
		return err
	}
	var b strings.Builder
	w := csv.NewWriter(&b)
	_ = w.Write([]string{"name", "link"}) // a Builder does not fail
	for _, a := range made.Users {
		_ = w.Write([]string{a.Username, a.InvitationURL})
	}
	w.Flush()
	return u.Print(k.Stdout, made, b.String())
}
