package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"codehub/internal/testing/e2e/proc"
	"codehub/internal/workspace"
)

// A user's first day: log in, create a workspace, see it start, use the
// terminal, stop it, open it again, delete, undelete and delete it for good. It takes 40 s
// or more: two starts of the IDE in Chromium, and the grace of a deletion.
func TestJourney(t *testing.T) {
	t.Parallel()
	s := start(t, "CODEHUB_DEFAULT_IMAGE="+env.workspaceImage, "CODEHUB_DELETE_GRACE=15s", "COORDINATOR_IDLE_INTERVAL=2s")
	b := newBrowser(t, s.URL)
	b.login(s.URL, proc.AdminPassword)
	b.screenshot("empty-list")

	b.do("mark the page, which must not be reloaded", until(`window.notReloaded = true`))
	b.do("open the create dialog", chromedp.Click("#new-workspace"), chromedp.WaitVisible("#f-name"))
	b.screenshot("new-workspace")
	b.do("create it", chromedp.SendKeys("#f-name", "compiler"), chromedp.SendKeys("#f-description", "a language of my own"),
		chromedp.Click("#dialog-form button[type=submit]"), chromedp.WaitVisible(".card"))
	b.screenshot("starting")
	b.do("see it run", until(`document.querySelector('.card')?.dataset.phase === 'RUNNING' && document.querySelector('.card').dataset.operation === 'NONE'`))
	b.screenshot("running")
	if same, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](`window.notReloaded === true`)); err != nil || !same {
		t.Error("the list was reloaded to show the change")
	}
	list, err := s.api.List(t.Context(), clientFilter)
	if err != nil || len(list) != 1 {
		t.Fatalf("workspaces: %v, %v, want one", list, err)
	}
	id := list[0].ID

	prepareIDE(t, id)
	b.do("open it", navigate(s.URL+"/w/"+id+"/"))
	b.terminal()
	b.shell("echo $((6 * 7))-works | tee proof.txt", "42-works")
	b.screenshot("terminal")
	// A history has the settings if the IDE rewrote them; until it has saved them, the
	// dashboard asks about an unsaved file.
	if out, err := exec.CommandContext(t.Context(), "docker", "exec", workspace.ID(id).DockerName(), "sh", "-c", "cat /home/coder/.local/share/code-server/User/History/*/entries.json").CombinedOutput(); err == nil {
		t.Errorf("the IDE rewrote files at its first use: %s", out)
	}

	b.do("go back to the list", navigate(s.URL+"/"), chromedp.WaitVisible("#ws-"+id))
	b.do("stop it", chromedp.Click("#ws-"+id+" form[action$='/stop'] button"),
		until(fmt.Sprintf(`document.getElementById('ws-%s')?.dataset.phase === 'STANDBY' && document.getElementById('ws-%s').dataset.operation === 'NONE'`, id, id)))
	b.screenshot("stopped")

	b.do("open it again", navigate(s.URL+"/w/"+id+"/"))
	b.screenshot("loading")
	b.terminal() // the loading page opens the workspace without a click
	b.shell("cat proof.txt; echo $((1 + 1))nd-time", "2nd-time")
	shown, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](`document.querySelector('.terminal-wrapper.active .xterm-rows').innerText`))
	if err != nil || !strings.Contains(shown, "42-works") {
		t.Errorf("the terminal does not show the file: %q", shown)
	}
	b.screenshot("file-is-there")

	remove := func() {
		b.do("go back to the list", navigate(s.URL+"/"), chromedp.WaitVisible("#ws-"+id))
		b.do("open the delete dialog", chromedp.Click("#menu-"+id+" summary"), chromedp.Click("#"+cssID(id+"-delete")), chromedp.WaitVisible("dialog[open] #dialog-form"))
		b.screenshot("delete")
		b.do("confirm", chromedp.Click("#dialog-form button[type=submit]"), chromedp.WaitVisible(".toast"))
		b.screenshot("deleted")
	}
	remove()
	b.do("undo the deletion", chromedp.Click(".toast-undo"),
		until(fmt.Sprintf(`document.querySelector('#ws-%s:not(.card-gone)') !== null`, id)))
	b.screenshot("undone")
	s.awaitPhase(id, "STANDBY")
	remove()
	s.awaitGone(id)
	b.do("see it gone", until(fmt.Sprintf(`document.getElementById('ws-%s') === null`, id)))
	b.screenshot("gone")
	s.expectNothingLeft()
}

// cssID escapes an id that begins with a digit for a CSS selector.
func cssID(id string) string {
	if id[0] >= '0' && id[0] <= '9' {
		return fmt.Sprintf(`\3%c %s`, id[0], id[1:])
	}
	return id
}
