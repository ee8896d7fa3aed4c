package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

type dotfilesCmd struct {
	Set    dotfilesSetCmd    `cmd:"" help:"Set the repository of your dotfiles."`
	Show   dotfilesShowCmd   `cmd:"" help:"Show the repository of your dotfiles."`
	Remove dotfilesRemoveCmd `cmd:"" aliases:"rm" help:"Stop applying dotfiles to workspaces."`
	Apply  dotfilesApplyCmd  `cmd:"" help:"Apply your dotfiles to a workspace again."`
}

// Help describes when workspaces get dotfiles.
func (dotfilesCmd) Help() string {
	return `A workspace gets the dotfiles of its owner once, at its first start with them. Its setup has the output: codehub setup NAME --log.`
}

func dotfilesText(d api.Dotfiles) string {
	switch {
	case d.URL == "":
		return "no dotfiles"
	case d.Branch != "":
		return terminal.Plain(d.URL + " " + d.Branch)
	}
	return terminal.Plain(d.URL)
}

type dotfilesSetCmd struct {
	serverFlags
	terminal.Format
	Address string `arg:"" name:"repository" help:"Address of a Git repository."`
	Branch  string `help:"Branch or tag (default: that of the repository)."`
}

func (s dotfilesSetCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	d, err := c.SetDotfiles(ctx, api.Dotfiles{URL: s.Address, Branch: s.Branch})
	var e *client.Error
	if errors.As(err, &e) && e.Details["field"] == "repo" { // which is no flag here
		_, problem, _ := strings.Cut(e.Message, "” ")
		return &client.Error{Status: e.Status, Code: e.Code, Message: "The address " + problem}
	}
	if err != nil {
		return err
	}
	return s.Print(k.Stdout, d, "Your dotfiles are those of "+dotfilesText(d)+". Workspaces get them at their next start; for one that has got some: codehub dotfiles apply NAME")
}

type dotfilesShowCmd struct {
	serverFlags
	terminal.Format
}

func (s dotfilesShowCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	d, err := c.Dotfiles(ctx)
	if err != nil {
		return err
	}
	return s.Print(k.Stdout, d, dotfilesText(d))
}

type dotfilesRemoveCmd struct{ serverFlags }

func (dotfilesRemoveCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	if err := c.RemoveDotfiles(ctx); err != nil {
		return err
	}
	fmt.Fprintln(k.Stdout, "Workspaces get no dotfiles any more. Those that have some keep them.")
	return nil
}

type dotfilesApplyCmd struct {
	onThisWorkspace
	Wait bool `short:"w" help:"Wait for the end."`
}

func (a dotfilesApplyCmd) Run(ctx context.Context, k *kong.Context) error {
	failed := false
	err := a.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		out, err := c.ApplyDotfiles(ctx, id)
		if err == nil && a.Wait {
			if out, err = awaitSetup(ctx, k.Stderr, c, id); errors.Is(err, errSetupFailed) {
				failed, err = true, nil
			}
		}
		return out, setupTable(out, false), err
	})
	if err == nil && failed {
		return errSetupFailed
	}
	return err
}
