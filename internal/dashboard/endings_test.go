package dashboard

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// What is about to stop is said in time, on a page that is open, once to those
// who do not see it; and no longer once its owner asked it to stay.
func TestStayingInABrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, quiet := w.add("project", running), w.add("quiet", running)
	for _, id := range []any{id, quiet} {
		w.exec(`UPDATE workspaces SET desired_state = 'RUNNING' WHERE id = $1`, id)
	}
	w.used(id, time.Minute)
	b := w.tab()
	b.logIn()
	b.visit("/settings/tokens")
	b.eval(mark + `; window.saidOf = []; new MutationObserver(() => window.saidOf.push(document.getElementById('ending-said').textContent))
		.observe(document.getElementById('ending-said'), { childList: true, characterData: true, subtree: true })`)
	if value(b, chromedp.Evaluate[bool](`Boolean(document.querySelector('[data-ending]'))`)) {
		t.Fatal("it is said too early")
	}
	stay := fmt.Sprintf(`[id="stay-%s"]`, id)
	w.used(id, 8*time.Minute-2*time.Second) // told of in 2 s, as it stops after 10 min
	w.want(id, "description", "a change that the stream hears of")
	b.shown(stay)
	b.until(`document.getElementById('ending-said').textContent.includes('project is idle and will stop soon')`)

	// Another one joins it: the first is not said again, and the focus stays.
	b.eval(fmt.Sprintf(`document.getElementById('stay-%s').focus()`, id))
	w.used(quiet, 9*time.Minute)
	w.want(quiet, "description", "a change that the stream hears of")
	b.shown(fmt.Sprintf(`[id="stay-%s"]`, quiet))
	b.until(`document.getElementById('ending-said').textContent.includes('quiet is idle')`)
	b.until(fmt.Sprintf(`document.activeElement.id === 'stay-%s'`, id))

	// By the keyboard; the focus goes to the next, then to the page. Both the
	// answer and the stream draw it anew, and a key in between is lost.
	b.eval(`window.drawn = 0; document.body.addEventListener('htmx:oobAfterSwap', e => { if (e.detail.target.id === 'ending') window.drawn++ })`)
	b.run(chromedp.KeyEvent(kb.Enter))
	b.until(`window.drawn >= 2`)
	b.until(fmt.Sprintf(`!document.getElementById('stay-%s') && document.activeElement.id === 'stay-%s'`, id, quiet))
	b.until(`document.querySelector('#toasts').textContent.includes('“project” will keep running.')`)
	b.run(chromedp.KeyEvent(kb.Enter))
	b.until(`!document.querySelector('[data-ending]') && document.activeElement.id === 'main'`)
	if ws := w.row(id); ws.LastAccess != "stay" {
		t.Errorf("last used by %q", ws.LastAccess)
	}
	if said := value(b, chromedp.Evaluate[[]string](`window.saidOf`)); len(said) != 2 {
		t.Errorf("said %q", said)
	}
	if !value(b, chromedp.Evaluate[bool]("window.marked === true")) {
		t.Error("the page was loaded again")
	}

	// Used elsewhere, it vanishes too; another page does not say the same again.
	w.used(id, 9*time.Minute)
	w.want(id, "description", "another change")
	b.shown(stay)
	said := `document.getElementById('ending-said').textContent`
	b.until(said + `.includes('project')`)
	b.visit("/")
	b.shown(stay)
	if s := value(b, chromedp.Evaluate[string](said)); s != "" {
		t.Errorf("the next page says it again: %q", s)
	}
	w.used(id, 0)
	b.until(`!document.querySelector('[data-ending]')`)
}

