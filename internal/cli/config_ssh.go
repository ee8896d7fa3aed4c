package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/alecthomas/kong"
	"golang.org/x/term"

	"codehub/client"
	"codehub/internal/cli/terminal"
)

// defaultSuffix ends the host names of workspaces.
const defaultSuffix = "codehub"

// configSSHCmd writes the workspaces into OpenSSH's configuration.
type configSSHCmd struct {
	serverFlags
	File   string `default:"~/.ssh/config" help:"OpenSSH's configuration."`
	Suffix string `default:"codehub" help:"End of the host names: NAME.SUFFIX."`
	DryRun bool   `name:"dry-run" help:"Print the part without writing it."`
	Remove bool   `help:"Remove the part."`
	Yes    bool   `short:"y" help:"Skip the confirmation."`
}

// Help describes the part that is written.
func (configSSHCmd) Help() string {
	return `Afterwards ssh NAME.codehub works, and scp, rsync and editors with it. The connection goes through the API, by https alone, and needs no key. Run it again to list new workspaces in editors; the rest of the file stays as it is.`
}

func (s configSSHCmd) Run(ctx context.Context, k *kong.Context) error {
	if !plainName(s.Suffix) || strings.HasPrefix(s.Suffix, ".") {
		return fmt.Errorf("%q cannot end a host name", s.Suffix)
	}
	known, err := readLogin()
	if err != nil {
		return err
	}
	server := s.server(known)
	block := ""
	if !s.Remove {
		c, err := s.connect()
		if err != nil {
			return err
		}
		if block, err = s.block(ctx, c, server); err != nil {
			return err
		}
	}
	if s.DryRun {
		fmt.Fprint(k.Stdout, block)
		return nil
	}
	file, err := configFile(s.File)
	if err != nil {
		return err
	}
	old, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	changed, err := replaceBlock(string(old), server, block)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if changed == string(old) {
		fmt.Fprintln(k.Stderr, file, "is up to date.")
		return nil
	}
	if !s.Yes && term.IsTerminal(int(os.Stdin.Fd())) {
		fmt.Fprint(k.Stderr, block)
		answer, err := terminal.Ask(k.Stderr, bufio.NewReader(os.Stdin), fmt.Sprintf("Write this part of %s? [y/N] ", file))
		if err != nil || !strings.HasPrefix(strings.ToLower(answer), "y") {
			return errors.New("nothing was changed")
		}
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	mode := os.FileMode(0o600)
	if info, err := os.Stat(file); err == nil {
		mode = info.Mode().Perm()
	}
	if err := replaceFile(file, changed, mode); err != nil {
		return err
	}
	if s.Remove {
		fmt.Fprintln(k.Stderr, "The part was removed from", file)
		return nil
	}
	fmt.Fprintf(k.Stderr, "%s is up to date. Connect with: ssh NAME.%s\n", file, s.Suffix)
	return nil
}

// configFile resolves ~ and symbolic links, so that a link is not replaced.
func configFile(name string) (string, error) {
	if rest, ok := strings.CutPrefix(name, "~/"); ok {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		name = filepath.Join(home, rest)
	}
	if target, err := filepath.EvalSymlinks(name); err == nil {
		return target, nil
	}
	return filepath.Abs(name)
}

func begin(server string) string { return "# BEGIN codehub " + server }
func end(server string) string   { return "# END codehub " + server }

// block is the part of the configuration for a server. It names the workspaces, because
// editors list the hosts that they find.
func (s configSSHCmd) block(ctx context.Context, c *client.Client, server string) (string, error) {
	list, err := c.List(ctx, client.Filter{})
	if err != nil {
		return "", err
	}
	options, err := sshOptions(ctx, c, server)
	if err != nil {
		return "", err
	}
	proxy, err := proxyCommand(server, s.Suffix, "%n")
	if err != nil {
		return "", err
	}
	var hosts []string
	for _, w := range list {
		if plainName(w.Name) {
			hosts = append(hosts, w.Name+"."+s.Suffix)
		}
	}
	var b strings.Builder
	fmt.Fprintln(&b, begin(server))
	fmt.Fprintln(&b, "# Written by codehub config-ssh, which replaces it.")
	fmt.Fprintln(&b, "Host", strings.Join(append(hosts, "*."+s.Suffix), " "))
	fmt.Fprintln(&b, "    User coder")
	fmt.Fprintln(&b, "    ProxyCommand", proxy)
	for _, o := range options {
		fmt.Fprintf(&b, "    %s %s\n", o.name, o.value)
	}
	fmt.Fprintln(&b, end(server))
	return b.String(), nil
}

// replaceBlock replaces the part of a server, or appends it.
func replaceBlock(config, server, block string) (string, error) {
	before, rest, found := cutLine(config, begin(server))
	if !found {
		if _, _, stray := cutLine(config, end(server)); stray {
			return "", errors.New("the part of codehub has an end and no beginning; remove it by hand")
		}
		if block == "" {
			return config, nil
		}
		if config != "" && !strings.HasSuffix(config, "\n") {
			config += "\n"
		}
		if config != "" {
			config += "\n"
		}
		return config + block, nil
	}
	_, after, found := cutLine(rest, end(server))
	if !found {
		return "", errors.New("the part of codehub has no end; remove it by hand")
	}
	if block == "" {
		before = strings.TrimSuffix(before, "\n\n")
		if before != "" && !strings.HasSuffix(before, "\n") {
			before += "\n"
		}
	}
	return before + block + after, nil
}

// cutLine cuts text around a line.
func cutLine(text, line string) (before, after string, found bool) {
	at := 0
	for l := range strings.Lines(text) {
		if strings.TrimRight(l, "\r\n") == line {
			return text[:at], text[at+len(l):], true
		}
		at += len(l)
	}
	return text, "", false
}
