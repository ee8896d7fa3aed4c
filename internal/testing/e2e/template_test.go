package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"codehub/api"
	"codehub/internal/workspace"
)

const projectTemplate = `
repositories: [{url: "http://127.0.0.1:42121/${param.repo}.git", branch: main}]
parameters: [{name: repo, default: api}]
env: {BY: the template}
scripts:
  create: |
    cat hello > ~/created
    echo "$BY with $TOKEN" >> ~/created
  start: echo start >> ~/started
secrets: {required: [TOKEN, ABSENT]}
ports: [{port: 3000, label: Web site}]
`

// A workspace of a template has its repository, scripts, secret and labels. A clone that fails keeps
// the scripts back, and they follow when it is tried again. The next start runs only what belongs to
// each start.
func TestWorkspaceOfTemplate(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	if err := os.WriteFile(filepath.Join(dir, "team.yaml"), []byte(projectTemplate), 0o644); err != nil {
		t.Fatal(err)
	}
	keys := filepath.Join(scratch(t), "secret.key")
	line, err := exec.CommandContext(t.Context(), env.binary, "secret-key", "new").Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(keys, line, 0o600); err != nil {
		t.Fatal(err)
	}
	s := startQuick(t, "CODEHUB_DEFAULT_IMAGE="+env.slimImage, "CODEHUB_TEMPLATES_DIR="+dir, "CODEHUB_SECRET_KEY_FILE="+keys)
	if _, err := s.api.CreateSecret(t.Context(), "", api.CreateSecret{Name: "token", Value: "hunter2", Env: "TOKEN", Template: "team"}); err != nil {
		t.Fatal(err)
	}
	id := s.create(api.CreateWorkspace{Name: "team", Template: "team"})
	if list, err := s.api.Secrets(t.Context()); err != nil || len(list.Missing) != 1 || list.Missing[0].WorkspaceID != id || list.Missing[0].Env != "ABSENT" {
		t.Errorf("%+v, %v", list.Missing, err)
	}
	s.awaitPhase(id, "RUNNING")
	ends := func(want string) {
		t.Helper()
		var got string
		s.until("the setup ends as "+want, func() bool {
			setup, err := s.api.Setup(t.Context(), id)
			got = ""
			for _, st := range setup.Steps {
				got += fmt.Sprintf("%s %s ", st.Kind, st.State)
			}
			return err == nil && strings.TrimSpace(got) == want
		})
	}
	ends("clone failed script failed script failed")
	close(s.serveGit(t, id, "42121").answer)
	if _, err := s.api.RetrySetup(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	ends("clone done script done script done")
	s.expectShell(id, "cat ~/created ~/started", "hello\nthe template with hunter2\nstart")
	if ports, err := s.api.Ports(t.Context(), id); err != nil || len(ports.Ports) == 0 || ports.Ports[0].Port != 3000 || ports.Ports[0].Label != "Web site" || ports.Ports[0].Listening {
		t.Errorf("%+v, %v", ports, err)
	}
	found, err := s.docker.ContainerInspect(t.Context(), workspace.ID(id).DockerName(), client.ContainerInspectOptions{})
	if err != nil || strings.Contains(fmt.Sprintf("%+v", found.Container.Config), "hunter2") {
		t.Errorf("the container's configuration has the secret: %v", err)
	}
	s.setDesired(id, "STANDBY")
	s.awaitPhase(id, "STANDBY")
	s.setDesired(id, "RUNNING")
	s.awaitPhase(id, "RUNNING")
	ends("clone skipped script skipped script done")
	s.expectShell(id, "cat ~/started", "start\nstart")
}
