package cli

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

type secretCmd struct {
	Create secretCreateCmd `cmd:"" help:"Store a secret from standard input."`
	List   secretListCmd   `cmd:"" aliases:"ls" help:"List secrets, without their values."`
	Update secretUpdateCmd `cmd:"" help:"Change a secret."`
	Delete secretDeleteCmd `cmd:"" aliases:"rm" help:"Delete a secret."`
}

// Help describes how workspaces get secrets.
func (secretCmd) Help() string {
	return `A workspace gets its secrets at its start, as environment variables and as files in memory. Values cannot be read back.`
}

// onSecrets is embedded in the commands on secrets.
type onSecrets struct {
	serverFlags
	terminal.Format
	Group string `help:"A group's name or id: its secrets, instead of yours."`
}

// list returns the id of the group, or "", and the secrets.
func (o onSecrets) list(ctx context.Context, c *client.Client) (group string, list api.SecretList, err error) {
	if o.Group == "" {
		list, err = c.Secrets(ctx)
		return "", list, err
	}
	g, err := findGroup(ctx, c, o.Group)
	if err != nil {
		return "", list, err
	}
	list, err = c.GroupSecrets(ctx, g.ID)
	return g.ID, list, err
}

// find returns the caller's secret, or the group's, with that name or id.
func (o onSecrets) find(ctx context.Context, c *client.Client, name string) (api.Secret, error) {
	group, list, err := o.list(ctx, c)
	if err != nil {
		return api.Secret{}, err
	}
	for _, s := range list.Secrets {
		if s.ID == name || s.Name == name && (s.GroupID == nil) == (group == "") {
			return s, nil
		}
	}
	return api.Secret{}, terminal.NotFound("there is no secret %q", name)
}

const maxSecret = 64 << 10 // bytes

// readSecret reads a value from standard input, on a terminal without showing it.
func readSecret(out io.Writer) (value, encoding string, err error) {
	if terminal.Interactive() {
		value, err = terminal.AskSecret(out, bufio.NewReader(os.Stdin), "Value: ")
		return value, "", err
	}
	b, err := io.ReadAll(io.LimitReader(os.Stdin, maxSecret+1))
	switch {
	case err != nil:
		return "", "", fmt.Errorf("read the value: %w", err)
	case len(b) == 0:
		return "", "", errors.New("the value on standard input is empty")
	case len(b) > maxSecret:
		return "", "", errors.New("the value is longer than 64 KiB")
	case !utf8.Valid(b):
		return base64.StdEncoding.EncodeToString(b), api.Base64, nil
	}
	return string(b), "", nil
}

// secretFile returns a path that a shell has expanded below the home of this machine as ~/path.
func secretFile(file string) string {
	home, err := os.UserHomeDir()
	if below, ok := strings.CutPrefix(file, home+string(filepath.Separator)); err == nil && ok {
		return "~/" + filepath.ToSlash(below)
	}
	return file
}

var errWorkspaceAndTemplate = errors.New("give --workspace or --template, not both")

type secretCreateCmd struct {
	onSecrets
	Name      string `arg:"" help:"Name of the secret."`
	Env       string `placeholder:"VAR" help:"Environment variable that has the value."`
	File      string `placeholder:"PATH" help:"File that has the value, such as ~/.npmrc."`
	Workspace string `help:"Name or id of the only workspace that gets it (default: all)."`
	Template  string `help:"Name of the only template whose workspaces get it."`
}

func (s secretCreateCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	if s.Env == "" && s.File == "" {
		return errors.New("give --env, --file or both")
	}
	if s.Workspace != "" && s.Template != "" {
		return errWorkspaceAndTemplate
	}
	in := api.CreateSecret{Name: s.Name, Env: s.Env, File: secretFile(s.File), Template: s.Template}
	if s.Template != "" {
		if _, err := c.Template(ctx, s.Template); err != nil {
			return err
		}
	}
	var group string
	if s.Group != "" {
		g, err := findGroup(ctx, c, s.Group)
		if err != nil {
			return err
		}
		group = g.ID
	}
	if s.Workspace != "" {
		w, err := resolve(ctx, c, s.Workspace, false)
		if err != nil {
			return err
		}
		in.WorkspaceID = w.ID
	}
	var err error
	if in.Value, in.Encoding, err = readSecret(k.Stderr); err != nil {
		return err
	}
	made, err := c.CreateSecret(ctx, group, in)
	if err != nil {
		return err
	}
	return s.Print(k.Stdout, made, "The secret "+terminal.Plain(made.Name)+" is stored. Workspaces get it at their next start.")
}

