package e2e

import (
	"io"
	"net"
	"strings"
	"testing"

	"codehub/api"
	"codehub/internal/testing/gittest"
)

// In a workspace git has the account's author and clones and signs with the key of its owner, also
// when the workspace is created with the repository. No file and no variable has the private key.
func TestGitIdentityInWorkspace(t *testing.T) {
	t.Parallel()
	s := startQuick(t, "CODEHUB_DEFAULT_IMAGE="+env.slimImage, "CODEHUB_SECRET_KEY_FILE="+secretKey(t))
	set, err := s.api.SetGitIdentity(t.Context(), api.SetGitIdentity{Name: "Ann Lee", Email: "ann@example.com", SignCommits: true})
	if err != nil {
		t.Fatal(err)
	}
	git := gittest.ServeSSH(t)
	git.Allow(set.PublicKey)
	const port = "42119"
	repo := "ssh://git@127.0.0.1:" + port + "/repo.git"
	id := s.create(api.CreateWorkspace{Name: "api", Repositories: []api.Repository{{URL: repo}}})
	s.awaitPhase(id, "RUNNING")
	s.relay(id, port, git.Addr)
	s.until("the repository is cloned", func() bool {
		_, _ = s.api.RetrySetup(t.Context(), id) // the clone may have begun before the server was there
		last, err := s.api.Setup(t.Context(), id)
		return err == nil && len(last.Steps) == 1 && last.Steps[0].State == "done"
	})
	run := func(command string) string { return s.run(id, command) }
	if out := run("ssh-add -L; stat -c '%a %U' $SSH_AUTH_SOCK; stat -fc %T $GIT_CONFIG_SYSTEM"); out != set.PublicKey+" codehub\n600 coder\ntmpfs\n" {
		t.Errorf("%q", out)
	}
	if out := run("cd project/repo && git commit -q --allow-empty -m one && git push -q origin HEAD && git log -1 --format='%an <%ae> %G?'"); !strings.HasSuffix(out, "Ann Lee <ann@example.com> G\n") {
		t.Errorf("%q", out)
	}
	// The IDE's own git has the same.
	if out := run(`for p in /proc/[0-9]*; do grep -z code-server $p/cmdline >/dev/null 2>&1 && tr '\0' '\n' < $p/environ | grep -E '^(SSH_AUTH_SOCK|GIT_CONFIG_SYSTEM)=' && break; done | sort`); out != "GIT_CONFIG_SYSTEM=/dev/shm/codehub/gitconfig\nSSH_AUTH_SOCK=/tmp/.codehub/ssh-agent.sock\n" {
		t.Errorf("the IDE's variables: %q", out)
	}
	if _, err := s.api.SetGitIdentity(t.Context(), api.SetGitIdentity{Name: "Ben", Email: "ben@example.com"}); err != nil {
		t.Fatal(err)
	}
	s.until("the workspace has the new name", func() bool { return run("git config user.name") == "Ben\n" })
	if out := run("cd project/repo && git commit -q --allow-empty -m two && git log -1 --format='%an %G?' --author=Ben || true; grep -rl 'PRIVATE KEY' ~ /tmp /dev/shm 2>/dev/null | wc -l"); !strings.Contains(out, "Ben N\n") || !strings.HasSuffix(out, "0\n") {
		t.Errorf("%q", out)
	}
}

// relay connects a port of the workspace's loopback address to an address of this machine, which a
// workspace does not reach.
func (s *server) relay(id, port, to string) {
	s.Helper()
	l, err := s.agentOf(id).Listen(s.Context(), "tcp", "127.0.0.1:"+port)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { l.Close() })
	go func() {
		for {
			from, _, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer from.Close()
				to, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer to.Close()
				go func() { _, _ = io.Copy(to, from); _ = to.(*net.TCPConn).CloseWrite() }()
				_, _ = io.Copy(from, to)
				_ = from.CloseWrite()
			}()
		}
	}()
}
