package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

type sessionsCmd struct {
	List sessionsListCmd `cmd:"" aliases:"ls" help:"List your sessions."`
	End  sessionsEndCmd  `cmd:"" help:"End a session."`
}

type sessionsListCmd struct {
	serverFlags
	terminal.Format
}

func (l sessionsListCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	list, err := c.Sessions(ctx)
	if err != nil {
		return err
	}
	return l.Print(k.Stdout, list, sessionTable(list))
}

func sessionTable(list []api.OpenSession) string {
	rows := [][]string{{"DEVICE", "ADDRESS", "CREATED", "LAST USED", "ID"}}
	for _, s := range list {
		used := s.CreatedAt
		if s.LastUsedAt != nil {
			used = *s.LastUsedAt
		}
		rows = append(rows, []string{s.UserAgent, s.Address, terminal.Time(s.CreatedAt), terminal.Time(used), s.ID})
	}
	return terminal.Table(rows)
}

type sessionsEndCmd struct {
	serverFlags
	Session string `arg:"" optional:"" help:"The session's id."`
	All     bool   `help:"End all sessions in browsers."`
}

// Help describes which credentials stay valid.
func (sessionsEndCmd) Help() string {
	return `Browsers with an ended session are logged out. API tokens are not affected: see codehub tokens.`
}

func (s sessionsEndCmd) Run(ctx context.Context, k *kong.Context) error {
	if (s.Session == "") == !s.All {
		return errors.New("give the id of a session (codehub sessions list), or --all")
	}
	c, err := s.connect()
	if err != nil {
		return err
	}
	if s.All {
		n, err := c.EndOtherSessions(ctx)
		if err == nil {
			fmt.Fprintf(k.Stderr, "Ended %d sessions.\n", n)
		}
		return err
	}
	if err := c.EndSession(ctx, s.Session); err != nil {
		return err
	}
	fmt.Fprintln(k.Stderr, "The session has ended.")
	return nil
}
