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
	gitHub  bool     // gh, and not glab
	host    string   // the default
	others  []string // hosts that it cannot talk to
	hostEnv []string // variables that name the host
	repoEnv string   // variable that names a repository
	config  []string // its logins: a variable with their folder, the folder below ~/.config, and the file
}

func gitClientOf(name string) gitClient {
	if name == agent.GitHubClient {
		return gitClient{true, gitHubHost, []string{"gitlab.com", "bitbucket.org"}, []string{"GH_HOST"}, "GH_REPO", []string{"GH_CONFIG_DIR", "gh", "hosts.yml"}}
	}
	return gitClient{false, "gitlab.com", []string{gitHubHost, "bitbucket.org"}, []string{"GITLAB_HOST", "GITLAB_URI", "GL_HOST"}, "GITLAB_REPO", []string{"GLAB_CONFIG_DIR", "glab-cli", "config.yml"}}
}

const gitHubHost = "github.com"

// startedVariable lists the programs that GitClient has started above this one, as the PATH does.
const startedVariable = "CODEHUB_GIT_CLIENTS"

// GitClient runs gh or glab, which args begin with, in a workspace: with the owner's token for the
// host that it will talk to, if the user has given it none. It returns only if it could not start
// the program.
func GitClient(version string, args []string) int {
	name := filepath.Base(args[0])
	program, err := programBehind(name, os.Getenv("PATH"), filepath.SplitList(os.Getenv(startedVariable)))
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 127
	}
	if err := gitClientOf(name).setTokens(args[1:], version); err != nil {
		fmt.Fprintln(os.Stderr, "codehub:", messageOf(err))
	}
	started := append(filepath.SplitList(os.Getenv(startedVariable)), program)
	_ = os.Setenv(startedVariable, strings.Join(started, string(filepath.ListSeparator)))
	err = syscall.Exec(program, append([]string{program}, args[1:]...), os.Environ())
	fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
	return 126
}

// setTokens sets the variables for the command. The error is why it gets no token.
func (c gitClient) setTokens(args []string, version string) error {
	if !usesServer(args) {
		return nil
	}
	host, err := c.hostOf(args, gitRemotes)
	hosts := []string{host}
	if c.gitHub && host != gitHubHost {
		hosts = append(hosts, gitHubHost) // gh sends GH_TOKEN to no other
	}
	wait, malformed := time.ParseDuration(os.Getenv(gitWaitVariable))
	if malformed != nil {
		wait = 5 * time.Second
	}
	for _, host := range hosts {
		if host == "" || c.isLoggedIn(host) {
			continue
		}
		given, failed := gitCredential(context.Background(), kong.Vars{versionVar: version}, host, "", wait)
		wait = 0
		if failed != nil {
			err = cmp.Or(err, failed)
			continue
		}
		for name, value := range c.variables(host, given) {
			_ = os.Setenv(name, value)
		}
		err = nil
		if host == gitHubHost {
			break
		}
	}
	return err
}

// programBehind returns the first program of this name that the search path has, besides codehub
// and those that were started already: a program of that name may itself start the next one. If
// there are no others, it is the last of those.
func programBehind(name, search string, started []string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	own, err := os.Stat(self)
	if err != nil {
		return "", err
	}
	found := ""
	for _, dir := range filepath.SplitList(search) {
		file := filepath.Join(dir, name)
		info, err := os.Stat(file)
		if err != nil || !filepath.IsAbs(file) || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 || os.SameFile(info, own) {
			continue
		}
		if found = file; !slices.Contains(started, file) {
			return file, nil
		}
	}
	if found == "" {
		return "", errors.New("command not found")
	}
	return found, nil
}

// usesServer reports whether the command may talk to a server with a token from a variable.
func usesServer(args []string) bool {
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
	case "auth": // the user's own login is stored only without a token
		return operation != "login" && operation != "logout" && operation != "refresh"
	}
	return true
}

// isLoggedIn reports whether the user has given a token or a login for the host.
func (c gitClient) isLoggedIn(host string) bool {
	for _, variable := range c.tokenEnv(host) {
		if os.Getenv(variable) != "" {
			return true
		}
	}
	return hasLogin(c.readConfig(), bareHost(host))
}

// readConfig returns the client's file of logins, or "".
func (c gitClient) readConfig() string {
	dir := cmp.Or(os.Getenv(c.config[0]), filepath.Join(cmp.Or(os.Getenv("XDG_CONFIG_HOME"), filepath.Join(os.Getenv("HOME"), ".config")), c.config[1]))
	content, _ := os.ReadFile(filepath.Join(dir, c.config[2]))
	return string(content)
}

// tokenEnv returns the variables from which the client takes its token for a host, the first of
// which is to be set.
func (c gitClient) tokenEnv(host string) []string {
	switch host = bareHost(host); {
	case !c.gitHub:
		return []string{"GITLAB_TOKEN", "GITLAB_ACCESS_TOKEN", "OAUTH_TOKEN"}
	case host == gitHubHost || strings.HasSuffix(host, ".ghe.com"):
		return []string{"GH_TOKEN", "GITHUB_TOKEN"}
	}
	return []string{"GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN"}
}