// Keeping awake until a time in the browser's own time zone.
func TestKeepAwakeInABrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.add("project", running)
	w.want(id, "desired_state", "RUNNING")
	b := w.tab()
	b.logIn()
	b.inTimeZone("Asia/Seoul")
	b.visit("/workspaces/" + string(id))
	open := fmt.Sprintf(`[id="%s-keep-awake"]`, id)
	b.press(open)
	b.shown("dialog[open]")
	b.until(`document.activeElement.name === 'awake' && document.activeElement.value === '3600'`)
	at := time.Now().Add(5 * time.Hour).Truncate(time.Minute)
	seoul := at.In(time.FixedZone("", 9*3600)).Format("2006-01-02T15:04")
	b.eval(fmt.Sprintf(`var f = document.getElementById('f-until'); f.value = %q; f.dispatchEvent(new Event('input', { bubbles: true }))`, seoul))
	b.until(`document.querySelector('[name=awake][value=until]').checked`)
	b.press("#dialog-form button[type=submit]")
	b.until(`!document.querySelector('dialog[open]') && document.querySelector('#panel .life').textContent.includes('kept awake for another')`)
	if ws := w.row(id); ws.KeepAwakeTil == nil || !ws.KeepAwakeTil.Equal(at) {
		t.Errorf("until %v, want %v", ws.KeepAwakeTil, at)
	}
	b.until(fmt.Sprintf(`document.activeElement.id === '%s-keep-awake'`, id))
	b.press(open)
	b.shown("dialog[open]")
	b.until(fmt.Sprintf(`document.getElementById('f-until').value === %q`, seoul))
	// A mistake leaves the field as it was filled in.
	b.eval(`document.getElementById('f-until').value = '2020-01-01T00:00'`)
	b.press("#dialog-form button[type=submit]")
	b.shown("#e-until")
	b.until(`document.activeElement.id === 'f-until' && document.getElementById('f-until').value === '2020-01-01T00:00'`)
	b.eval(`document.querySelector('[name=awake][value=off]').click()`)
	b.press("#dialog-form button[type=submit]")
	b.until(`!document.querySelector('dialog[open]') && document.querySelector('#panel .life').textContent.includes('stops automatically in')`)
}

// An administrator adds somebody, with the keyboard alone.
func TestPeopleInABrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.servers()
	b := w.tab()
	b.logIn()
	b.press(`.nav a[href="/admin"]`)
	b.shown("#admin-people")
	b.eval(mark + `; document.getElementById('person-new').focus()`)
	b.run(chromedp.KeyEvent(" "))
	b.shown("dialog[open] #f-username")
	b.until(`document.activeElement.id === 'f-username'`)
	b.run(chromedp.KeyEvent("ann\t"), chromedp.KeyEvent("a long password\t"), chromedp.KeyEvent("another password\r"))
	b.until(`document.activeElement.id === 'f-password2' && document.getElementById('f-username').value === 'ann'`)
	b.enter("#f-password", "a long password")
	b.enter("#f-password2", "a long password\r")
	b.until(`!document.querySelector('dialog[open]') && document.activeElement.id === 'person-new'`)
	id := w.userID("ann")
	b.shown(fmt.Sprintf(`[data-person="%s"]`, id))

	// A menu that is open stays open while the page is kept up to date.
	b.press("#menu-" + id + " > summary")
	b.eval(fmt.Sprintf(`document.getElementById('%s-limit').focus()`, id))
	w.user("zoe", "another password", false)
	b.until(`document.querySelector('#admin-people').textContent.includes('zoe')`)
	b.until(fmt.Sprintf(`document.activeElement.id === '%s-limit' && document.activeElement.closest('details').open`, id))
	b.run(chromedp.KeyEvent(kb.Enter))
	b.shown("dialog[open] #f-limit")
	b.until(`document.activeElement.id === 'f-limit' && !document.getElementById('f-limit_n').getClientRects().length`)
	// On a busy machine Chromium may drop a key that comes while the dialog
	// opens: the key is pressed again until the second choice is selected.
	for !value(b, chromedp.Evaluate[bool](`document.getElementById('f-limit').value === 'own'`)) {
		b.run(chromedp.KeyEvent(kb.ArrowDown))
	}
	b.shown("#f-limit_n")
	b.enter("#f-limit_n", "7\r")
	b.until(`!document.querySelector('dialog[open]') && document.querySelector('#admin-people').textContent.includes('0 of 7 running')`)
	if !value(b, chromedp.Evaluate[bool]("window.marked === true")) {
		t.Error("the page was loaded again")
	}
}
