package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/jackc/pgx/v5"

	"codehub/api"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
)

// The tab of an IDE has the workspace's name and the color scheme of the system or the dashboard, and warns
// before an idle stop. It says that the workspace was stopped, and that its user was logged
// out, and goes on by itself after a restart. Text that was not saved is there again after a
// stop, about which the IDE and the dashboard ask first. After a login in Korean the IDE is
// in Korean.
func TestIDETabKnowsItsWorkspace(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	dsn := database(t)
	s := startMode(t, ownOrigins, "CODEHUB_DATABASE_URL="+dsn, "CODEHUB_DEFAULT_IMAGE="+env.workspaceImage, "CODEHUB_DELETE_GRACE=0s", "COORDINATOR_IDLE_INTERVAL=2s")
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
	for _, theme := range []string{"dark", "system"} {
		class := map[string]string{"dark": "vs-dark", "system": "vs"}[theme]
		b.do("choose the theme "+theme, navigate(s.URL+"/"), chromedp.WaitVisible("#new-workspace"),
			until(fmt.Sprintf(`document.querySelector('[data-theme-form] button[value=%[1]s]').getAttribute('aria-pressed') === 'true' || (document.querySelector('[data-theme-form] button[value=%[1]s]').click(), false)`, theme)),
			until(`!document.querySelector('.htmx-request')`), navigate(s.URL+"/w/"+id+"/"), until(`document.querySelector('.monaco-workbench.`+class+`') !== null`))
	}
	b.workbench()
	b.do("see its name and icon", until(`document.title === 'alpha – codehub'`), until(`document.querySelector('link[rel~=icon]').href.startsWith('data:image/svg+xml')`))

	reported := awaitUnsaved(t, dsn, id)
	b.command("Compare New Untitled Text Files")
	b.do("type", chromedp.Click(".editor-instance .view-lines"), text("a line that is not saved"), until(`document.querySelector('.tab.dirty') !== null && /^.+ – alpha – codehub$/.test(document.title)`))

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

	choose := func(name string) {
		t.Helper()
		b.do("open the menu", until(item+`?.querySelector('a').click() === undefined`),
			until(`[...document.querySelectorAll('.quick-input-list .monaco-list-row')].some(e => e.innerText.includes('Dashboard'))`), quickInput(), text(name),
			until(fmt.Sprintf(`[...document.querySelectorAll('.quick-input-list .monaco-list-row.focused')].some(e => e.innerText.includes(%q))`, name)), enter())
	}
	choose("Keep awake")
	b.do("choose how long", until(`[...document.querySelectorAll('.quick-input-list .monaco-list-row')].some(e => /^\d+ h/.test(e.innerText.trim()))`), enter())
	s.await(id, "kept awake", func(w api.Workspace) bool {
		return w.KeepAwakeUntil != nil && time.Until(*w.KeepAwakeUntil) > time.Minute
	})
	choose("Dashboard")
	page := b.opened(s.URL + "/workspaces/" + id)
	page.do("see the workspace's page", chromedp.WaitVisible("#ports"))
	page.close()
	b.bringToFront()

	stop := func(answer string) {
		t.Helper()
		choose("Stop")
		b.do("be asked because of the text", until(`document.querySelector('.monaco-dialog-box')?.innerText.includes('unsaved files')`))
		b.screenshot("unsaved")
		b.do(answer, until(fmt.Sprintf(`[...document.querySelectorAll('.monaco-dialog-box .monaco-button')].find(e => e.innerText === %q).click() === undefined`, answer)))
	}
	stop("Cancel")
	again := until(`[...document.querySelectorAll('.editor-instance .view-lines')].some(e => e.innerText.replaceAll('\u00a0', ' ').includes('a line that is not saved'))`)

	reported()
	dashboard := b.tab()
	card := fmt.Sprintf(`document.getElementById('ws-%s')`, id)
	ask := func() {
		t.Helper()
		dashboard.do("be asked by the dashboard", chromedp.Click("#ws-"+id+" form[action$='/stop'] button"), chromedp.WaitVisible("dialog[open] #dialog-form"),
			until(`document.querySelector('dialog[open]').innerText.includes('1 file in an open editor is not saved.')`))
	}
	dashboard.do("open the dashboard", navigate(s.URL+"/"), chromedp.WaitVisible("#ws-"+id))
	ask()
	dashboard.screenshot("dashboard-asks")
	dashboard.do("cancel", chromedp.KeyEvent(kb.Escape), until(`document.querySelector('dialog[open]') === null`))
	if w, err := s.api.Get(t.Context(), id); err != nil || w.DesiredState != "RUNNING" {
		t.Errorf("after the question was cancelled: %v, %v", w.DesiredState, err)
	}
	ask()
	dashboard.do("stop it anyway", chromedp.Click("#dialog-form button[type=submit]"), until(card+`?.dataset.phase === 'STANDBY' && `+card+`.dataset.operation === 'NONE'`))
	dashboard.close()
	b.bringToFront()
	b.notice("alpha was stopped.")
	b.screenshot("stopped")
	restored := awaitUnsaved(t, dsn, id)
	b.noticeButton("Start again")
	b.do("see the text again", again)
	restored()
	stop("Stop")
	b.notice("alpha was stopped.")
	b.noticeButton("Start again")
	b.do("see the text once more", again)

	b.do("note the page", until(`window.notReloaded = true`))
	if _, err := s.api.Restart(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	b.do("see the IDE again after a restart", until(`window.notReloaded === undefined`), again)

	b.command("Sign out of codehub")
	b.do("be asked by codehub", until(fmt.Sprintf(`location.href === %q && document.querySelector('form[action="/logout"] button.btn-primary') !== null`, s.URL+"/logout")))
	b.screenshot("sign-out")
	b.do("go back", navigate(s.addressOf(id)+"/"))
	b.workbench()
	if _, err := s.api.EndOtherSessions(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.notice("Your session on this page has ended.")
	b.screenshot("logged-out")
	b.noticeButton("Continue")
	b.do("see the login page", chromedp.WaitVisible("#username"))
	b.do("choose Korean before the login", chromedp.Click(`button[name="language"][value="ko"]`), until(`document.documentElement.lang === 'ko'`))
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
	// Commands of VS Code, Git and codehub. A similar one may come first.
	for _, command := range []string{"터미널: 새 터미널 만들기", "Git: 복제", "codehub: 계속 실행"} {
		b.search(command, ".monaco-list-row")
		b.do("close the palette", chromedp.KeyEvent(kb.Escape))
	}
}

// chooseLanguage chooses a language on the dashboard.
func (b *browser) chooseLanguage(address, code string) {
	b.Helper()
	b.do("choose "+code, navigate(address+"/"), until(fmt.Sprintf(`document.querySelector('button[name="language"][value=%q]').click() === undefined`, code)),
		until(fmt.Sprintf(`document.documentElement.lang === %q`, code)))
}

// media emulates the system's color scheme.
func media(scheme string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
		return err
	})
}

