// Package ide tests the image of the IDE.
package ide

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/harness"
)

// The IDE and its native parts work where nothing else is, and where files claim that
// the libc is musl.
func TestIDENeedsNothingOfTheImage(t *testing.T) {
	t.Parallel()
	harness.NeedsDocker(t)
	probe, err := os.ReadFile("testdata/probe.js")
	if err != nil {
		t.Fatal(err)
	}
	ide := docker(t, nil, "create", "--label", "codehub.test=ide", "--volume", "/opt/codehub-ide", harness.IDEImage())
	cleanup(t, "rm", "--force", "--volumes", ide)
	image := docker(t, archive(t, map[string]string{
		"probe.js": string(probe), "etc/alpine-release": "3.22.0\n", "usr/bin/ldd": "#!/bin/sh\n# musl libc\n", "package.json": `{"type": "module"}`,
	}), "import", "-")
	cleanup(t, "image", "rm", image)

	const shell = "/opt/codehub-ide/bin/sh"
	run := docker(t, nil, "run", "--detach", "--init", "--label", "codehub.test=ide", "--volumes-from", ide+":ro",
		"--user", "200123:200123", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
		"--tmpfs", "/home/coder:uid=200123,gid=200123,mode=700", "--tmpfs", "/tmp:mode=1777",
		"--env", "HOME=/home/coder", "--env", "HASHED_PASSWORD=5ec7e7", "--env", "XDG_DATA_HOME=/data", "--env", "LD_LIBRARY_PATH=/none",
		image, "/opt/codehub-ide/start")
	cleanup(t, "rm", "--force", "--volumes", run)
	address := "http://" + docker(t, nil, "inspect", "--format", "{{.NetworkSettings.IPAddress}}", run) + ":8080"
	harness.Eventually(t, "the IDE answers", func() bool {
		res, err := http.Get(address + "/healthz")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	if page := get(t, address, ""); strings.Contains(page, "vscode-workbench") {
		t.Error("it shows the workbench without the secret")
	}
	if page := get(t, address, "5ec7e7"); !strings.Contains(page, "vscode-workbench") || !strings.Contains(page, "_codehub/ide.js") {
		t.Errorf("it does not show the workbench: %s", page)
	}

	var got map[string]any
	out := docker(t, nil, "exec", run, "/opt/codehub-ide/lib/node", "--input-type=commonjs", "--eval",
		`process.argv = [process.argv[0], "/tmp/probe.cjs", "`+shell+`"]; require("node:fs").copyFileSync("/probe.js", "/tmp/probe.cjs"); require("/tmp/probe.cjs")`)
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := map[string]any{
		"terminal": "42 200123", "ripgrep": "codehub", "fork": "/opt/codehub-ide/lib/node /none", "argon2": "$argon2id",
		"watcher": "function", "spdlog": "function", "watchdog": "function", "remote": "Command", "local": true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the native parts (-want +got):\n%s", diff)
	}
	settings := docker(t, nil, "exec", run, shell, "-c", "cat ~/.local/share/code-server/User/settings.json; ls -d ~/project")
	if !strings.Contains(settings, `"telemetry.telemetryLevel": "off"`) || !strings.HasSuffix(settings, "/home/coder/project") {
		t.Errorf("the home has %s", settings)
	}
}

// A start leaves the settings that a home has.
func TestStartKeepsSettings(t *testing.T) {
	t.Parallel()
	harness.NeedsDocker(t)
	const script = `mkdir -p $HOME/elsewhere/share/code-server/User && ln -s elsewhere $HOME/.local && echo mine > $HOME/elsewhere/share/code-server/User/settings.json
		/opt/codehub-ide/start > /tmp/log 2>&1 & for i in $(seq 600); do wget -qO- http://127.0.0.1:8080/healthz > /dev/null 2>&1 && break; sleep 0.1; done
		cat $HOME/.local/share/code-server/User/settings.json; cat /tmp/log >&2`
	out := docker(t, nil, "run", "--rm", "--init", "--label", "codehub.test=ide", "--user", "200123:200123",
		"--tmpfs", "/home/coder:uid=200123,gid=200123,mode=700", "--tmpfs", "/tmp:mode=1777", "--env", "HOME=/home/coder",
		harness.IDEImage(), "/opt/codehub-ide/bin/sh", "-c", script)
	if out != "mine" {
		t.Errorf("the settings are %q", out)
	}
}

func get(t *testing.T, address, secret string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	if secret != "" {
		req.AddCookie(&http.Cookie{Name: "code-server-session", Value: secret})
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// archive returns a tar archive of files by path.
func archive(t *testing.T, files map[string]string) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, content := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// docker runs a command and returns its output without the last line's end.
func docker(t *testing.T, input io.Reader, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "docker", args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = input, &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("docker %s: %v: %s%s", args[0], err, out.Bytes(), errs.Bytes())
	}
	return strings.TrimSpace(out.String())
}

// cleanup runs a command of docker at the end of the test.
func cleanup(t *testing.T, args ...string) {
	t.Cleanup(func() {
		if out, err := exec.Command("docker", args...).CombinedOutput(); err != nil {
			t.Errorf("docker %s: %v: %s", strings.Join(args, " "), err, out)
		}
	})
}
