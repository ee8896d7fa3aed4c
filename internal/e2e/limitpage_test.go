package e2e

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"

	"codehub/api"
	"codehub/internal/e2e/proc"
)

// Somebody who may run one workspace opens another: stopping the first, on the
// page that says so, lets them in without another click. Then the same the
// other way round, with the place given up from elsewhere, and from the list.
func TestLimitPageLetsIn(t *testing.T) {
	t.Parallel()
	s := startQuick(t, "MAX_RUNNING_PER_USER=1", "COORDINATOR_IDLE_INTERVAL=2s")
	a, other := s.create(api.CreateWorkspace{Name: "alpha"}), s.create(api.CreateWorkspace{Name: "beta", DesiredState: new("STANDBY")})
	s.awaitPhase(a, "RUNNING")
	s.awaitPhase(other, "STANDBY")
	b := newBrowser(t)
	b.login(s.URL, proc.AdminPassword)

	// ide is what the test image shows; the page of the limit is one of ours.
	ide := func(id string) chromedp.Action[chromedp.Void] {
		return until(fmt.Sprintf(`location.pathname.startsWith('/w/%s/') && document.readyState === 'complete' && !document.querySelector('#wait, .topbar') && document.body.innerText.trim() !== ''`, id))
	}
	b.do("open the one that may not run", chromedp.Navigate(s.URL+"/w/"+other+"/?folder=x"), chromedp.WaitVisible("#wait[data-kind=limit]"))
	b.shot("limit")
	b.do("stop the one that runs", chromedp.Click("#limit-"+a))
	b.do("be let in", ide(other), until(`location.search === '?folder=x'`))
	b.shot("let-in")
	s.awaitPhase(other, "RUNNING")
	s.awaitPhase(a, "STANDBY")

	b.do("open the first again", chromedp.Navigate(s.URL+"/w/"+a+"/"), chromedp.WaitVisible("#wait[data-kind=limit]"))
	s.want(other, "STANDBY")
	b.do("be let in", ide(a))
	s.awaitPhase(a, "RUNNING")
	s.awaitPhase(other, "STANDBY")

	b.do("ask for a start in the list", chromedp.Navigate(s.URL+"/"), chromedp.WaitVisible("#ws-"+other),
		chromedp.Click("#"+cssID(other+"-start")), chromedp.WaitVisible("dialog[open] #limit-list"))
	b.shot("limit-dialog")
	b.do("stop the one that runs", chromedp.Click("#limit-"+a))
	b.do("see the other one run", until(`!document.querySelector('dialog[open]')`),
		until(fmt.Sprintf(`document.getElementById('ws-%s')?.dataset.phase === 'RUNNING'`, other)))
	b.shot("started")
	s.awaitPhase(a, "STANDBY")
}
