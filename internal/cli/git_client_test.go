package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/api"
)

func TestGitClientHost(t *testing.T) {
	for _, test := range []struct {
		command   string
		env       map[string]string
		remotes   []string
		want      string
		variables []string
	}{
		{command: "gh pr list", want: "github.com", variables: []string{"GH_TOKEN=t"}},
		{command: "gh pr list", remotes: []string{"https://ann@github.com/a/b.git"}, want: "github.com", variables: []string{"GH_TOKEN=t"}},
		{command: "gh pr list", remotes: []string{"git@git.example.com:a/b.git"}, want: "git.example.com", variables: []string{"GH_ENTERPRISE_TOKEN=t", "GH_HOST=git.example.com"}},
		{command: "gh pr list", remotes: []string{"/srv/a.git", "https://gitlab.com/a/b", "ssh://git@git.example.com:2222/a/b"}, want: "git.example.com", variables: []string{"GH_ENTERPRISE_TOKEN=t", "GH_HOST=git.example.com"}},
		{command: "gh pr list -R git.example.com/a/b", remotes: []string{"https://github.com/a/b"}, want: "git.example.com", variables: []string{"GH_ENTERPRISE_TOKEN=t", "GH_HOST=git.example.com"}},
		{command: "gh pr list --repo=a/b", remotes: []string{"https://git.example.com/a/b"}, want: "git.example.com", variables: []string{"GH_ENTERPRISE_TOKEN=t", "GH_HOST=git.example.com"}},
		{command: "gh api --hostname Acme.ghe.com user", want: "Acme.ghe.com", variables: []string{"GH_TOKEN=t", "GH_HOST=acme.ghe.com"}},
		{command: "gh alias-of-mine -- --hostname git.example.com", want: "github.com", variables: []string{"GH_TOKEN=t"}},
		{command: "gh pr list", env: map[string]string{"GH_HOST": "git.example.com"}, want: "git.example.com", variables: []string{"GH_ENTERPRISE_TOKEN=t"}},
		{command: "gh pr list", env: map[string]string{"GH_REPO": "https://git.example.com/a/b"}, want: "git.example.com", variables: []string{"GH_ENTERPRISE_TOKEN=t", "GH_HOST=git.example.com"}},
		{command: "gh pr list", remotes: []string{"https://git.local:8443/a/b", "http://git.local/a/b"}, want: "github.com", variables: []string{"GH_TOKEN=t"}},
		{command: "gh api --hostname git.local:8443 user", want: "git.local:8443", variables: []string{"GH_ENTERPRISE_TOKEN=t", "GH_HOST=git.local:8443"}},
		{command: "glab mr list", want: "gitlab.com", variables: []string{"GITLAB_TOKEN=t"}},
		{command: "glab mr list", remotes: []string{"http://git.local:3000/a/b"}, want: "http://git.local:3000", variables: []string{"GITLAB_TOKEN=t", "GITLAB_HOST=git.local", "GITLAB_API_HOST=git.local:3000", "API_PROTOCOL=http"}},
		{command: "glab mr list -R a/b/c", remotes: []string{"https://github.com/a/b"}, want: "gitlab.com", variables: []string{"GITLAB_TOKEN=t"}},
	} {
		for _, name := range []string{"GH_HOST", "GH_REPO", "GITLAB_HOST", "GITLAB_REPO", "GITLAB_API_HOST", "API_PROTOCOL"} {
			t.Setenv(name, test.env[name])
		}
		args := strings.Fields(test.command)
		c := gitClientOf(args[0])
		if got := c.hostOf(args[1:], func() []string { return test.remotes }); got != test.want {
			t.Errorf("%s with %v %v: %q, want %q", test.command, test.env, test.remotes, got, test.want)
		}
		if d := cmp.Diff(test.variables, c.variables(test.want, api.GitCredential{Username: "ann", Password: "t"})); d != "" {
			t.Error(test.command, d)
		}
	}
	want := []string{"GITLAB_TOKEN=t", "GLAB_IS_OAUTH2=true"}
	if d := cmp.Diff(want, gitClientOf("glab").variables("gitlab.com", api.GitCredential{Username: "oauth2", Password: "t"})); d != "" {
		t.Error(d)
	}
}

// A token or a login of the user counts, and no server is asked for a command that needs none.
func TestGitClientWantsToken(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"GH_TOKEN", "GITHUB_TOKEN", "GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN"} {
		t.Setenv(name, "")
	}
	t.Setenv("GH_CONFIG_DIR", dir)
	c := gitClientOf("gh")
	wants := func(command, host string) bool { return c.wantsToken(strings.Fields(command), host) }
	if !wants("pr list", "github.com") || !wants("auth status", "github.com") || wants("auth login", "github.com") || wants("completion -s bash", "github.com") || wants("", "github.com") {
		t.Error("the wrong commands want a token")
	}
	hosts := "github.com:\n    git_protocol: https\n    users:\n        ann:\n            oauth_token: gho_1\nGit.example.com:\n    user:\n"
	if err := os.WriteFile(filepath.Join(dir, "hosts.yml"), []byte(hosts), 0o600); err != nil {
		t.Fatal(err)
	}
	if wants("pr list", "github.com") || !wants("pr list", "git.example.com") || !wants("pr list", "github.com.example.com") {
		t.Error("the user's logins do not count as they should")
	}
	t.Setenv("GITHUB_ENTERPRISE_TOKEN", "mine")
	if wants("pr list", "git.example.com") {
		t.Error("the user's token does not count")
	}
	glab := "token: !!null\nhosts:\n    gitlab.com:\n        # What protocol to use\n        token:\n        api_host: gitlab.com\n    git.example.com:\n        token: !!null glpat-1\n"
	if hasLogin(glab, "gitlab.com") || !hasLogin(glab, "git.example.com") {
		t.Error("the logins of glab are read wrongly")
	}
}

func TestProgramBehind(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	own, other := t.TempDir(), t.TempDir()
	if err := os.Symlink(self, filepath.Join(own, "gh")); err != nil {
		t.Fatal(err)
	}
	search := own + string(filepath.ListSeparator) + other
	if got, err := programBehind("gh", search); err == nil {
		t.Errorf("found %s", got)
	}
	if err := os.WriteFile(filepath.Join(other, "gh"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := programBehind("gh", search); got != filepath.Join(other, "gh") {
		t.Error(got, err)
	}
}
