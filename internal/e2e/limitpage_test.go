package e2e

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"

	"codehub/api"
	"codehub/internal/e2e/proc"
)

// Somebody who may run one workspace opens another: stopping the first, on the
// page that says so, lets them in without another click.
func TestLimitPageEntersWorkspace(t *testing.T) {
	t.Parallel()
	s := startQuick(t, "MAX_RUNNING_PER_USER=1", "COORDINATOR_IDLE_INTERVAL=2s")
	letsIn(t, s, s)
}

// The same at a server that leads nothing, with the place given up at another.
func TestGlobalLimitPageEntersWorkspace(t *testing.T) {
	t.Parallel()
	c := startCluster(t, clusterOf{
		servers: 2, bucket: folderBucket(t), limits: limits{perUser: 1},
		settings: []string{"MAX_RUNNING_PER_USER=1", "COORDINATOR_IDLE_INTERVAL=2s"},
	})
	leader := c.leads()
	letsIn(t, c.other(leader).server, leader.server)
}

// letsIn has somebody wait for room at s: for a place that they give up
// themselves, for one that is given up elsewhere, and in the list.
func letsIn(t *testing.T, s, elsewhere *server) {
	t.Helper()
	first, second := s.create(api.CreateWorkspace{Name: "alpha"}), s.create(api.CreateWorkspace{Name: "beta", DesiredState: new("STANDBY")})
	s.awaitPhase(first, "RUNNING")
	s.awaitPhase(second, "STANDBY")
	b := newBrowser(t)
	b.login(s.URL, proc.AdminPassword)

	// The test image shows what it was asked for; the page of the limit is ours.
	ide := func(id string) chromedp.Action[chromedp.Void] {
		return until(fmt.Sprintf(`location.pathname.startsWith('/w/%s/') && document.querySelector('#request') !== null`, id))
	}
	b.do("open the one that may not run", chromedp.Navigate(s.URL+"/w/"+second+"/?folder=x"), chromedp.WaitVisible("#wait[data-kind=limit]"))
	b.shot("limit")
	b.do("stop the one that runs", chromedp.Click("#limit-"+first))
	b.do("be let in", ide(second), until(`location.search === '?folder=x'`))
	b.shot("let-in")
	s.awaitPhase(second, "RUNNING")
	s.awaitPhase(first, "STANDBY")

	b.do("open the first again", chromedp.Navigate(s.URL+"/w/"+first+"/"), chromedp.WaitVisible("#wait[data-kind=limit]"))
	elsewhere.want(second, "STANDBY")
	b.do("be let in", ide(first))
	s.awaitPhase(first, "RUNNING")
	s.awaitPhase(second, "STANDBY")

	b.do("ask for a start in the list", chromedp.Navigate(s.URL+"/"), chromedp.WaitVisible("#ws-"+second),
		chromedp.Click("#"+cssID(second+"-start")), chromedp.WaitVisible("dialog[open] #limit-list"))
	b.shot("limit-dialog")
	b.do("stop the one that runs", chromedp.Click("#limit-"+first))
	b.do("see the other one run", until(`!document.querySelector('dialog[open]')`),
		until(fmt.Sprintf(`document.getElementById('ws-%s')?.dataset.phase === 'RUNNING'`, second)))
	b.shot("started")
	s.awaitPhase(first, "STANDBY")
}
