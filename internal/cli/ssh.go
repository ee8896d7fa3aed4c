package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/sync/errgroup"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

// sshCmd runs OpenSSH's client, or carries its connection.
type sshCmd struct {
	serverFlags
	Stdio     bool     `help:"Carry an SSH connection on standard input and output, as OpenSSH's ProxyCommand does."`
	Suffix    string   `hidden:"" help:"End of the host names that config-ssh writes."`
	Workspace string   `arg:"" help:"A workspace's name or id."`
	Command   []string `arg:"" optional:"" passthrough:"" help:"Command to run instead of a shell."`
}

// Help describes further uses.
func (sshCmd) Help() string {
	return `It needs OpenSSH's client and no key: the API carries the connection. For scp, rsync, forwarded ports and editors use codehub config-ssh.`
}

func (s sshCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	name := s.Workspace
	if s.Suffix != "" {
		name = strings.TrimSuffix(name, "."+s.Suffix)
	}
	w, err := resolveEnterable(ctx, c, name)
	if err != nil {
		return err
	}
	if s.Stdio {
		return carry(ctx, c, w.ID)
	}
	program, err := exec.LookPath("ssh")
	if err != nil {
		return errors.New("codehub ssh needs OpenSSH's client, and there is no ssh on the PATH: install it (Debian: openssh-client)")
	}
	known, err := readLogin()
	if err != nil {
		return err
	}
	options, err := sshOptions(ctx, c, s.server(known))
	if err != nil {
		return err
	}
	proxy, err := proxyCommand(s.server(known), "", w.ID)
	if err != nil {
		return err
	}
	args := []string{"-o", "ProxyCommand=" + proxy}
	for _, o := range options {
		args = append(args, "-o", o.name+"="+o.value)
	}
	user := w.Name
	if isShared(w) {
		// The name could be that of an own workspace, whose connection ssh would reuse.
		user = w.ID
		args = append(args, "-o", "ForwardAgent=no") // the owner could use the agent
	} else if !plainName(user) {
		user = w.ID
	}
	command := s.Command
	if len(command) > 0 && command[0] == "--" {
		command = command[1:]
	}
	args = append(append(args, "-l", user, user+"."+defaultSuffix), command...)
	// ssh receives the signals of the terminal too, and handles them.
	cmd := exec.Command(program, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, k.Stdout, k.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return terminal.Exit(max(exit.ExitCode(), 1), nil) // ssh has printed the error
	}
	return err
}

// lastData is how long the end of a connection waits for data in transit.
const lastData = 5 * time.Second

// carry copies between an SSH connection of the server and standard input and output.
func carry(ctx context.Context, c *client.Client, id string) error {
	conn, err := c.SSH(ctx, id)
	if err != nil {
		return err
	}
	defer conn.Close()
	var g errgroup.Group
	done := make(chan struct{})
	go func() {
		// The client has ended when its output has. Its connection is closed then, and
		// what it has sent arrives first.
		_, _ = io.CopyBuffer(onlyWriter{conn}, onlyReader{os.Stdin}, make([]byte, copyBuffer))
		select {
		case <-done:
		case <-time.After(lastData):
		}
		conn.Close()
	}()
	g.Go(func() error {
		defer close(done)
		_, err := io.CopyBuffer(onlyWriter{os.Stdout}, onlyReader{conn}, make([]byte, copyBuffer))
		return err
	})
	if err := g.Wait(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("the connection to the server broke: %w", err)
	}
	return nil
}

const copyBuffer = 64 << 10

// onlyReader and onlyWriter hide other methods, so that the copy uses its own buffer.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)

// option is a setting of OpenSSH's client.
type option struct{ name, value string }

// sshOptions returns the options by which OpenSSH's client verifies the server: the
// host key comes from the API, and is written to a file that only codehub uses.
func sshOptions(ctx context.Context, c *client.Client, server string) ([]option, error) {
	s, err := c.SSHServer(ctx)
	if err != nil {
		return nil, err
	}
	alias, err := hostKeyAlias(server)
	if err != nil {
		return nil, err
	}
	file, err := pinHostKey(alias, s)
	if err != nil {
		return nil, err
	}
	return []option{
		{"HostKeyAlias", alias}, {"UserKnownHostsFile", quotedPath(file)}, {"GlobalKnownHostsFile", "none"},
		{"StrictHostKeyChecking", "yes"}, {"CheckHostIP", "no"}, {"UpdateHostKeys", "no"},
	}, nil
}

// hostKeyAlias names a server in the file of host keys.
func hostKeyAlias(server string) (string, error) {
	u, err := url.Parse(server)
	if err != nil || u.Host == "" {
		return "", fmt.Errorf("%q is not a server's address", server)
	}
	return "codehub-" + strings.NewReplacer(":", "-", "[", "", "]", "").Replace(strings.ToLower(u.Host)), nil
}

// pinHostKey writes the server's host key to the file of host keys and returns its name.
func pinHostKey(alias string, s api.SSHServer) (string, error) {
	login, err := loginFile()
	if err != nil {
		return "", err
	}
	file := filepath.Join(filepath.Dir(login), "ssh_known_hosts")
	line := alias + " " + s.HostKey
	old, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	var lines []string
	for l := range strings.Lines(string(old)) {
		if l = strings.TrimRight(l, "\n"); l == line {
			return file, nil
		}
		if !strings.HasPrefix(l, alias+" ") {
			lines = append(lines, l)
		}
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return "", err
	}
	return file, replaceFile(file, strings.Join(append(lines, line), "\n")+"\n", 0o600)
}

// replaceFile writes a file at once, so that other programs never read a part of it.
func replaceFile(file, content string, mode os.FileMode) error {
	tmp, err := os.CreateTemp(filepath.Dir(file), ".codehub-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.WriteString(content)
	if err := errors.Join(err, tmp.Chmod(mode), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), file)
}

// proxyCommand is the command by which OpenSSH's client connects to a workspace.
func proxyCommand(server, suffix, workspace string) (string, error) {
	program, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	parts := []string{quotedShell(program), "ssh", "--stdio", "--url", quotedShell(server)}
	if suffix != "" {
		parts = append(parts, "--suffix", suffix)
	}
	return strings.Join(append(parts, workspace), " "), nil
}

// quotedShell quotes text for a shell, within an option of OpenSSH, which replaces what
// begins with %.
func quotedShell(text string) string {
	text = strings.ReplaceAll(text, "%", "%%")
	if !strings.ContainsFunc(text, func(r rune) bool { return !plainRune(r) && !strings.ContainsRune("/:%", r) }) {
		return text
	}
	return quotedProgram(text)
}

// quotedPath quotes a path for an option of OpenSSH.
func quotedPath(path string) string {
	path = strings.ReplaceAll(filepath.ToSlash(path), "%", "%%") // OpenSSH takes / on Windows as well
	if strings.ContainsAny(path, " \t") {
		return `"` + path + `"`
	}
	return path
}

// plainName reports whether SSH clients accept a workspace's name as a user and a host.
func plainName(name string) bool {
	return name != "" && len(name) <= 63 && name[0] != '-' && !strings.ContainsFunc(name, func(r rune) bool { return !plainRune(r) })
}

func plainRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.'
}

func privateKey(text string) bool { return strings.Contains(text, "PRIVATE KEY-----") }
