package cli

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

type gitCmd struct {
	Connections gitConnectionsCmd `cmd:"" aliases:"list,ls" help:"List your connections to Git servers."`
	Connect     gitConnectCmd     `cmd:"" help:"Store a token from standard input."`
	Disconnect  gitDisconnectCmd  `cmd:"" help:"Remove a connection."`
	Token       gitTokenCmd       `cmd:"" help:"Print a host's token, in a workspace."`
	Identity    gitIdentityCmd    `cmd:"" help:"Show or change the author of your commits."`
}

// Help describes who uses the tokens.
func (gitCmd) Help() string {
	return `Git in your workspaces uses your tokens for the hosts that they are for. No page and no command outside a workspace returns them.`
}

type gitConnectionsCmd struct {
	serverFlags
	terminal.Format
}

func (g gitConnectionsCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	list, err := c.GitConnections(ctx)
	if err != nil {
		return err
	}
	rows := [][]string{{"HOST", "LOGIN", "KIND", "STATE", "CHANGED", "ID"}}
	text := ""
	for _, one := range list {
		kind := one.Kind
		if one.Provider != "" {
			kind = one.Provider
		}
		rows = append(rows, []string{one.Host, one.Login, kind, one.State, terminal.Time(one.ChangedAt), one.ID})
		if one.Error != "" {
			text += "\n" + terminal.Plain(one.Host) + ": " + gitProblem(one.Error)
		}
	}
	return g.Print(k.Stdout, list, terminal.Table(rows)+text)
}

// gitProblem says why a connection was not refreshed, and what to do.
func gitProblem(reason string) string {
	switch reason {
	case api.GitRevoked:
		return "The provider does not accept the connection any more. Connect again on your account page."
	case api.GitUnavailable:
		return "The provider was not responding at the last refresh. The server tries again when Git needs the token."
	case api.GitMisconfigured:
		return "The provider does not accept the app of this server. Contact an administrator."
	}
	return terminal.Plain(reason)
}

type gitConnectCmd struct {
	serverFlags
	terminal.Format
	Host  string `arg:"" help:"Host of the Git server, such as github.com; with http:// if it has no TLS."`
	Login string `required:"" placeholder:"NAME" help:"Your user name there."`
}

// maxGitToken is longer than what the server accepts, in bytes.
const maxGitToken = 16 << 10

func (g gitConnectCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	var token string
	var err error
	if terminal.Interactive() {
		token, err = terminal.AskSecret(k.Stderr, bufio.NewReader(os.Stdin), "Token: ")
	} else {
		var b []byte
		b, err = io.ReadAll(io.LimitReader(os.Stdin, maxGitToken))
		token = string(b)
	}
	if err != nil {
		return fmt.Errorf("read the token: %w", err)
	}
	made, err := c.ConnectGit(ctx, api.NewGitConnection{Host: g.Host, Login: g.Login, Token: token})
	if err != nil {
		return err
	}
	return g.Print(k.Stdout, made, "Git in your workspaces uses this token for "+terminal.Plain(made.Host)+".")
}

type gitDisconnectCmd struct {
	serverFlags
	Host string `arg:"" help:"The connection's host or id."`
}

func (g gitDisconnectCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	list, err := c.GitConnections(ctx)
	if err != nil {
		return err
	}
	for _, one := range list {
		if one.ID != g.Host && !strings.EqualFold(one.Host, strings.TrimPrefix(g.Host, "https://")) {
			continue
		}
		out, err := c.DisconnectGit(ctx, one.ID)
		if err != nil {
			return err
		}
		if out.Revoked {
			fmt.Fprintln(k.Stderr, "The connection is removed, and its token is revoked.")
		} else {
			fmt.Fprintln(k.Stderr, "The connection is removed. Revoke the token at "+terminal.Plain(one.Host)+", too.")
		}
		return nil
	}
	return terminal.NotFound("there is no connection to %q", g.Host)
}

type gitTokenCmd struct {
	Host string `arg:"" help:"Host of the Git server, such as github.com."`
}

// Help gives the example.
func (gitTokenCmd) Help() string {
	return `For programs that do not ask Git: curl -H "Authorization: Bearer $(codehub git token github.com)" https://api.github.com/user`
}

