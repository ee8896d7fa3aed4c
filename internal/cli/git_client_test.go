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
	token := func(more ...string) map[string]string {
		env := map[string]string{}
		for _, each := range more {
			name, value, _ := strings.Cut(each, "=")
			env[name] = value
		}
		return env
	}
	const ours, other = "https://git.example.com/a/b", "https://github.com/a/b"
	enterprise := token("GH_ENTERPRISE_TOKEN=t", "GH_HOST=git.example.com")
	gitHub := token("GH_TOKEN=t")
	for _, test := range []struct {
		command   string
		env       string
		remotes   string
		want      string // empty: several
		variables map[string]string
	}{
		{"gh pr list", "", "", "github.com", gitHub},
		{"gh pr list", "", "https://ann@github.com/a/b.git", "github.com", gitHub},
		{"gh pr list", "", "ssh://git@ssh.github.com:443/a/b", "github.com", gitHub},
		{"gh pr list", "", "git@github-work:a/b git@git.example.com:a/b.git", "git.example.com", enterprise},
		{"gh pr list", "", "/srv/a.git https://gitlab.com/a/b ssh://git@git.example.com:2222/a/b", "git.example.com", enterprise},
		{"gh pr list", "", "https://git.local:8443/a/b http://git.local/a/b", "github.com", gitHub},
		{"gh api user", "", ours, "github.com", gitHub},
		{"gh repo clone cli/cli", "", ours, "github.com", gitHub},
		{"gh pr list --repo=a/b", "", ours, "github.com", gitHub},
		{"gh pr list -R git.example.com/a/b", "", other, "git.example.com", enterprise},
		{"gh pr list -Rgit.example.com/a/b", "", other, "git.example.com", enterprise},
		{"gh pr list -wR git.example.com/a/b", "GH_HOST=a.example.com", other, "git.example.com", token("GH_ENTERPRISE_TOKEN=t")},
		{"gh pr list -R git.local:8443/a/b", "", "", "git.local:8443", token("GH_ENTERPRISE_TOKEN=t", "GH_HOST=git.local:8443")},
		{"gh pr view https://evil.example/a/b/pull/1", "", ours, "evil.example", token("GH_ENTERPRISE_TOKEN=t", "GH_HOST=evil.example")},
		{"gh pr view -R git.example.com/a/b https://evil.example/a/b/pull/1", "", "", "", nil},
		{"gh api --hostname git.example.com https://evil.example/x", "", "", "", nil},
		{"gh repo clone git.example.com/a/b -- --reference ./x/y/z", "", other, "git.example.com", enterprise},
		{"gh api --hostname Acme.ghe.com user", "", "", "Acme.ghe.com", token("GH_TOKEN=t", "GH_HOST=acme.ghe.com")},
		{"gh auth token -h git.example.com", "", other, "git.example.com", enterprise},
		{"gh pr list", "GH_HOST=git.example.com", other, "git.example.com", token("GH_ENTERPRISE_TOKEN=t")},
		{"gh pr list", "GH_REPO=" + ours, other, "git.example.com", enterprise},
		{"glab mr list", "", "", "gitlab.com", token("GITLAB_TOKEN=t", "GITLAB_HOST=gitlab.com")},
		{"glab mr list", "", "git@altssh.gitlab.com:a/b", "gitlab.com", token("GITLAB_TOKEN=t", "GITLAB_HOST=gitlab.com")},
		{"glab mr list", "", "http://git.local:3000/a/b", "http://git.local:3000", token("GITLAB_TOKEN=t", "GITLAB_HOST=git.local", "GITLAB_API_HOST=git.local:3000", "API_PROTOCOL=http")},
		{"glab mr list -R a/b/c", "", ours, "gitlab.com", token("GITLAB_TOKEN=t", "GITLAB_HOST=gitlab.com")},
		{"glab api user", "GL_HOST=git.example.com", other, "git.example.com", token("GITLAB_TOKEN=t", "GITLAB_HOST=git.example.com")},
		{"glab mr list -R " + other, "GITLAB_HOST=git.example.com", "", "", nil},
	} {
		t.Run(test.command, func(t *testing.T) {
			t.Setenv("XDG_CONFIG_HOME", t.TempDir())
			for _, name := range []string{"GH_CONFIG_DIR", "GLAB_CONFIG_DIR", "GH_HOST", "GH_REPO", "GITLAB_HOST", "GITLAB_URI", "GL_HOST", "GITLAB_REPO", "GITLAB_API_HOST", "API_PROTOCOL"} {
				t.Setenv(name, "")
			}
			if name, value, given := strings.Cut(test.env, "="); given {
				t.Setenv(name, value)
			}
			args := strings.Fields(test.command)
			c := gitClientOf(args[0])
			host, err := c.hostOf(args[1:], func() []string { return strings.Fields(test.remotes) })
			if host != test.want || (err != nil) != (test.want == "") {
				t.Fatalf("%q %v, want %q", host, err, test.want)
			}
			if err == nil {
				if d := cmp.Diff(test.variables, c.variables(host, api.GitCredential{Username: "ann", Password: "t"})); d != "" {
					t.Error(d)
				}
			}
		})
	}
}

