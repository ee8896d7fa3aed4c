package e2e

import (
	"strings"
	"testing"

	"codehub/api"
)

// A workspace uses the devcontainer.json of its repository: another image, variables, the folder,
// scripts in all forms, once per home and at each start; one that never ends keeps nothing from
// running. Without the file the workspace is what it was.
func TestDevcontainer(t *testing.T) {
	t.Parallel()
	s := startQuick(t, "CODEHUB_DEFAULT_IMAGE="+env.slimImage)
	id := s.create(api.CreateWorkspace{Name: "api", Repositories: []api.Repository{{URL: "http://127.0.0.1:42119/api.git"}}})
	s.awaitPhase(id, "RUNNING")
	steps := func(what string, done func([]api.SetupStep) bool) {
		t.Helper()
		s.until(what, func() bool {
			last, err := s.api.Setup(t.Context(), id)
			return err == nil && done(last.Steps)
		})
	}
	run := func(command string) string { return s.run(id, command) }
	// Nothing listens there; the files come by hand.
	steps("the clone has failed", func(l []api.SetupStep) bool { return l[0].State == "failed" })
	run(`mkdir -p project/api/.devcontainer project/api/cmd && cd project/api && cat > .devcontainer/devcontainer.json <<'END'
{
	// As a team would write it.
	"image": "` + env.workspaceImage + `",
	"containerEnv": {"TEAM": "api"},
	"remoteEnv": {"PATH": "${containerEnv:PATH}:/more", "ALSO": "${containerEnv:TEAM}!"},
	"workspaceFolder": "/workspaces/api/cmd",
	"onCreateCommand": ["sh", "-c", "echo create >> ~/ran; pwd >> ~/ran"],
	"postCreateCommand": {"a": "echo $TEAM $ALSO > ~/a", "b": "echo b > ~/b"},
	"postStartCommand": "echo start >> ~/ran",
	"postAttachCommand": "echo attach >> ~/ran; sleep 100000",
	"customizations": {"vscode": {"settings": {"editor.tabSize": 3}}},
	"runArgs": ["--privileged"],
}
END
mkfifo .devcontainer/pipe && ln -s /etc/passwd .devcontainer.json`)
	if _, err := s.api.RetrySetup(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	steps("the repository describes its environment", func(l []api.SetupStep) bool { return l[0].State == "skipped" && l[0].Described })
	list, err := s.api.Devcontainers(t.Context(), id)
	if err != nil || len(list.Files) != 2 || list.Files[1].Problem != "unreadable" || len(list.Files[0].Ignored) != 1 || list.Files[0].Ignored[0].Reason != "run_args" {
		t.Fatalf("%+v, %v", list, err)
	}
	if _, err := s.api.UseDevcontainer(t.Context(), id, api.UseDevcontainer{File: ".devcontainer/devcontainer.json"}); err != nil {
		t.Fatal(err)
	}
	start := func() {
		t.Helper()
		s.setDesired(id, "STANDBY")
		s.awaitPhase(id, "STANDBY")
		s.setDesired(id, "RUNNING")
		s.awaitPhase(id, "RUNNING")
	}
	attached := func(l []api.SetupStep) bool {
		return len(l) == 5 && l[4].Name == "postAttachCommand" && l[4].State == "running"
	}
	start()
	steps("all but the last script have ended", attached)
	s.until("the last script has begun", func() bool { return strings.HasSuffix(run("cat ran"), "attach\n") })
	if out := run("cat ran a b; echo $TEAM $ALSO $CODEHUB_FOLDER; echo $PATH; cat .local/share/code-server/Machine/settings.json"); !strings.HasPrefix(out, "create\n/home/coder/project/api/cmd\nstart\nattach\napi api!\nb\napi api! /home/coder/project/api/cmd\n") ||
		!strings.Contains(out, ":/more") || !strings.Contains(out, `"editor.tabSize": 3`) {
		t.Errorf("%s", out)
	}
	if w, err := s.api.Get(t.Context(), id); err != nil || w.ImageRef != env.workspaceImage || w.RunningImageRef == nil || *w.RunningImageRef != env.workspaceImage {
		t.Errorf("%+v", w)
	}
	start() // also while a script runs
	steps("all but the last script have ended", attached)
	s.until("the scripts of a start have run again", func() bool { return strings.HasSuffix(run("cat ran"), "start\nattach\nstart\nattach\n") })
	if out := run("grep -c create ran"); out != "1\n" {
		t.Errorf("the scripts of the creation have run %s times", out)
	}
	if _, err := s.api.StopDevcontainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	start()
	steps("only the clone is left", func(l []api.SetupStep) bool { return len(l) == 1 && l[0].State == "skipped" })
	if out := run("echo $TEAM$ALSO $CODEHUB_FOLDER; cat .local/share/code-server/Machine/settings.json"); out != "/home/coder/project/api\n{}\n" {
		t.Errorf("%q", out)
	}
	if w, err := s.api.Get(t.Context(), id); err != nil || w.ImageRef != env.slimImage {
		t.Errorf("%s, %v", w.ImageRef, err)
	}
}