type secretListCmd struct{ onSecrets }

func (s secretListCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	_, list, err := s.list(ctx, c)
	if err != nil {
		return err
	}
	rows := [][]string{{"NAME", "ENV", "FILE", "WORKSPACE", "TEMPLATE", "GROUP", "CHANGED", "ID"}}
	for _, one := range list.Secrets {
		only := one.WorkspaceName
		if one.WorkspaceID != nil && only == "" {
			only = *one.WorkspaceID
		}
		template := ""
		if one.Template != nil {
			template = *one.Template
		}
		rows = append(rows, []string{one.Name, one.Env, one.File, only, template, one.GroupName, terminal.Time(one.ChangedAt), one.ID})
	}
	text := terminal.Table(rows)
	if len(list.Waiting) > 0 {
		names := make([]string, len(list.Waiting))
		for i, w := range list.Waiting {
			names[i] = terminal.Plain(w.Name)
		}
		text += "\nThese running workspaces get changed secrets at their next start: " + strings.Join(names, ", ")
	}
	for _, m := range list.Missing {
		text += "\n" + missingWords(m)
	}
	return s.Print(k.Stdout, list, text)
}

// missingWords says that a workspace lacks a secret.
func missingWords(m api.SecretMissing) string {
	return fmt.Sprintf("The workspace %s requires the secret %s. Store it: codehub secret create %s --env %s", terminal.Plain(m.Name), m.Env, strings.TrimLeft(m.Env, "_"), m.Env)
}

// missingSecrets returns the secrets that a workspace requires and does not have.
func missingSecrets(ctx context.Context, c *client.Client, w api.Workspace) (list []api.SecretMissing, err error) {
	if len(w.RequiredSecrets) == 0 {
		return nil, nil
	}
	all, err := c.Secrets(ctx)
	for _, m := range all.Missing {
		if m.WorkspaceID == w.ID {
			list = append(list, m)
		}
	}
	return list, err
}

type secretUpdateCmd struct {
	onSecrets
	Name      string  `arg:"" help:"Name or id of the secret."`
	Env       *string `placeholder:"VAR" help:"Environment variable; empty: none."`
	File      *string `placeholder:"PATH" help:"File; empty: none."`
	Workspace *string `help:"Name or id of the only workspace that gets it; empty: all."`
	Template  *string `help:"Name of the only template whose workspaces get it; empty: all."`
	Value     bool    `help:"Read a new value from standard input (default: if no other flag is given)."`
}

func (s secretUpdateCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	old, err := s.find(ctx, c, s.Name)
	if err != nil {
		return err
	}
	in := api.UpdateSecret{Env: s.Env}
	if s.File != nil {
		file := secretFile(*s.File)
		in.File = &file
	}
	if s.Workspace != nil {
		if in.WorkspaceID = api.Null[string](); *s.Workspace != "" {
			w, err := resolve(ctx, c, *s.Workspace, false)
			if err != nil {
				return err
			}
			in.WorkspaceID = api.Value(w.ID)
		}
	}
	if s.Template != nil {
		if in.Template = api.Null[string](); *s.Template != "" {
			if s.Workspace != nil && *s.Workspace != "" {
				return errWorkspaceAndTemplate
			}
			if _, err := c.Template(ctx, *s.Template); err != nil {
				return err
			}
			in.Template = api.Value(*s.Template)
		}
	}
	if s.Value || s.Env == nil && s.File == nil && s.Workspace == nil && s.Template == nil {
		value, encoding, err := readSecret(k.Stderr)
		if err != nil {
			return err
		}
		in.Value, in.Encoding = &value, encoding
	}
	made, err := c.UpdateSecret(ctx, old.ID, in)
	if err != nil {
		return err
	}
	return s.Print(k.Stdout, made, "The secret "+terminal.Plain(made.Name)+" is changed. Workspaces get it at their next start.")
}

type secretDeleteCmd struct {
	serverFlags
	Group string `help:"A group's name or id: its secret, instead of yours."`
	Name  string `arg:"" help:"Name or id of the secret."`
}

func (s secretDeleteCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	old, err := onSecrets{Group: s.Group}.find(ctx, c, s.Name)
	if err != nil {
		return err
	}
	if err := c.DeleteSecret(ctx, old.ID); err != nil {
		return err
	}
	fmt.Fprintln(k.Stderr, "The secret is deleted. Running workspaces keep it until they stop.")
	return nil
}