// The server that the configuration of glab names is its default.
func TestGitLabClientConfig(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("GLAB_CONFIG_DIR", dir)
	if err := os.WriteFile(filepath.Join(dir, "config.yml"), []byte("host: git.example.com\nhosts:\n    gitlab.com:\n        token: glpat-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"GITLAB_HOST", "GITLAB_URI", "GL_HOST", "GITLAB_REPO"} {
		t.Setenv(name, "")
	}
	c := gitClientOf("glab")
	if host, err := c.hostOf([]string{"api", "user"}, func() []string { return nil }); host != "git.example.com" || err != nil {
		t.Error(host, err)
	}
	want := map[string]string{"GITLAB_TOKEN": "t", "GLAB_IS_OAUTH2": "true", "GITLAB_HOST": "git.example.com"}
	if d := cmp.Diff(want, c.variables("git.example.com", api.GitCredential{Username: "oauth2", Password: "t"})); d != "" {
		t.Error(d)
	}
}

// A token or a login of the user counts, and no server is asked for a command that needs none.
func TestGitClientLogins(t *testing.T) {
	for command, want := range map[string]bool{"pr list": true, "auth status": true, "auth login": false, "completion -s bash": false, "": false} {
		if usesServer(strings.Fields(command)) != want {
			t.Errorf("%q uses a server: %v", command, !want)
		}
	}
	dir := t.TempDir()
	for _, name := range []string{"GH_TOKEN", "GITHUB_TOKEN", "GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN"} {
		t.Setenv(name, "")
	}
	t.Setenv("GH_CONFIG_DIR", dir)
	hosts := "github.com:\n    git_protocol: https\n    users:\n        ann:\n            oauth_token: gho_1\nGit.example.com:\n    user:\n"
	if err := os.WriteFile(filepath.Join(dir, "hosts.yml"), []byte(hosts), 0o600); err != nil {
		t.Fatal(err)
	}
	c := gitClientOf("gh")
	if !c.isLoggedIn("github.com") || c.isLoggedIn("git.example.com") || c.isLoggedIn("github.com.example.com") {
		t.Error("the user's logins do not count as they should")
	}
	t.Setenv("GITHUB_ENTERPRISE_TOKEN", "mine")
	if !c.isLoggedIn("git.example.com") {
		t.Error("the user's token does not count")
	}
	glab := "token: !!null\nhosts:\n    gitlab.com:\n        # What protocol to use\n        token:\n        api_host: gitlab.com\n    git.example.com:\n        token: !!null glpat-1\n"
	if hasLogin(glab, "gitlab.com") || !hasLogin(glab, "git.example.com") {
		t.Error("the logins of glab are read wrongly")
	}
}

// A program of the name that starts the next one of the PATH does not start itself for ever.
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
	if got, err := programBehind("gh", search, nil); err == nil {
		t.Errorf("found %s", got)
	}
	if err := os.WriteFile(filepath.Join(other, "gh"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := programBehind("gh", search, nil); got != filepath.Join(other, "gh") {
		t.Error(got, err)
	}
	wrapper, next := filepath.Join(other, "gh"), t.TempDir()
	search += string(filepath.ListSeparator) + next
	if got, err := programBehind("gh", search, []string{wrapper}); got != wrapper {
		t.Error(got, err)
	}
	if err := os.WriteFile(filepath.Join(next, "gh"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := programBehind("gh", search, []string{wrapper}); got != filepath.Join(next, "gh") {
		t.Error(got, err)
	}
}