// variables returns those by which the client talks to the host with the credential.
func (c gitClient) variables(host string, given api.GitCredential) map[string]string {
	env := map[string]string{c.tokenEnv(host)[0]: given.Password}
	unset := func(name, value string) {
		if os.Getenv(name) == "" {
			env[name] = value
		}
	}
	bare := bareHost(host)
	if c.gitHub {
		if bare != c.host {
			unset(c.hostEnv[0], bare)
		}
		return env
	}
	if given.Username == "oauth2" {
		env["GLAB_IS_OAUTH2"] = "true"
	}
	name, port, _ := strings.Cut(bare, ":")
	if port != "" {
		unset("GITLAB_API_HOST", bare)
	}
	if strings.HasPrefix(host, "http://") {
		unset("API_PROTOCOL", "http")
	}
	unset(c.hostEnv[0], name) // without the port, since glab compares it so with the remotes
	return env
}

// hostOf returns the host that the client will talk to, with the scheme if that is http: the one
// that its arguments or a variable name, that of a remote of the folder's repository, or its
// default. Both clients may send the token of one host to another that the arguments name, so
// several hosts in the arguments are an error.
func (c gitClient) hostOf(args []string, remotes func() []string) (string, error) {
	named := c.namedHosts(args)
	if host := c.repositoryHost(os.Getenv(c.repoEnv)); host != "" && len(named) == 0 {
		named = []string{host}
	}
	configured := ""
	for _, variable := range c.hostEnv {
		configured = cmp.Or(configured, strings.TrimSuffix(os.Getenv(variable), "/"))
	}
	if !c.gitHub && configured != "" && len(named) > 0 && !slices.Contains(named, configured) {
		named = append(named, configured)
	}
	switch {
	case len(named) > 1:
		return "", fmt.Errorf("the command names several hosts (%s), so it gets no token", strings.Join(named, ", "))
	case len(named) == 1:
		return named[0], nil
	case configured != "":
		return configured, nil
	}
	if os.Getenv(c.repoEnv) == "" && !namesRepository(args) && (!c.gitHub || usesRepository(args)) {
		for _, remote := range remotes() {
			host := canonicalHost(remoteHost(remote))
			// gh takes every remote for https and the usual port, where another server may be.
			if host != "" && !slices.Contains(c.others, bareHost(host)) && !(c.gitHub && strings.Contains(host, ":")) {
				return host, nil
			}
		}
	}
	if !c.gitHub {
		for line := range strings.Lines(c.readConfig()) {
			if host, ok := strings.CutPrefix(line, "host:"); ok && strings.TrimSpace(host) != "" {
				return strings.Trim(strings.TrimSpace(host), `"'`), nil
			}
		}
	}
	return c.host, nil
}

// namesRepository reports whether a flag names the repository.
func namesRepository(args []string) bool {
	return slices.ContainsFunc(args, func(arg string) bool {
		return strings.HasPrefix(arg, "-R") || arg == "--repo" || strings.HasPrefix(arg, "--repo=")
	})
}

// usesRepository reports whether a command of gh is for the repository of the folder.
func usesRepository(args []string) bool {
	switch args[0] {
	case "browse", "cache", "issue", "label", "pr", "release", "ruleset", "run", "secret", "variable", "workflow":
		return true
	case "repo":
		return len(args) > 1 && !slices.Contains([]string{"clone", "create", "list"}, args[1])
	}
	return false
}

// namedHosts returns the different hosts that arguments name.
func (c gitClient) namedHosts(args []string) (hosts []string) {
	add := func(host string) {
		if host = canonicalHost(host); host != "" && !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	for i, arg := range args {
		if strings.HasPrefix(arg, "-") {
			flag, value, _ := strings.Cut(arg, "=")
			if flag == "--hostname" && value != "" {
				add(value)
			}
			if (arg == "--hostname" || arg == "-h") && i+1 < len(args) && strings.ContainsAny(args[i+1], ".:") {
				add(args[i+1])
			}
			if arg = value; value == "" {
				arg = strings.TrimPrefix(flag, "-R")
			}
		}
		add(c.repositoryHost(arg))
	}
	return hosts
}

// repositoryHost returns the host in a repository's name or address, as an argument, or "".
func (c gitClient) repositoryHost(repository string) string {
	if strings.Contains(repository, "://") || strings.Contains(repository, "@") {
		return remoteHost(repository)
	}
	if host, _, ok := strings.Cut(repository, "/"); ok && c.gitHub && strings.Count(repository, "/") == 2 && strings.Index(host, ".") > 0 {
		return host
	}
	return ""
}

// canonicalHost returns the host that has the API of a host for git.
func canonicalHost(host string) string {
	switch bare := bareHost(host); {
	case strings.HasSuffix(bare, "."+gitHubHost):
		return gitHubHost
	case bare == "altssh.gitlab.com":
		return "gitlab.com"
	}
	return host
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
			return dotted(u.Hostname())
		}
		return ""
	}
	if host, _, ok := strings.Cut(address, ":"); ok && !strings.Contains(host, "/") { // user@host:path
		return dotted(host[strings.LastIndex(host, "@")+1:])
	}
	return ""
}

// dotted returns a host of SSH, unless it may be a name of the user's configuration.
func dotted(host string) string {
	if strings.Contains(host, ".") {
		return host
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