// notice waits until the IDE's tab says why its connection has ended, in words that match a
// regular expression.
func (b *browser) notice(words string) {
	b.Helper()
	began := time.Now()
	b.do("see a notice", until(`document.getElementById('codehub-notice') !== null`))
	first := time.Since(began).Seconds()
	b.do("see that "+words, until(fmt.Sprintf(`new RegExp(%q).test(document.getElementById('codehub-notice')?.shadowRoot.textContent ?? '')`, words)))
	b.Logf("a notice after %.1f s, %q after %.1f s", first, words, time.Since(began).Seconds())
}

// noticeButton presses the button of a notice, which leads to another page.
func (b *browser) noticeButton(name string) {
	b.Helper()
	button := `document.getElementById('codehub-notice').shadowRoot.querySelector('a')`
	b.do("press "+name, until(fmt.Sprintf(`%s?.textContent === %q && %s.click() === undefined`, button, name, button)),
		until(`document.readyState === 'complete' && document.getElementById('codehub-notice') === null`))
}

// awaitUnsaved listens for reports of the IDE. The function that it returns waits until the
// page of the workspace has reported an unsaved file.
func awaitUnsaved(t *testing.T, dsn, id string) (reported func()) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(t.Context(), "LISTEN ide_unsaved"); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		var seen []string
		for {
			n, err := conn.WaitForNotification(ctx)
			if err != nil {
				t.Fatalf("no report of an unsaved file, but %v: %v", seen, err)
			}
			if seen = append(seen, n.Payload); strings.Contains(n.Payload, id) && strings.Contains(n.Payload, `"files":1`) {
				return
			}
		}
	}
}
