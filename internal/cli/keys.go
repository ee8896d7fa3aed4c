package cli

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

type keysCmd struct {
	List   keysListCmd   `cmd:"" aliases:"ls" help:"List your SSH keys."`
	Add    keysAddCmd    `cmd:"" help:"Add a public key."`
	Remove keysRemoveCmd `cmd:"" aliases:"rm" help:"Remove a key and end its connections."`
}

type keysListCmd struct {
	serverFlags
	terminal.Format
}

func (l keysListCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	list, err := c.SSHKeys(ctx)
	if err != nil {
		return err
	}
	rows := [][]string{{"NAME", "FINGERPRINT", "EXPIRES", "LAST USED", "ID"}}
	for _, key := range list {
		rows = append(rows, []string{key.Name, key.Fingerprint, orNever(key.ExpiresAt), orNever(key.LastUsedAt), key.ID})
	}
	return l.Print(k.Stdout, list, terminal.Table(rows))
}

type keysAddCmd struct {
	serverFlags
	terminal.Format
	File string `arg:"" help:"File with the public key, such as ~/.ssh/id_ed25519.pub; -: standard input."`
	Name string `help:"Name of the key (default: its comment)."`
}

const maxKeyFile = 64 << 10 // bytes

func (a keysAddCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	from := io.Reader(os.Stdin)
	if a.File != "-" {
		f, err := os.Open(a.File)
		if err != nil {
			return err
		}
		defer f.Close()
		from = f
	}
	public, err := io.ReadAll(io.LimitReader(from, maxKeyFile))
	if err != nil {
		return fmt.Errorf("read the public key: %w", err)
	}
	if privateKey(string(public)) {
		return fmt.Errorf("%s is a private key, which must not leave this machine; give the file that ends with .pub", a.File)
	}
	made, err := c.AddSSHKey(ctx, api.AddSSHKey{Name: a.Name, PublicKey: string(public)})
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%s was added: %s", terminal.Plain(made.Name), made.Fingerprint)
	if made.ExpiresAt != nil {
		text += "\nIt expires at " + terminal.Time(*made.ExpiresAt) + ", with the API token that added it."
	}
	return a.Print(k.Stdout, made, text)
}

type keysRemoveCmd struct {
	serverFlags
	Key string `arg:"" help:"The key's name, fingerprint or id."`
}

func (r keysRemoveCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	list, err := c.SSHKeys(ctx)
	if err != nil {
		return err
	}
	var found []api.SSHKey
	for _, have := range list {
		if have.ID == r.Key || have.Name == r.Key || have.Fingerprint == r.Key {
			found = append(found, have)
		}
	}
	switch {
	case len(found) == 0:
		return terminal.NotFound("there is no SSH key %q", r.Key)
	case len(found) > 1:
		return fmt.Errorf("several keys are called %q; give a fingerprint, as in: codehub keys list", r.Key)
	}
	if err := c.DeleteSSHKey(ctx, found[0].ID); err != nil {
		return err
	}
	fmt.Fprintln(k.Stderr, "The key is removed.")
	return nil
}
