package dashboard

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// An open page warns in time of an automatic stop, announces it once to screen readers, and
// drops the warning after "keep running".
func TestStayingInABrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, quiet := w.add("project", running), w.add("quiet", running)
	for _, id := range []any{id, quiet} {
		w.Exec(`UPDATE workspaces SET desired_state = 'RUNNING' WHERE id = $1`, id)
	}
	w.used(id, time.Minute)
	b := w.tab()
	b.logIn()
	b.visit("/settings/tokens")
	b.eval(mark + `; window.announcements = []; new MutationObserver(() => window.announcements.push(document.getElementById('ending-announcer').textContent))
		.observe(document.getElementById('ending-announcer'), { childList: true, characterData: true, subtree: true })`)
	if value(b, chromedp.Evaluate[bool](`Boolean(document.querySelector('[data-ending]'))`)) {
		t.Fatal("the warning came too early")
	}
	stay := fmt.Sprintf(`[id="stay-%s"]`, id)
	w.used(id, 8*time.Minute-2*time.Second) // the warning is due in 2 s, as it stops after 10 min
	w.want(id, "description", "a change that the stream hears of")
	b.shown(stay)
	b.until(`document.getElementById('ending-announcer').textContent.includes('project is idle and will stop soon')`)

	// A second warning appears: the first is not announced again, and the focus stays.
	b.eval(fmt.Sprintf(`document.getElementById('stay-%s').focus()`, id))
	w.used(quiet, 9*time.Minute)
	w.want(quiet, "description", "a change that the stream hears of")
	b.shown(fmt.Sprintf(`[id="stay-%s"]`, quiet))
	b.until(`document.getElementById('ending-announcer').textContent.includes('quiet is idle')`)
	b.until(fmt.Sprintf(`document.activeElement.id === 'stay-%s'`, id))

	// With the keyboard, the focus moves to the next button, then to the page. Both the
	// response and the stream redraw the warning, and a key between the two is lost.
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
	if announced := value(b, chromedp.Evaluate[[]string](`window.announcements`)); len(announced) != 2 {
		t.Errorf("announced %q", announced)
	}
	if !value(b, chromedp.Evaluate[bool]("window.marked === true")) {
		t.Error("the page was loaded again")
	}

	// Activity elsewhere removes the warning; another page does not announce it again.
	w.used(id, 9*time.Minute)
	w.want(id, "description", "another change")
	b.shown(stay)
	announced := `document.getElementById('ending-announcer').textContent`
	b.until(announced + `.includes('project')`)
	b.visit("/")
	b.shown(stay)
	if s := value(b, chromedp.Evaluate[string](announced)); s != "" {
		t.Errorf("the next page announces it again: %q", s)
	}
	w.used(id, 0)
	b.until(`!document.querySelector('[data-ending]')`)
}

// The field for the keep-awake time uses the browser's time zone.
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
	// An invalid value stays in the field.
	b.eval(`document.getElementById('f-until').value = '2020-01-01T00:00'`)
	b.press("#dialog-form button[type=submit]")
	b.shown("#e-until")
	b.until(`document.activeElement.id === 'f-until' && document.getElementById('f-until').value === '2020-01-01T00:00'`)
	b.eval(`document.querySelector('[name=awake][value=off]').click()`)
	b.press("#dialog-form button[type=submit]")
	b.until(`!document.querySelector('dialog[open]') && document.querySelector('#panel .life').textContent.includes('stops automatically in')`)
}
