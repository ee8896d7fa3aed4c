package e2e

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/moby/moby/client"

	"codehub/api"
	"codehub/internal/testing/e2e/proc"
)

// A user archives a workspace, sees the progress, opens the workspace's
// address, restores it with one click and finds the file. It takes 40 s or more: the IDE
// is loaded in Chromium twice.
func TestArchiveJourney(t *testing.T) {
	t.Parallel()
	bk := s3Bucket(t)
	p := newBucketProxy(t, bk)
	s := startQuick(t, append(bk.settingsVia(p.URL), "CODEHUB_DEFAULT_IMAGE="+env.workspaceImage, "CODEHUB_DELETE_GRACE=0s", "COORDINATOR_IDLE_INTERVAL=2s")...)
	b := newBrowser(t, s.URL)
	b.login(s.URL, proc.AdminPassword)
	id := s.create(api.CreateWorkspace{Name: "compiler"})
	s.awaitPhase(id, "RUNNING")
	prepareIDE(t, id)
	s.setDesired(id, "STANDBY")
	s.awaitPhase(id, "STANDBY")
	card := func(phase, operation string) string {
		return fmt.Sprintf(`(c => c?.dataset.phase === %q && c.dataset.operation === %q)(document.getElementById('ws-%s'))`, phase, operation, id)
	}
	b.do("open it", navigate(s.URL+"/w/"+id+"/"))
	b.terminal()
	b.shell("echo $((6 * 7))-works | tee proof.txt", "42-works")

	// The upload is held at its end and the download at its beginning, so that the
	// progress stays visible.
	p.hold(func(of string, r *http.Request) bool {
		return of == id && r.URL.Query().Has("uploadId") && r.Method == http.MethodPost
	})
	b.do("go back to the list", navigate(s.URL+"/"), until(card("RUNNING", "NONE")))
	b.do("ask for the archive", chromedp.Click("#menu-"+id+" summary"), chromedp.Click("#"+cssID(id+"-archive")), chromedp.WaitVisible("dialog[open] #dialog-form"))
	b.screenshot("archive")
	b.do("confirm", chromedp.Click("#dialog-form button[type=submit]"))
	b.do("see the progress", until(card("STANDBY", "ARCHIVING")),
		until(fmt.Sprintf(`document.querySelector('#ws-%s progress') !== null && /[1-9]/.test(document.querySelector('#ws-%s .progress-text')?.innerText ?? '')`, id, id)))
	b.screenshot("archiving")
	p.awaitHeld(t, id)
	p.hold(func(of string, r *http.Request) bool {
		return of == id && r.Method == http.MethodGet && s.jobRuns("restore", id)
	})
	b.do("see it archived", until(card("ARCHIVED", "NONE")))
	b.screenshot("archived")
	s.expectNoHome(id)

	b.do("open its address", navigate(s.URL+"/w/"+id+"/"), chromedp.WaitVisible("#"+cssID(id+"-start")))
	b.screenshot("restore-needed")
	b.do("restore it", chromedp.Click("#"+cssID(id+"-start")),
		until(`document.querySelector('#wait progress') !== null`))
	p.awaitHeld(t, id)
	b.screenshot("restoring")
	p.hold(nil)
	b.terminal() // the page opens the workspace without a click
	b.shell("cat proof.txt", "42-works")
	b.screenshot("file-is-there")
	s.discard(id)
}

// jobRuns reports whether a workspace's storage job runs.
func (s *server) jobRuns(kind, id string) bool {
	s.Helper()
	c, err := s.docker.ContainerInspect(s.Context(), "codehub-"+kind+"-"+id, client.ContainerInspectOptions{})
	return err == nil && c.Container.State.Running
}
