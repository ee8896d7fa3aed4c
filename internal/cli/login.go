package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

// savedLogin is the content of the file that a login writes.
type savedLogin struct {
	URL     string `json:"url"`
	Token   string `json:"token"`
	TokenID string `json:"token_id"`
}

func loginFile() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("find the folder for settings: %w", err)
	}
	return filepath.Join(dir, "codehub", "login.json"), nil
}

func readLogin() (savedLogin, error) {
	var l savedLogin
	file, err := loginFile()
	if err != nil {
		return l, nil // no folder for it, so there is no login
	}
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return l, err
	}
	if err := json.Unmarshal(b, &l); err != nil {
		return l, fmt.Errorf("read %s: %w (codehub login replaces it)", file, err)
	}
	return l, nil
}

// write saves the login in a file that only its owner can read.
func (l savedLogin) write() error {
	file, err := loginFile()
	if err != nil {
		return err
	}
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	b, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, ".login-*") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	if err := keepPrivate(tmp.Name()); err != nil {
		return errors.Join(err, tmp.Close())
	}
	_, err = tmp.Write(append(b, '\n'))
	if err := errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), file)
}

// Help describes the ways to log in.
func (loginCmd) Help() string {
	return `In a terminal the browser opens, where you log in as usual and allow the login. Where no browser can be opened, use --device: it shows a code that you type in on another machine. Without a terminal the username and the password are read from standard input.`
}

type loginCmd struct {
	serverFlags
	Server    string `arg:"" optional:"" help:"The server, like https://codehub.example.com."`
	Username  string `short:"u" xor:"name" help:"Your account. With --device no other account can allow the login; else its password is prompted for or read from standard input."`
	Browser   bool   `xor:"who,name" help:"Log in with the browser on this machine, as by default in a terminal."`
	Device    bool   `xor:"who" help:"Log in with a browser on any machine, by a code that is typed in there."`
	WithToken bool   `xor:"who,name" help:"Log in with an API token, which is prompted for or read from standard input. --expires does not apply."`
	Expires   span   `default:"90d" help:"How long the login lasts, like 12h or 90d, at most 90d by browser; 0: as long as possible."`
}

func (l loginCmd) Run(ctx context.Context, k *kong.Context) error {
	known, err := readLogin()
	if err != nil {
		known = savedLogin{}
	}
	if strings.HasPrefix(l.Server, "chub_") {
		return errors.New("an API token is not a server: with --with-token it is read from standard input")
	}
	if l.Server != "" {
		l.URL = l.Server
	}
	server := l.server(known)
	if l.inside(known) != "" {
		if server, err = l.ownServer(ctx); err != nil {
			return err
		}
	}
	in := bufio.NewReader(os.Stdin)
	if l.WithToken {
		return l.withToken(ctx, k, server, in, known)
	}
	if l.Browser || l.Username == "" && !l.Device && terminal.Interactive() {
		return l.withBrowser(ctx, k, server, known)
	}
	if l.Device {
		return l.withDevice(ctx, k, server, known)
	}
	if l.Username == "" {
		if l.Username, err = terminal.Ask(k.Stderr, in, "Username: "); err != nil {
			return err
		}
	}
	password, err := terminal.AskSecret(k.Stderr, in, "Password: ")
	if err != nil {
		return err
	}
	agent := l.userAgent()
	session, user, err := client.Login(ctx, server, api.Login{Username: l.Username, Password: password}, agent)
	if err != nil {
		return err
	}
	if err := keepLogin(ctx, session, server, l.Expires, known); err != nil {
		return err
	}
	fmt.Fprintf(k.Stderr, "Logged in to %s as %s.\n", server, terminal.Plain(user.Username))
	return nil
}

// ownServer returns the address of the server of the workspace in which the command runs.
func (f serverFlags) ownServer(ctx context.Context) (string, error) {
	c, err := f.connectInside(insideTimeout)
	if err != nil {
		return "", err
	}
	s, err := c.Session(ctx)
	return s.URL, err
}

// withToken saves an API token of the user's in place of the previous login. A logout
// removes such a token from the file and does not revoke it.
func (l loginCmd) withToken(ctx context.Context, k *kong.Context, server string, in *bufio.Reader, before savedLogin) error {
	token, err := terminal.AskSecret(k.Stderr, in, "API token: ")
	if err != nil {
		return err
	}
	c, err := client.New(server, token, l.userAgent())
	if err != nil {
		return err
	}
	s, err := c.Session(ctx)
	if client.CodeOf(err) == "unauthenticated" {
		return errors.New("the server does not accept this token; it may have expired or been revoked")
	}
	if err != nil {
		return err
	}
	if err := (savedLogin{URL: server, Token: token}).write(); err != nil {
		return fmt.Errorf("save the login: %w", err)
	}
	if sameServer(before.URL, server) && before.TokenID != "" && before.Token != token {
		_ = c.DeleteToken(ctx, before.TokenID) // may have expired, or be another user's
	}
	fmt.Fprintf(k.Stderr, "Logged in to %s as %s.\n", server, terminal.Plain(s.User.Username))
	return nil
}

type logoutCmd struct{}

func (logoutCmd) Run(ctx context.Context, k *kong.Context) error {
	known, err := readLogin()
	if err != nil {
		return err
	}
	if known.Token == "" {
		fmt.Fprintln(k.Stderr, "Not logged in.")
		return nil
	}
	c, err := client.New(known.URL, known.Token)
	if err == nil && known.TokenID != "" { // else it is the user's own: see withToken
		err = c.DeleteToken(ctx, known.TokenID)
	}
	file, ferr := loginFile()
	if ferr == nil {
		ferr = os.Remove(file)
	}
	if ferr != nil {
		return fmt.Errorf("remove the login: %w", ferr)
	}
	// A token that is no longer valid need not be revoked.
	if err != nil && client.CodeOf(err) != "unauthenticated" && client.CodeOf(err) != "not_found" {
		return fmt.Errorf("the login was removed from this machine, but its token %s may still be valid: %w", known.TokenID, err)
	}
	fmt.Fprintf(k.Stderr, "Logged out of %s.\n", known.URL)
	return nil
}

type whoamiCmd struct {
	serverFlags
	terminal.Format
}

func (w whoamiCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	s, err := c.Session(ctx)
	if err != nil {
		return err
	}
	text := terminal.Plain(s.User.Username)
	if s.User.Admin {
		text += " (admin)"
	}
	if s.Workspace != nil {
		text += ", in the workspace " + terminal.Plain(s.Workspace.Name) + " of " + terminal.Plain(s.URL)
	}
	return w.Print(k.Stdout, s, text)
}