func (g gitTokenCmd) Run(ctx context.Context, k *kong.Context, vars kong.Vars) error {
	c, err := gitCredential(ctx, vars, g.Host, "", 0)
	if err == nil {
		fmt.Fprintln(k.Stdout, c.Password)
	}
	return err
}

// gitCredentialCmd is Git's credential helper in a workspace (gitcredentials(7)).
type gitCredentialCmd struct {
	Operation string        `arg:"" help:"get, or erase after the host has rejected the token; others do nothing."`
	Wait      time.Duration `env:"CODEHUB_GIT_WAIT" default:"5s" help:"How long to wait for the server."`
}

// Help says who calls it.
func (gitCredentialCmd) Help() string {
	return `Git in a workspace calls it. It answers for the host that Git asks about, and stores nothing.`
}

// Run answers Git. Without an answer Git asks the user, so that a failure is only a message.
func (g gitCredentialCmd) Run(ctx context.Context, k *kong.Context, vars kong.Vars) error {
	if g.Operation != "get" && g.Operation != "erase" {
		return nil
	}
	asked, err := readGitRequest(os.Stdin)
	if err != nil {
		return err
	}
	if asked["host"] == "" || asked["protocol"] != "https" && asked["protocol"] != "http" {
		return nil
	}
	rejected := ""
	if g.Operation == "erase" {
		// The server refreshes the token, if it is this one, for Git's next attempt.
		if asked["password"] == "" {
			return nil
		}
		sum := sha256.Sum256([]byte(asked["password"]))
		rejected = hex.EncodeToString(sum[:])
	}
	c, err := gitCredential(ctx, vars, asked["protocol"]+"://"+asked["host"], rejected, g.Wait)
	if rejected != "" && client.CodeOf(err) == "not_found" {
		return nil // it was not the server's
	}
	if err != nil {
		fmt.Fprintln(k.Stderr, "codehub:", messageOf(err))
		return nil
	}
	if g.Operation != "get" {
		return nil
	}
	fmt.Fprintf(k.Stdout, "username=%s\npassword=%s\n", c.Username, c.Password)
	return nil
}

// readGitRequest reads the attributes that Git writes, up to an empty line.
func readGitRequest(in io.Reader) (map[string]string, error) {
	attributes := map[string]string{}
	lines := bufio.NewScanner(io.LimitReader(in, maxGitRequest))
	for lines.Scan() && lines.Text() != "" {
		key, value, _ := strings.Cut(lines.Text(), "=")
		attributes[key] = value
	}
	return attributes, lines.Err()
}

// gitWaitVariable is how long a program waits for the server, as a duration; see gitCredentialCmd.
const gitWaitVariable = "CODEHUB_GIT_WAIT"

const maxGitRequest = 1 << 20 // bytes

// gitTimeout is how long the server may take for a credential, which it may have to refresh.
const gitTimeout = 25 * time.Second

// gitCredential asks the server for the credential of a host. A server that is not connected to
// the workspace is waited for.
func gitCredential(ctx context.Context, vars kong.Vars, host, rejected string, wait time.Duration) (out api.GitCredential, err error) {
	c, err := serverFlags{version: vars[versionVar]}.connectInside(gitTimeout)
	if err != nil {
		return out, err
	}
	for begin := time.Now(); ; {
		out, err = c.GitCredential(ctx, host, rejected)
		if !errors.Is(err, errNoServer) || time.Since(begin) >= wait || ctx.Err() != nil {
			break
		}
		time.Sleep(gitPause)
	}
	if _, inside := os.LookupEnv(workspaceVariable); errors.Is(err, errNoServer) && !inside {
		return out, errors.New("use this command in a workspace")
	}
	var e *client.Error
	if errors.As(err, &e) {
		if page, ok := e.Details["url"].(string); ok {
			err = &client.Error{Status: e.Status, Code: e.Code, Message: e.Message + " To add one: " + terminal.Plain(page), Details: e.Details}
		}
	}
	return out, err
}

// gitPause is the time between two attempts to reach the server.
const gitPause = 200 * time.Millisecond
