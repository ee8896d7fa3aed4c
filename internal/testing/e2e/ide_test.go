package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"codehub/api"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// application is a program for a workspace that listens on port 3000 of every address
// and on port 3001 of 127.0.0.1. Its pages say their path and have an absolute link.
const application = `
const page = (q, s) => q.url === '/moved' ? s.writeHead(302, {Location: '/deep/page'}).end()
	: s.writeHead(200, {'Content-Type': 'text/html'}).end('<h1>page at ' + q.url + '</h1><a href="/deep/page">absolute</a> <a href="moved">moved</a>')
require('http').createServer(page).listen(3000, '0.0.0.0')
require('http').createServer(page).listen(3001, '127.0.0.1')
`

// In each mode the real code-server shows its workbench, a terminal and a preview, and
// ports lead to what listens there. The workbench, the terminal and the ports also work
// after a reload and a restart of the server. The tab says that the workspace was stopped,
// and that access has ended.
func TestCodeServerInEachMode(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	go viteProject() // it is used at the end
	// One after the other: two IDEs in browsers are too much for a slow machine.
	for _, m := range []mode{ownOrigins, siblings, suffix, pathMode} {
		t.Run(m.name, func(t *testing.T) { testCodeServer(t, m) })
	}
}

func testCodeServer(t *testing.T, m mode) {
	s := startModeQuick(t, m, "CODEHUB_DEFAULT_IMAGE="+env.workspaceImage, "CODEHUB_DELETE_GRACE=0s")
	id := s.create(api.CreateWorkspace{Name: "alpha"})
	s.awaitPhase(id, "RUNNING")
	prepareIDE(t, id)
	inside := func(script, input string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "docker", "exec", "--interactive", workspace.ID(id).DockerName(), "sh", "-c", script)
		cmd.Stdin = strings.NewReader(input)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", script, err, out)
		}
	}
	inside("cat > ~/page.md", "# It is shown\n")
	inside("cat > ~/app.js; /opt/codehub-ide/lib/node ~/app.js > /dev/null 2>&1 &", application)

	b := s.browser(t)
	b.login(s.URL, proc.AdminPassword)
	b.do("open it", navigate(s.URL+"/w/"+id+"/"))
	b.terminal()
	at := until(fmt.Sprintf(`location.href.startsWith(%q)`, s.addressOf(id)+"/"))
	b.do("be at its address", at)
	b.shell("echo $((6 * 7))-works | tee proof.txt", "42-works")

	noWorker := until(`(navigator.serviceWorker.getRegistrations().then(l => window.found = l.length), window.found === 0)`)
	b.shell("code-server ~/page.md; echo $((6 + 7))-opened", "13-opened")
	b.do("see the file", until(`[...document.querySelectorAll('.tab')].some(e => e.textContent.includes('page.md'))`), chromedp.Click(".editor-instance .view-lines"))
	// Before that, the palette offers another command in its place.
	b.do("see its language", until(`[...document.querySelectorAll('.statusbar-item')].some(e => e.innerText.trim() === 'Markdown')`))
	b.command("Markdown: Open as Preview")
	if m == pathMode {
		// Previews need a service worker, which would outlive the workspace on codehub's own
		// origin.
		b.do("have no service worker", until(`document.querySelector('iframe.webview') !== null`), noWorker)
	} else {
		b.do("see the preview", until(`[...document.querySelectorAll('iframe.webview')].some(f =>
			f.contentDocument?.querySelector('iframe#active-frame')?.contentDocument?.querySelector('h1')?.innerText === 'It is shown')`))
	}
	b.screenshot("preview")

	shows := func(port, path string) chromedp.Action[chromedp.Void] {
		return until(fmt.Sprintf(`location.href === %q && document.querySelector('h1')?.innerText === %q`, s.portOf(id, port)+path, "page at "+path))
	}
	b.do("open port 3000", navigate(s.portOf(id, "3000")+"/"), shows("3000", "/"))
	b.do("go back to the IDE", navigate(s.addressOf(id)+"/"))
	b.terminal()
	b.do("reload it", chromedp.Reload(), at)
	b.terminal()
	b.shell("echo $(cat proof.txt)-again", "42-works-again")
	s.Stop()
	s.restart()
	b.do("reload it after a restart of the server", chromedp.Reload(), at)
	b.terminal()
	b.shell("echo $(cat proof.txt)-after", "42-works-after")
	if m == pathMode {
		b.do("still have no service worker", noWorker)
	}
	b.do("open port 3000 after the restart", navigate(s.portOf(id, "3000")+"/"), shows("3000", "/"))
	b.do("follow a redirect", chromedp.Click(`a[href="moved"]`), shows("3000", "/deep/page"))
	if m != pathMode { // there the link leads out of the workspace
		b.do("follow an absolute link", navigate(s.portOf(id, "3000")+"/x"), shows("3000", "/x"), chromedp.Click(`a[href="/deep/page"]`), shows("3000", "/deep/page"))
	}
	local := s.addressOf(id) + "/proxy/3001/local"
	b.do("open a port of 127.0.0.1 by the IDE", navigate(local),
		until(fmt.Sprintf(`location.href === %q && document.querySelector('h1')?.innerText === 'page at /local'`, local)))
	b.do("open it by its own address", navigate(s.portOf(id, "3001")+"/"), shows("3001", "/"))
	b.do("go back to the IDE", navigate(s.addressOf(id)+"/"))
	b.portView("3001", s.portOf(id, "3001")+"/", "page at /")
	if m != suffix {
		inside("pkill -f 'ap[p].js'", "")
		testHotReload(t, s, b, id)
	}
	if m == pathMode || m == siblings { // the hosts of workspaces have cookies of their own
		b.chooseLanguage(s.URL, "ko")
		b.do("open the IDE again", navigate(s.URL+"/w/"+id+"/"))
		b.korean()
		b.chooseLanguage(s.URL, "en")
		b.do("open it in English", navigate(s.URL+"/w/"+id+"/"))
		b.workbench()
	}
	testIDENotices(s, b, id)
}

