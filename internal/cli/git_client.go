package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/internal/runtime/agent"
)

// gitClient describes gh or glab: programs for the API of Git servers, which take a token from a
// variable.
type gitClient struct {
	host    string   // the default
	others  []string // hosts that are of other programs
	hostEnv string   // variable that names the host
	repoEnv string   // variable that names a repository
	config  []string // its logins: a variable with their folder, the folder below ~/.config, and the file
}

func gitClientOf(name string) gitClient {
	if name == agent.GitLabClient {
		return gitClient{"gitlab.com", []string{"github.com", "bitbucket.org"}, "GITLAB_HOST", "GITLAB_REPO", []string{"GLAB_CONFIG_DIR", "glab-cli", "config.yml"}}
	}
	return gitClient{"github.com", []string{"gitlab.com", "bitbucket.org"}, "GH_HOST", "GH_REPO", []string{"GH_CONFIG_DIR", "gh", "hosts.yml"}}
}

// GitClient runs gh or glab, which args begin with, in a workspace: with the owner's token for the
// host that it will talk to, if the user has given it none. It returns only if it could not start
// the program.
func GitClient(version string, args []string) int {
	name := filepath.Base(args[0])
	program, err := programBehind(name, os.Getenv("PATH"))
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 127
	}
	env := os.Environ()
	c := gitClientOf(name)
	if host := c.hostOf(args[1:], gitRemotes); c.wantsToken(args[1:], host) {
		wait, err := time.ParseDuration(os.Getenv(gitWaitVariable))
		if err != nil {
			wait = 5 * time.Second
		}
		given, err := gitCredential(context.Background(), kong.Vars{versionVar: version}, host, "", wait)
		if err != nil {
			fmt.Fprintln(os.Stderr, "codehub:", messageOf(err))
		} else {
			env = append(env, c.variables(host, given)...)
		}
	}
	err = syscall.Exec(program, append([]string{program}, args[1:]...), env)
	fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
	return 126
}

// programBehind returns the program of this name that the search path has besides codehub.
func programBehind(name, search string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	own, err := os.Stat(self)
	if err != nil {
		return "", err
	}
	for _, dir := range filepath.SplitList(search) {
		file := filepath.Join(dir, name)
		info, err := os.Stat(file)
		if err == nil && filepath.IsAbs(file) && info.Mode().IsRegular() && info.Mode()&0o111 != 0 && !os.SameFile(info, own) {
			return file, nil
		}
	}
	return "", errors.New("command not found")
}

// wantsToken reports whether the command may talk to the host, and the user has given no token or
// login for it.
func (c gitClient) wantsToken(args []string, host string) bool {
	command, operation := "", ""
	if len(args) > 0 {
		command = args[0]
	}
	if len(args) > 1 {
		operation = args[1]
	}
	switch command {
	case "", "alias", "completion", "config", "help", "version", "--help", "-h", "--version":
		return false
	case "auth":
		if operation == "login" || operation == "logout" || operation == "refresh" {
			return false // the user's own login is stored only without a token
		}
	}
	for _, variable := range c.tokenEnv(host) {
		if os.Getenv(variable) != "" {
			return false
		}
	}
	dir := cmp.Or(os.Getenv(c.config[0]), filepath.Join(cmp.Or(os.Getenv("XDG_CONFIG_HOME"), filepath.Join(os.Getenv("HOME"), ".config")), c.config[1]))
	logins, err := os.ReadFile(filepath.Join(dir, c.config[2]))
	return err != nil || !hasLogin(string(logins), bareHost(host))
}

// tokenEnv returns the variables from which the client takes its token for a host, the first of
// which is to be set.
func (c gitClient) tokenEnv(host string) []string {
	switch host = bareHost(host); {
	case c.hostEnv == "GITLAB_HOST":
		return []string{"GITLAB_TOKEN", "GITLAB_ACCESS_TOKEN", "OAUTH_TOKEN"}
	case host == c.host || strings.HasSuffix(host, ".ghe.com"):
		return []string{"GH_TOKEN", "GITHUB_TOKEN"}
	}
	return []string{"GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN"}
}

