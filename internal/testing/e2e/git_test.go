package e2e

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"codehub/api"
	"codehub/internal/workspace"
)

// The clone of a private repository gets the token of the workspace's owner by the agent, also if
// it has to wait for a server, and so does Git in the workspace. The token is nowhere else.
func TestClonePrivateRepository(t *testing.T) {
	t.Parallel()
	keys := filepath.Join(scratch(t), "secret.key")
	line, err := exec.CommandContext(t.Context(), env.binary, "secret-key", "new").Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(keys, line, 0o600); err != nil {
		t.Fatal(err)
	}
	s := startQuick(t, "CODEHUB_DEFAULT_IMAGE="+env.slimImage, "CODEHUB_SECRET_KEY_FILE="+keys, "CODEHUB_LOG_LEVEL=debug")
	const host = "127.0.0.1:42119"
	ctx, token := t.Context(), "t0ken-"+rand.Text()
	id := s.create(api.CreateWorkspace{Name: "api", Repositories: []api.Repository{{URL: "http://" + host + "/api.git"}}})
	s.awaitPhase(id, "RUNNING")
	step := func(state string) api.SetupStep {
		t.Helper()
		var last api.Setup
		var err error
		s.until("the clone is "+state, func() bool {
			last, err = s.api.Setup(ctx, id)
			return err == nil && len(last.Steps) == 1 && last.Steps[0].State == state
		})
		return last.Steps[0]
	}
	step("failed") // nothing listens there yet
	relay := s.serveGit(t, id, "42119", onlyFor("octocat", token))
	close(relay.answer)
	if _, err := s.api.RetrySetup(ctx, id); err != nil {
		t.Fatal(err)
	}
	if st := step("failed"); st.Reason != "login" || !strings.Contains(st.Error, "codehub: The owner of the workspace has no connection to http://"+host+". To add one: "+s.URL+"/settings/git/new?host=") {
		t.Errorf("%+v", st)
	}

	if _, err := s.api.ConnectGit(ctx, api.NewGitConnection{Host: "http://" + host, Login: "octocat", Token: token}); err != nil {
		t.Fatal(err)
	}
	inside := s.agentOf(id)
	s.Kill()
	<-s.Done()
	if _, err := inside.RetrySetup(ctx); err != nil {
		t.Fatal(err)
	}
	s.restart()
	step("done")
	run := func(command string) string { return s.run(id, command) }
	if out := run(`cd $CODEHUB_FOLDER && git pull -q && cat hello && [ "$(codehub git token http://` + host + `)" = "$(printf 'protocol=http\nhost=` + host + `\n' | git credential fill | sed -n s/^password=//p)" ] && echo same`); out != "hello\nsame\n" {
		t.Errorf("%q", out)
	}
	// gh and glab have the token of their host while they run.
	if _, err := s.api.ConnectGit(ctx, api.NewGitConnection{Host: "github.com", Login: "octocat", Token: token}); err != nil {
		t.Fatal(err)
	}
	if out := run(`mkdir -p ~/.local/bin && cd ~/.local/bin &&
		printf '#!/bin/sh\necho $0 $* $GH_HOST; [ "$GH_TOKEN" = "$(codehub git token github.com)" ] && echo same' > gh &&
		printf '#!/bin/sh\necho $0 $* $GITLAB_HOST $GITLAB_API_HOST; [ "$GITLAB_TOKEN" = "$(codehub git token http://` + host + `)" ] && echo same' > glab && chmod +x gh glab`); out != "" {
		t.Errorf("%q", out)
	}
	want := "/home/coder/.local/bin/gh pr list\nsame\n/home/coder/.local/bin/glab mr list 127.0.0.1 " + host + "\nsame\n"
	if out := run(`cd $CODEHUB_FOLDER && gh pr list && bash -lc 'glab mr list'`); out != want {
		t.Errorf("%q", out)
	}
	if out := run(`token=$(codehub git token http://` + host + `) && { grep -rlF "$token" ~ /tmp /dev/shm 2>/dev/null; grep -lF "$token" /proc/[0-9]*/environ 2>/dev/null; } | wc -l`); strings.TrimSpace(out) != "0" {
		t.Errorf("%s files or environments have the token", out)
	}

	found := search{t, map[string]string{"the token": token}}
	inspected, err := s.docker.ContainerInspect(ctx, workspace.ID(id).DockerName(), client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found.in("docker inspect", []byte(fmt.Sprintf("%+v", inspected.Container.Config)+string(inspected.Raw)))
	r, err := s.api.Logs(ctx, id, 1000, false)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var log bytes.Buffer
	if _, err := io.Copy(&log, r); err != nil {
		t.Fatal(err)
	}
	found.in("the container's log", log.Bytes())
	found.in("the server's log", []byte(s.Log()))
	found.below(s.home, func(string, []byte) {})
}