// testIDENotices stops the workspace under an open tab and ends access to it, in another way in
// each mode.
func testIDENotices(s *server, b *browser, id string) {
	s.Helper()
	b.do("open the IDE", navigate(s.addressOf(id)+"/"))
	b.workbench()
	if s.mode != ownOrigins { // TestIDETabKnowsItsWorkspace does it there
		s.setDesired(id, "STANDBY")
		b.notice("alpha was stopped.")
		b.noticeButton("Start again")
		b.workbench()
	}
	switch s.mode {
	case ownOrigins:
		s.remove(id)
		b.notice("was deleted|no longer have access")
		b.noticeButton("Dashboard")
		b.do("see the dashboard", chromedp.WaitVisible("#new-workspace"))
		return
	case siblings:
		if _, err := s.api.EndOtherSessions(s.Context()); err != nil {
			s.Fatal(err)
		}
	case suffix:
		me, err := s.api.Me(s.Context())
		if err != nil {
			s.Fatal(err)
		}
		if _, err := s.boss().PatchAccount(s.Context(), me.ID, api.PatchAccount{Disabled: new(true)}); err != nil {
			s.Fatal(err)
		}
	case pathMode:
		other := b.tab()
		other.do("log out in another tab", navigate(s.URL+"/logout"), chromedp.Click(`form[action="/logout"] button.btn-primary`), chromedp.WaitVisible("#username"))
		other.close()
		b.bringToFront()
	}
	b.notice("Your session on this page has ended.")
	b.screenshot("logged-out")
	b.noticeButton("Continue")
	b.do("see the login page", chromedp.WaitVisible("#username"))
}

// prepareIDE writes settings of the IDE in a running workspace, see editIDESettings.
func prepareIDE(t *testing.T, id string) {
	t.Helper()
	editIDESettings(t, "/home/coder", "docker", "exec", workspace.ID(id).DockerName())
}