// variables returns those by which the client talks to the host with the credential.
func (c gitClient) variables(host string, given api.GitCredential) []string {
	env := []string{c.tokenEnv(host)[0] + "=" + given.Password}
	bare := bareHost(host)
	name, port, _ := strings.Cut(bare, ":")
	if os.Getenv(c.hostEnv) == "" && bare != c.host {
		if c.hostEnv == "GH_HOST" {
			name = bare
		}
		env = append(env, c.hostEnv+"="+name) // glab compares it with the remotes without the port
	}
	if c.hostEnv != "GITLAB_HOST" {
		return env
	}
	if given.Username == "oauth2" {
		env = append(env, "GLAB_IS_OAUTH2=true")
	}
	if port != "" && os.Getenv("GITLAB_API_HOST") == "" {
		env = append(env, "GITLAB_API_HOST="+bare)
	}
	if strings.HasPrefix(host, "http://") && os.Getenv("API_PROTOCOL") == "" {
		env = append(env, "API_PROTOCOL=http")
	}
	return env
}

// hostOf returns the host that the client will talk to, with the scheme if that is http: by its
// flags, the variables, the remotes of the folder's repository, or its default.
func (c gitClient) hostOf(args []string, remotes func() []string) string {
	host, repository := "", os.Getenv(c.repoEnv)
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	for i, arg := range args {
		flag, value, given := strings.Cut(arg, "=")
		if !given && i+1 < len(args) {
			value = args[i+1]
		}
		switch flag {
		case "--hostname":
			host = value
		case "-R", "--repo":
			repository = value
		}
	}
	if host = cmp.Or(host, os.Getenv(c.hostEnv)); host != "" {
		return strings.TrimSuffix(host, "/")
	}
	if host = remoteHost(repository); host != "" {
		return host
	}
	if parts := strings.Split(repository, "/"); len(parts) == 3 && c.hostEnv == "GH_HOST" {
		return parts[0]
	}
	for _, remote := range remotes() {
		host := remoteHost(remote)
		// gh takes every remote for https and the usual port, where another server may be.
		if host != "" && !slices.Contains(c.others, bareHost(host)) && (c.hostEnv != "GH_HOST" || !strings.Contains(host, ":")) {
			return host
		}
	}
	return c.host
}

// gitRemotes returns the addresses that the repository of the folder fetches from, in the order in
// which gh and glab prefer them.
func gitRemotes() []string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "git", "remote", "-v").Output()
	if err != nil {
		return nil // no repository, or no git
	}
	named := map[string]string{}
	var addresses []string
	for line := range strings.Lines(string(out)) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if address, ok := strings.CutSuffix(rest, " (fetch)"); ok {
			named[name] = address
			addresses = append(addresses, address)
		}
	}
	var preferred []string
	for _, name := range []string{"upstream", "github", "gitlab", "origin"} {
		if named[name] != "" {
			preferred = append(preferred, named[name])
		}
	}
	return append(preferred, addresses...)
}

// remoteHost returns the host of a repository's address as connections have it, with http:// where
// that is its scheme, and "" if it has none.
func remoteHost(address string) string {
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		switch u.Scheme {
		case "https":
			return u.Host
		case "http":
			return "http://" + u.Host
		case "ssh", "git", "git+ssh":
			return u.Hostname()
		}
		return ""
	}
	if host, _, ok := strings.Cut(address, ":"); ok && !strings.Contains(host, "/") { // user@host:path
		return host[strings.LastIndex(host, "@")+1:]
	}
	return ""
}

func bareHost(host string) string {
	_, bare, ok := strings.Cut(host, "://")
	if !ok {
		bare = host
	}
	return strings.ToLower(bare)
}

// hasLogin reports whether a configuration of gh or glab, in YAML, has a login for a host.
func hasLogin(config, host string) bool {
	depth := -1 // of the host's line, while its block is read
	for line := range strings.Lines(config) {
		text := strings.TrimSpace(line)
		if text == "" || text[0] == '#' {
			continue
		}
		indent := len(line) - len(strings.TrimLeft(line, " \t"))
		if indent <= depth {
			depth = -1
		}
		key, value, _ := strings.Cut(text, ":")
		if depth < 0 && strings.ToLower(text) == host+":" {
			depth = indent
		}
		value = strings.Trim(strings.TrimPrefix(strings.TrimSpace(value), "!!null"), ` "'`)
		if depth >= 0 && value != "" && slices.Contains([]string{"oauth_token", "token", "user"}, key) {
			return true
		}
	}
	return false
}
