package cli

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

// passwdCmd changes the user's own password. That ends every login, so it creates
// a new one for this machine.
type passwdCmd struct {
	serverFlags
	Expires span `default:"90d" help:"How long the new login lasts, like 12h or 90d; 0: until logout."`
}

func (p passwdCmd) Run(ctx context.Context, k *kong.Context) error {
	known, err := readLogin()
	if err != nil {
		return err
	}
	c, err := p.connect()
	if err != nil {
		return err
	}
	me, err := c.Me(ctx)
	if err != nil {
		return err
	}
	in := bufio.NewReader(os.Stdin)
	current, err := terminal.AskSecret(k.Stderr, in, "Current password: ")
	if err != nil {
		return err
	}
	password, err := terminal.AskNewPassword(k.Stderr, in)
	if err != nil {
		return err
	}
	if err := c.ChangePassword(ctx, current, password); err != nil {
		return err
	}
	fmt.Fprintln(k.Stderr, "The password is changed. All sessions and tokens have ended.")
	server := p.server(known)
	if known.Token == "" || !sameServer(known.URL, server) || os.Getenv(tokenVariable) != "" {
		return nil
	}
	session, _, err := client.Login(ctx, server, api.Login{Username: me.Username, Password: password}, p.userAgent())
	if client.CodeOf(err) == "passkey_required" {
		fmt.Fprintln(k.Stderr, "Log in again with codehub login --browser or --device: the account has a passkey.")
		return nil
	}
	if err != nil {
		return fmt.Errorf("log in with the new password: %w", err)
	}
	return keepLogin(ctx, session, server, p.Expires, savedLogin{})
}

// keepLogin creates a token with a session, saves it in place of the previous one,
// and ends the previous one and the session.
func keepLogin(ctx context.Context, session *client.Client, server string, lasts span, before savedLogin) error {
	host, _ := os.Hostname()
	token, err := session.CreateToken(ctx, api.CreateToken{Name: "codehub login on " + host, ExpiresAt: lasts.from(time.Now())})
	if err != nil {
		return err
	}
	if err := (savedLogin{URL: server, Token: token.Token, TokenID: token.ID}).write(); err != nil {
		return fmt.Errorf("save the login: %w", err)
	}
	if sameServer(before.URL, server) && before.TokenID != "" {
		_ = session.DeleteToken(ctx, before.TokenID) // may have expired, or be another user's
	}
	if err := session.Logout(ctx); err != nil {
		return err
	}
	return nil
}
