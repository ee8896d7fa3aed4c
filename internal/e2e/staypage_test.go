package e2e

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"

	"codehub/api"
	"codehub/internal/e2e/proc"
)

// An open dashboard page warns that a workspace is about to stop. The warning
// disappears after "Keep running", on the page or through the API.
func TestPageWarnsBeforeIdleStop(t *testing.T) {
	t.Parallel()
	s := startQuick(t, "TTL_STANDBY_SECONDS=85", "COORDINATOR_IDLE_INTERVAL=2s")
	b := newBrowser(t, s.URL) // may wait, and the workspace must not stop meanwhile
	id := s.create(api.CreateWorkspace{Name: "alpha"})
	s.awaitPhase(id, "RUNNING")
	b.login(s.URL, proc.AdminPassword)
	b.do("open a page without workspaces", navigate(s.URL+"/settings/tokens"), chromedp.WaitVisible("#new-token"), until(`window.notReloaded = true`))
	stay := fmt.Sprintf(`document.getElementById('stay-%s')`, id)
	b.do("see the warning", until(stay+` !== null`), until(`document.getElementById('ending-announcer').textContent.includes('alpha')`))
	b.screenshot("about-to-stop")
	b.do("keep it running", chromedp.Click("#stay-"+id), until(stay+` === null`))
	if w, err := s.api.Get(t.Context(), id); err != nil || str(w.LastAccessKind) != "stay" || w.Phase != "RUNNING" {
		t.Errorf("phase %s, last access %q, %v; want RUNNING, stay", w.Phase, str(w.LastAccessKind), err)
	}
	b.do("see the second warning", until(stay+` !== null`))
	if _, err := s.api.Stay(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	b.do("see the warning disappear", until(stay+` === null && window.notReloaded`))

	b.do("open the workspace's page", navigate(s.URL+"/workspaces/"+id), chromedp.WaitVisible("#"+cssID(id+"-keep-awake")))
	b.do("keep it awake", chromedp.Click("#"+cssID(id+"-keep-awake")), chromedp.WaitVisible("dialog[open]"),
		chromedp.Click("#dialog-form button[type=submit]"), until(`document.querySelector('#panel .life').textContent.includes('kept awake for another')`))
	b.screenshot("kept-awake")
}
