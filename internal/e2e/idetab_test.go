package e2e

import (
	"context"
	"fmt"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"codehub/api"
	"codehub/internal/e2e/proc"
)

// The tab of an IDE has the workspace's name and the system's color scheme, and warns
// before an idle stop. It says that the workspace was stopped, and that its user was logged
// out, and goes on by itself after a restart. Text that was not saved is there again after a
// stop. After a login in Korean the IDE is in Korean.
func TestIDETabKnowsItsWorkspace(t *testing.T) {
	t.Parallel()
	s := startModeQuick(t, ownOrigins, "CODEHUB_DEFAULT_IMAGE="+env.workspaceImage, "CODEHUB_DELETE_GRACE=0s", "COORDINATOR_IDLE_INTERVAL=2s")
	b := s.browser(t) // may wait
	id := s.create(api.CreateWorkspace{Name: "alpha"})
	s.awaitPhase(id, "RUNNING")
	prepareIDE(t, id)
	b.login(s.URL, proc.AdminPassword)
	b.do("open it", navigate(s.URL+"/w/"+id+"/"))
	b.workbench()
	item := `[...document.querySelectorAll('.statusbar-item')].find(e => e.id.includes('codehub.status'))`
	b.do("see when it stops", until(item+`?.innerText.includes('alpha · stops in 2 h')`))
	b.do("have the system's color scheme", media("dark"), until(`document.querySelector('.monaco-workbench.vs-dark') !== null`),
		media("light"), until(`document.querySelector('.monaco-workbench.vs') !== null`))
	b.do("see its name and icon", until(`document.title === 'alpha – codehub'`), until(`document.querySelector('link[rel~=icon]').href.startsWith('data:image/svg+xml')`))

	b.command("Compare New Untitled Text Files")
	b.do("type", chromedp.Click(".editor-instance .view-lines"), text("a line that is not saved"), until(`/^● .+ – alpha – codehub$/.test(document.title)`))

	idle := 70 // the warning comes a minute before
	if _, err := s.api.Update(t.Context(), id, api.UpdateWorkspace{StandbyTTLSeconds: api.Value(idle)}); err != nil {
		t.Fatal(err)
	}
	keep := `[...document.querySelectorAll('.notification-toast .monaco-button')].find(e => e.innerText === 'Keep running')`
	b.do("be warned", until(keep+` !== undefined`))
	b.screenshot("warned")
	b.do("keep it running", until(keep+`.click() === undefined`))
	s.await(id, "kept running", func(w api.Workspace) bool { return str(w.LastAccessKind) == "stay" })
	if _, err := s.api.Update(t.Context(), id, api.UpdateWorkspace{StandbyTTLSeconds: api.Value(0)}); err != nil {
		t.Fatal(err)
	}

	notice := func(words string) chromedp.Action[chromedp.Void] {
		return until(fmt.Sprintf(`document.getElementById('codehub-notice')?.shadowRoot.textContent.includes(%q)`, words))
	}
	button := until(`document.getElementById('codehub-notice').shadowRoot.querySelector('a').click() === undefined`)
	b.do("open the menu", until(item+`.querySelector('a').click() === undefined`),
		until(`[...document.querySelectorAll('.quick-input-list .monaco-list-row')].some(e => e.innerText.includes('Dashboard'))`), text("Stop"), chromedp.KeyEvent("\r"))
	b.do("be asked because of the text", until(`document.querySelector('.monaco-dialog-box')?.innerText.includes('unsaved files')`))
	b.screenshot("unsaved")
	b.do("stop it", until(`[...document.querySelectorAll('.monaco-dialog-box .monaco-button')].find(e => e.innerText === 'Stop').click() === undefined`))
	b.do("see that it was stopped", notice("alpha was stopped."))
	b.screenshot("stopped")
	again := until(`[...document.querySelectorAll('.editor-instance .view-lines')].some(e => e.innerText.replaceAll('\u00a0', ' ').includes('a line that is not saved'))`)
	b.do("start it again", button)
	b.do("see the text again", again)

	b.do("note the page", until(`window.notReloaded = true`))
	if _, err := s.api.Restart(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	b.do("see the IDE again after a restart", until(`window.notReloaded === undefined`), again)

	b.command("Sign out")
	b.do("be asked by codehub", until(fmt.Sprintf(`location.href === %q && document.querySelector('form[action="/logout"] button.btn-primary') !== null`, s.URL+"/logout")))
	b.screenshot("sign-out")
	b.do("go back", navigate(s.addressOf(id)+"/"))
	b.workbench()
	if _, err := s.api.EndOtherSessions(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.do("see that the session has ended", notice("You are logged out."))
	b.screenshot("logged-out")
	b.do("choose Korean before the login", button, chromedp.WaitVisible("#username"), chromedp.Click(`button[name="language"][value="ko"]`), until(`document.documentElement.lang === 'ko'`))
	b.do("log in again", chromedp.SendKeys("#username", "admin"), chromedp.SendKeys("#password", proc.AdminPassword), chromedp.Click("form button.btn-primary"))
	b.korean()
	s.remove(id)
}

// korean waits for the IDE in Korean: its own texts, those of the extensions that come with
// it in the browser and in the workspace, and codehub's.
func (b *browser) korean() {
	b.Helper()
	b.workbench()
	b.do("see the IDE in Korean", until(`document.querySelector('.sidebar .title-label')?.innerText.includes('탐색기')`),
		until(`[...document.querySelectorAll('.statusbar-item')].some(e => e.id.includes('codehub.status'))`)) // the extensions' commands are known
	b.screenshot("korean")
	for _, c := range []struct{ name, command string }{
		{"a command of VS Code", "터미널: 새 터미널 만들기"},
		{"a command of Git", "Git: 복제"},
		{"a command of codehub", "codehub: 계속 실행"},
	} {
		b.do("find "+c.name, chromedp.KeyEvent(kb.F1), chromedp.WaitVisible(".quick-input-widget input"), text(c.command),
			until(fmt.Sprintf(`[...document.querySelectorAll('.quick-input-list .monaco-list-row')].some(e => e.innerText.includes(%q))`, c.command)))
		b.do("close the palette", chromedp.KeyEvent(kb.Escape))
	}
}

// media emulates the system's color scheme.
func media(scheme string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
		return err
	})
}
