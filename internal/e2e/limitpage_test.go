package e2e

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"

	"codehub/api"
	"codehub/internal/e2e/proc"
)

// A user whose running limit is 1 opens a second workspace. Stopping the first
// on the limit page opens the second without another click.
func TestLimitPageEntersWorkspace(t *testing.T) {
	t.Parallel()
	s := startQuick(t, "MAX_RUNNING_PER_USER=1", "COORDINATOR_IDLE_INTERVAL=2s")
	testLimitPage(t, s, s)
}

// The same on a standby server, with the slot freed on the leader.
func TestLimitPageOnStandbyEntersWorkspace(t *testing.T) {
	t.Parallel()
	c := startCluster(t, clusterOptions{
		servers: 2, bucket: folderBucket(t), limits: limits{perUser: 1},
		settings: []string{"MAX_RUNNING_PER_USER=1", "COORDINATOR_IDLE_INTERVAL=2s"},
	})
	leader := c.awaitLeader()
	testLimitPage(t, c.otherThan(leader).server, leader.server)
}

// testLimitPage waits for a slot on s three times: one that the user frees on
// the limit page, one freed on elsewhere, and one freed in the dialog of the
// list.
func testLimitPage(t *testing.T, s, elsewhere *server) {
	t.Helper()
	first, second := s.create(api.CreateWorkspace{Name: "alpha"}), s.create(api.CreateWorkspace{Name: "beta", DesiredState: new("STANDBY")})
	s.awaitPhase(first, "RUNNING")
	s.awaitPhase(second, "STANDBY")
	b := newBrowser(t, s.URL)
	b.login(s.URL, proc.AdminPassword)

	// The test image has #request on its page, the limit page does not.
	ide := func(id string) chromedp.Action[chromedp.Void] {
		return until(fmt.Sprintf(`location.host.startsWith('%s.') && document.querySelector('#request') !== null`, id))
	}
	b.do("open the second workspace", navigate(s.URL+"/w/"+second+"/?folder=x"), chromedp.WaitVisible("#wait[data-kind=limit]"))
	b.screenshot("limit")
	b.do("stop the running workspace", chromedp.Click("#limit-"+first))
	b.do("see the workspace open", ide(second), until(`location.search === '?folder=x'`))
	b.screenshot("opened")
	s.awaitPhase(second, "RUNNING")
	s.awaitPhase(first, "STANDBY")

	b.do("open the first again", navigate(s.URL+"/w/"+first+"/"), chromedp.WaitVisible("#wait[data-kind=limit]"))
	elsewhere.setDesired(second, "STANDBY")
	b.do("see the workspace open", ide(first))
	s.awaitPhase(first, "RUNNING")
	s.awaitPhase(second, "STANDBY")

	b.do("ask for a start in the list", navigate(s.URL+"/"), chromedp.WaitVisible("#ws-"+second),
		chromedp.Click("#"+cssID(second+"-start")), chromedp.WaitVisible("dialog[open] #limit-list"))
	b.screenshot("limit-dialog")
	b.do("stop the running workspace", chromedp.Click("#limit-"+first))
	b.do("see the other workspace run", until(`!document.querySelector('dialog[open]')`),
		until(fmt.Sprintf(`document.getElementById('ws-%s')?.dataset.phase === 'RUNNING'`, second)))
	b.screenshot("started")
	s.awaitPhase(first, "STANDBY")
}