// editIDESettings writes the settings of the IDE in a home by a shell that begins with
// these words: the test reads the terminal's text from the page, which needs GPU
// acceleration off; the IDE must not ask before its page is closed, nor replace a new
// terminal by another one when an extension has changed the environment.
func editIDESettings(t *testing.T, home string, words ...string) {
	t.Helper()
	words = append(words, "sh", "-c", `mkdir -p "$0" && cd "$0" && echo '{
  "terminal.integrated.gpuAcceleration": "off", "terminal.integrated.environmentChangesRelaunch": false, "window.confirmBeforeClose": "never"
}' > settings.json`, home+"/.local/share/code-server/User")
	if out, err := exec.CommandContext(t.Context(), words[0], words[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("write the IDE's settings: %v: %s", err, out)
	}
}

// command runs a command of the IDE by its palette.
func (b *browser) command(name string) {
	b.Helper()
	b.palette(name)
	b.do("choose the command", enter())
}

// palette opens the command palette and types a command until that is chosen. The palette
// has some commands only after the IDE has connected to the server, and does not add them to
// what it has found. Until then it chooses a similar one.
func (b *browser) palette(name string) {
	b.Helper()
	b.search(name, ".monaco-list-row.focused")
}

// search opens the command palette and types a command until one of these rows has it.
func (b *browser) search(name, rows string) {
	b.Helper()
	offered := until(fmt.Sprintf(`[...document.querySelectorAll('.quick-input-list %s')].some(e => e.innerText.includes(%q))`, rows, name))
	for try := 1; ; try++ {
		b.do("open the command palette", openPalette(), text(name))
		ctx, cancel := context.WithTimeout(b.ctx, time.Duration(3*try)*time.Second) // longer on a busy machine
		err := chromedp.Do(ctx, offered)
		cancel()
		if err == nil {
			return
		}
		if try == 10 {
			b.screenshot("no-command")
			b.Fatalf("the IDE does not offer %q: %v", name, err)
		}
		b.do("close the command palette", chromedp.KeyEvent(kb.Escape))
	}
}

// quickInput waits until what is typed goes to a menu of the IDE, not to its editor. On a busy
// machine a menu is there before it has the focus.
func quickInput() chromedp.Action[chromedp.Void] {
	return until(`!!document.activeElement?.closest('.quick-input-widget')`)
}

// openPalette presses F1 until the command palette is open: a page that still loads drops the key,
// and a second one changes nothing.
func openPalette() chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		for {
			if _, err := chromedp.KeyEvent(kb.F1)(ctx, t); err != nil {
				return err
			}
			opens, cancel := context.WithTimeout(ctx, 10*time.Second)
			_, err := quickInput()(opens, t)
			cancel()
			if err == nil || ctx.Err() != nil {
				return err
			}
		}
	})
}

// portView opens a port by the IDE's own view of ports, which leads to the address, and reads
// the heading of the page there.
func (b *browser) portView(port, address, heading string) {
	b.Helper()
	b.workbench()
	b.command("Ports: Focus on Ports View")
	row := fmt.Sprintf(`[...document.querySelectorAll('.part.panel .ports-view-actionbar-cell-localaddress')].some(e => e.getAttribute('aria-label') === %q)`, address)
	// On a busy machine the view is drawn again after the click, which is then lost.
	b.do("ask to forward a port", until(`(() => {
		if (document.activeElement?.placeholder?.startsWith('Port number or address')) return true
		const button = document.querySelector('.part.panel .welcome-view-content .monaco-button')
		if (button && !(window.clickedAt > Date.now() - 10000)) { window.clickedAt = Date.now(); button.click() }
		return false
	})()`))
	b.do("forward the port", text(port), enter(), until(row))
	b.screenshot("ports")
	b.do("open it in the browser", chromedp.Click(".part.panel .ports-view-actionbar-cell-localaddress .label-name"), chromedp.Click(".part.panel .codicon-ports-open-browser-icon"))
	tab := b.opened(address)
	tab.do("see the page", until(fmt.Sprintf(`document.querySelector('h1')?.innerText === %q`, heading)))
	tab.close()
	b.bringToFront()
}

// enter presses the Enter key in a list of the IDE. Unlike KeyEvent it sends no character, which
// the editor would get that has the focus by then.
func enter() chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		for _, kind := range []input.DispatchKeyEventType{input.DispatchKeyEventTypeRawKeyDown, input.DispatchKeyEventTypeKeyUp} {
			if _, err := cdp.Call(ctx, t, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: kind, Key: "Enter", Code: "Enter", WindowsVirtualKeyCode: 13}); err != nil {
				return err
			}
		}
		return nil
	})
}
