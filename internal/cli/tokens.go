package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

type tokensCmd struct {
	List   tokensListCmd   `cmd:"" aliases:"ls" help:"List your API tokens."`
	Create tokensCreateCmd `cmd:"" help:"Create an API token and print it."`
	Delete tokensDeleteCmd `cmd:"" aliases:"rm" help:"Revoke an API token."`
}

type tokensListCmd struct {
	serverFlags
	terminal.Format
}

func (l tokensListCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	list, err := c.Tokens(ctx)
	if err != nil {
		return err
	}
	return l.Print(k.Stdout, list, tokenTable(list))
}

// Help describes the tokens.
func (tokensCreateCmd) Help() string {
	return `The token is shown only once: codehub stores only its hash.`
}

type tokensCreateCmd struct {
	serverFlags
	terminal.Format
	Name    string `arg:"" help:"Name of the token, such as the program that uses it."`
	Expires span   `default:"0" help:"Lifetime of the token, like 12h or 90d; 0: until it is deleted."`

	Scope     string `default:"admin" enum:"read,workspaces,admin" help:"What the token may do: read workspaces, also change and enter workspaces, or everything (admin)."`
	Workspace string `placeholder:"NAME" help:"The only workspace that the token is for, with --scope read or workspaces."`
}

func (t tokensCreateCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	in := api.CreateToken{Name: t.Name, ExpiresAt: t.Expires.from(time.Now()), Scope: t.Scope}
	if t.Workspace != "" {
		w, err := resolve(ctx, c, t.Workspace, false)
		if err != nil {
			return err
		}
		in.WorkspaceID = w.ID
	}
	made, err := c.CreateToken(ctx, in)
	if err != nil {
		return err
	}
	return t.Print(k.Stdout, made, made.Token)
}

type tokensDeleteCmd struct {
	serverFlags
	Token string `arg:"" help:"The token's name or id."`
}

func (t tokensDeleteCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	list, err := c.Tokens(ctx)
	if err != nil {
		return err
	}
	var found []api.Token
	for _, have := range list {
		if have.ID == t.Token || have.Name == t.Token {
			found = append(found, have)
		}
	}
	switch {
	case len(found) == 0:
		return terminal.NotFound("there is no token %q", t.Token)
	case len(found) > 1:
		return fmt.Errorf("several tokens are called %q; give an id, as in: codehub tokens list", t.Token)
	}
	if err := c.DeleteToken(ctx, found[0].ID); err != nil {
		return err
	}
	fmt.Fprintln(k.Stderr, "The token is revoked.")
	return nil
}
