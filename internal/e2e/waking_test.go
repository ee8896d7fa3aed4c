package e2e

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"codehub/api"
	"codehub/internal/e2e/proc"
	"codehub/internal/harness"
	"codehub/internal/harness/fixture"
)

// Fifty tabs open a stopped workspace at once: it starts once, with one entry in the
// audit log.
func TestManyTabsStartOnce(t *testing.T) {
	t.Parallel()
	inEach(t, []mode{ownOrigins, pathMode}, func(t *testing.T, m mode) {
		dsn := database(t)
		s := startMode(t, m, "CODEHUB_DATABASE_URL="+dsn)
		id := s.create(api.CreateWorkspace{Name: "alpha", DesiredState: new("STANDBY")})
		s.awaitPhase(id, "STANDBY")
		cookie := s.loginCookie("admin")
		var tabs sync.WaitGroup
		for range 50 {
			tabs.Go(func() {
				// The workspace may be ready before the last tab asks.
				resp, body := s.ask("GET", "/w/"+id+"/", "", "Cookie", cookie, "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document", "Accept", "text/html")
				if resp.StatusCode == http.StatusServiceUnavailable && !strings.Contains(body, `data-kind="loading"`) || resp.StatusCode > 503 || resp.StatusCode >= 400 && resp.StatusCode < 503 {
					t.Errorf("status %d: %s", resp.StatusCode, body[strings.Index(body, "<main"):])
				}
			})
		}
		tabs.Wait()
		s.awaitPhase(id, "RUNNING")
		var wakes int
		db := fixture.Connect(t, dsn)
		if err := db.QueryRow(t.Context(), `SELECT count(*) FROM audit_log WHERE action = 'workspace.wake' AND target = $1`, id).Scan(&wakes); err != nil || wakes != 1 {
			t.Errorf("%d entries in the audit log, want 1 (%v)", wakes, err)
		}
		starts := 0
		for line := range strings.Lines(s.Log()) {
			if strings.Contains(line, "operation claimed") && strings.Contains(line, id) && strings.Contains(line, "operation=STARTING") {
				starts++
			}
		}
		if starts != 1 {
			t.Errorf("started %d times, want 1", starts)
		}
		// A program learns the same by JSON, and wakes nothing.
		s.setDesired(id, "STANDBY")
		s.awaitPhase(id, "STANDBY")
		harness.Eventually(t, "the facts of a stopped workspace", func() bool {
			resp, body := s.ask("GET", "/w/"+id+"/", "", api.TokenHeader, s.token, "Accept", "*/*")
			return resp.StatusCode == http.StatusServiceUnavailable && strings.Contains(body, `"next":{"method":"PATCH"`) && strings.Contains(body, `"phase":"STANDBY"`)
		})
		if ws := s.await(id, "be stopped", func(w api.Workspace) bool { return w.Operation == "NONE" }); ws.DesiredState != "STANDBY" {
			t.Errorf("desired %s after a program asked", ws.DesiredState)
		}
	})
}

// A browser with and without scripts opens a stopped workspace, sees the page that
// waits, and enters at the address that was opened, on the workspace's own origin.
func TestWakingInABrowser(t *testing.T) {
	t.Parallel()
	inEach(t, []mode{ownOrigins, pathMode}, func(t *testing.T, m mode) {
		s := startModeQuick(t, m)
		id := s.create(api.CreateWorkspace{Name: "alpha", DesiredState: new("STANDBY")})
		s.awaitPhase(id, "STANDBY")
		b := newBrowser(t, s.URL)
		b.login(s.URL, proc.AdminPassword)
		entered := `document.querySelector('#request') !== null && location.search === '?folder=x'`
		if m == ownOrigins {
			entered += ` && location.host.startsWith('` + id + `.') && location.pathname === '/a'`
		}
		for _, name := range []string{"with scripts", "without scripts"} {
			b.do("open the workspace "+name, navigate(s.URL+"/w/"+id+"/a?folder=x"), until(entered))
			b.screenshot("entered")
			s.setDesired(id, "STANDBY")
			s.awaitPhase(id, "STANDBY")
			if _, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}); err != nil {
				t.Fatal(err)
			}
		}
	})
}
