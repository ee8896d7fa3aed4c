package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"codehub/api"
	"codehub/internal/e2e/proc"
)

// TestEnvironmentOfWorkspace: a container has the variables of the server's file, of
// its workspace and of codehub, the workspace's name as its hostname, and the time
// zone of the browser in which it was started.
func TestEnvironmentOfWorkspace(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "env")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("# for all\nSHARED=server\nREPLACED=server\n")
	s := startQuick(t, "CODEHUB_WORKSPACE_ENV_FILE="+file, "CODEHUB_DEFAULT_IMAGE="+env.workspaceImage)
	id := s.create(api.CreateWorkspace{Name: "My Demo 데모", Env: map[string]string{"REPLACED": "workspace", "GREETING": "hello = world"}, TimeZone: "Asia/Seoul"})
	inside := func(script string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "docker", "exec", "codehub-ws-"+id, "sh", "-c", script).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", script, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	// The variables of the first process, which are those of the IDE.
	const variables = "tr '\\0' '\\n' < /proc/1/environ; echo HOST=$(hostname); echo OFFSET=$(date +%z)"
	has := func(want ...string) {
		t.Helper()
		got := inside(variables)
		for _, line := range want {
			if !strings.Contains("\n"+got+"\n", "\n"+line+"\n") {
				t.Errorf("no line %q in:\n%s", line, got)
			}
		}
	}
	s.awaitPhase(id, "RUNNING")
	has("HOST=my-demo", "SHARED=server", "REPLACED=workspace", "GREETING=hello = world", "TZ=Asia/Seoul", "OFFSET=+0900",
		"CODEHUB_WORKSPACE_NAME=My Demo 데모", "CODEHUB_WORKSPACE_ID="+id, "CODEHUB_WORKSPACE_OWNER=admin", "CODEHUB_WORKSPACE_URL="+s.addressOf(id)+"/")

	// A change waits for the next start; the file is read again.
	write("SHARED=rotated\n")
	hi := "hi"
	w, err := s.api.Update(t.Context(), id, api.UpdateWorkspace{Env: api.Value(map[string]*string{"GREETING": &hi, "REPLACED": nil})})
	if err != nil || !w.EnvWaits {
		t.Fatalf("%+v, %v", w, err)
	}
	b := newBrowser(t, s.URL)
	b.login(s.URL, proc.AdminPassword)
	if _, err := chromedp.Call(b.ctx, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "America/New_York"}); err != nil {
		t.Fatal(err)
	}
	b.do("open its page", navigate(s.URL+"/workspaces/"+id), chromedp.WaitVisible("#change-env"), until(`document.body.innerText.includes("running with other variables")`),
		until(`Intl.DateTimeFormat().resolvedOptions().timeZone === 'America/New_York'`))
	// The page still grows as its parts arrive, which moves the button away from a click.
	b.do("change them there", until(`document.getElementById('change-env').click() === undefined`), chromedp.WaitVisible("dialog[open]"), until(`document.getElementById('f-env').value === 'GREETING=hi\n'`),
		chromedp.SendKeys("#f-env", "FROM_PAGE=1\n"), chromedp.Click("#dialog-form button[type=submit]"), until(`document.getElementById('facts').innerText.includes('FROM_PAGE')`))
	b.screenshot("environment")
	// A click on the page while the dialog is still closing is lost.
	b.do("see the dialog closed", until(`document.querySelector('dialog[open]') === null`))
	b.do("stop it", chromedp.Click("#"+cssID(id+"-stop")), until(`document.getElementById('panel').dataset.state === 'stopped'`))
	b.do("start it", chromedp.Click("#"+cssID(id+"-start")), until(`document.getElementById('panel').dataset.state === 'running'`),
		until(`!document.body.innerText.includes('running with other variables')`))
	has("SHARED=rotated", "GREETING=hi", "FROM_PAGE=1", "TZ=America/New_York")
	if got := inside(variables); strings.Contains(got, "REPLACED=") {
		t.Errorf("a removed variable: %s", got)
	}
}
