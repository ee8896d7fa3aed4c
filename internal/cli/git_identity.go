package cli

import (
	"context"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

type gitIdentityCmd struct {
	serverFlags
	terminal.Format
	Name   *string `help:"Author of your commits; empty: your identity provider's, or your username."`
	Email  *string `help:"E-mail address of the author; empty: your identity provider's, or none."`
	Sign   *bool   `negatable:"" help:"Sign commits and tags with the SSH key."`
	NewKey bool    `help:"Make a new SSH key, which replaces the former one at once."`
}

// Help describes what has the identity.
func (gitIdentityCmd) Help() string {
	return `Git in all of your workspaces has them, running ones within seconds. The private key stays on the server, which signs.`
}

func (g gitIdentityCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	now, err := c.GitIdentity(ctx)
	if err != nil {
		return err
	}
	if g.Name != nil || g.Email != nil || g.Sign != nil {
		in := api.SetGitIdentity{Name: now.Name, Email: now.Email, SignCommits: now.SignCommits}
		if g.Name != nil {
			in.Name = *g.Name
		}
		if g.Email != nil {
			in.Email = *g.Email
		}
		if g.Sign != nil {
			in.SignCommits = *g.Sign
		}
		if now, err = c.SetGitIdentity(ctx, in); err != nil {
			return err
		}
	}
	if g.NewKey {
		if now, err = c.NewGitKey(ctx); err != nil {
			return err
		}
	}
	or := func(s, none string) string {
		if s == "" {
			return none
		}
		return terminal.Plain(s)
	}
	signs := "no"
	if now.SignCommits {
		signs = "yes"
	}
	return g.Print(k.Stdout, now, terminal.Table([][]string{
		{"Name:", or(now.Name, "-")}, {"E-mail:", or(now.Email, "-")}, {"Signs commits:", signs}, {"Public key:", or(now.PublicKey, "none; make one with --new-key")},
	}))
}
