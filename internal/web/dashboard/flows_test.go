package dashboard

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"codehub/internal/gateway/origin"
	"codehub/internal/postgres"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/web"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// mark sets a variable that a reload of the page would clear.
const mark = `window.marked = true`

func (b *tab) eval(js string) { b.t.Helper(); value(b, chromedp.Evaluate[any](js)) }

// card returns the selector of a workspace's card in a state.
func card(id workspace.ID, state string) string {
	return fmt.Sprintf(`[id="ws-%s"][data-state="%s"]`, id, state)
}

// The list in a real browser: no action reloads the page.
func TestListInABrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.tab()
	b.logInByHand()
	b.shown(".empty")
	b.eval(mark)

	// Create a workspace with the keyboard alone.
	b.eval(`document.getElementById('new-workspace').focus()`)
	b.run(chromedp.KeyEvent(" "))
	b.shown("dialog[open] #f-name")
	b.until(`document.activeElement.id === 'f-name'`)
	b.until(`!document.querySelector('.htmx-request, .htmx-swapping, .htmx-settling, .htmx-added')`) // a key is lost until then
	b.run(chromedp.KeyEvent("\r"))
	b.shown("dialog[open] .field-error")
	b.until(`document.activeElement.id === 'f-name'`)
	b.run(chromedp.KeyEvent("my-project\r"))
	b.until(`!document.querySelector('dialog[open]')`)
	b.until(`document.querySelector('#toasts').textContent.includes('my-project')`) // for a few seconds
	b.shown(".card[data-state=preparing]")
	b.until(`document.activeElement.id === 'new-workspace'`)

	list, _, err := w.DB.ListWorkspaces(t.Context(), w.caller("admin"), postgres.Filter{})
	if err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	id := list[0].ID

	// A change by the controller appears without an action.
	w.observe(id, operating(standby, workspace.OpStarting))
	b.shown(card(id, "starting"))
	// A menu that is open stays open, and the focus stays on its item.
	b.press("#menu-" + string(id) + " > summary")
	b.until(`document.querySelector('details.menu[open] .menu-list')`)
	b.eval(fmt.Sprintf(`document.getElementById('%s-edit').focus()`, id))
	w.observe(id, running)
	b.shown(card(id, "running"))
	b.until(fmt.Sprintf(`document.activeElement.id === '%s-edit' && document.activeElement.closest('details').open`, id))
	b.until(`document.getElementById('announcer').textContent.includes('Running')`)
	b.run(chromedp.KeyEvent(kb.Escape))
	b.until(fmt.Sprintf(`!document.querySelector('details.menu[open]') && document.activeElement === document.querySelector('#menu-%s > summary')`, id))

	// A dialog that is closed returns the focus.
	b.press("#menu-" + string(id) + " > summary")
	b.press(fmt.Sprintf(`[id="%s-delete"]`, id))
	b.shown("dialog[open]")
	b.run(chromedp.KeyEvent(kb.Escape))
	b.until(fmt.Sprintf(`!document.querySelector('dialog') && document.activeElement === document.querySelector('#menu-%s > summary')`, id))

	// Delete a workspace and undo it.
	b.press("#menu-" + string(id) + " > summary")
	b.press(fmt.Sprintf(`[id="%s-delete"]`, id))
	b.press("dialog[open] button[type=submit]")
	b.shown(card(id, "deleted"))
	b.press(".toast-undo")
	b.until(fmt.Sprintf(`document.querySelector('#ws-%s:not(.card-gone)')`, id))
	b.until(`!document.querySelector('.toast-undo')`)

	if !value(b, chromedp.Evaluate[bool]("window.marked === true")) {
		t.Error("the page was loaded again")
	}
}

// focusedIn waits until the focus is on a control in an element.
func (b *tab) focusedIn(selector string) {
	b.t.Helper()
	b.until(fmt.Sprintf(`document.activeElement.matches('a, button, summary') && document.activeElement.closest(%q)`, selector))
}

// With the keyboard alone, the focus stays on the card after Start and Stop, and moves to the
// next card after Delete.
func TestFocusStaysInABrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.tab()
	third, second, first := w.add("third", standby), w.add("second", standby), w.add("first", standby)
	at := func(id workspace.ID) string { return "#ws-" + string(id) }
	focus := func(id string) { b.eval(fmt.Sprintf(`document.getElementById(%q).focus()`, id)) }
	b.logIn()

	focus(string(second) + "-start")
	b.run(chromedp.KeyEvent("\r"))
	b.shown(card(second, "starting"))
	b.focusedIn(at(second))
	w.observe(second, operating(standby, workspace.OpStarting))
	b.shown(fmt.Sprintf(`[id="%s-cancel"]`, second))
	b.focusedIn(at(second))
	w.observe(second, running)
	b.shown(card(second, "running"))
	b.focusedIn(at(second))

	focus(string(second) + "-stop")
	b.run(chromedp.KeyEvent("\r"))
	b.shown(card(second, "stopping"))
	b.focusedIn(at(second))
	w.observe(second, standby)
	b.shown(card(second, "stopped"))
	b.focusedIn(at(second))

	remove := func(id workspace.ID) {
		t.Helper()
		focus("menu-" + string(id))
		b.eval(fmt.Sprintf(`document.querySelector('#menu-%s > summary').focus()`, id))
		b.run(chromedp.KeyEvent("\r"))
		b.until(fmt.Sprintf(`document.querySelector('#menu-%s').open`, id))
		focus(string(id) + "-delete")
		b.run(chromedp.KeyEvent("\r"))
		b.shown("dialog[open]")
		b.eval(`document.querySelector('dialog[open] button[type=submit]').focus()`)
		b.run(chromedp.KeyEvent("\r"))
		b.shown(card(id, "deleted"))
		b.until(`!document.querySelector('dialog[open]')`)
	}
	order := value(b, chromedp.Evaluate[[]string](`Array.from(document.querySelectorAll('.card[id]')).map(function (c) { return c.id })`))
	if len(order) != 3 || order[0] != "ws-"+string(second) {
		t.Fatalf("the list is %v", order)
	}
	remove(second) // the first in the list: the next one has the focus
	b.focusedIn(at(first))
	remove(third) // the last one: the one before it
	b.focusedIn(at(first))
	remove(first) // the list is empty
	b.until(`document.activeElement.id === 'new-workspace'`)

	// Undelete moves the focus to the restored card.
	focus(string(first) + "-undelete")
	b.run(chromedp.KeyEvent("\r"))
	b.until(fmt.Sprintf(`document.querySelector('#ws-%s:not(.card-gone)')`, first))
	b.focusedIn(at(first) + ":not(.card-gone)")
}

// A toast covers no button of the page at any scroll position.
func TestToastsCoverNothingInABrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.tab()
	var id workspace.ID
	for i := range 8 {
		id = w.add(fmt.Sprintf("a workspace with quite a long name, the one that has the number %d", i), standby)
	}
	b.logIn()
	for _, l := range screens {
		b.as(l)
		b.visit(notedAt("/", "edit", id))
		b.shown("[data-toast]")
		covered := value(b, chromedp.Evaluate[[]string](`(function () {
			var toast = document.querySelector('[data-toast]').getBoundingClientRect(), bar = document.querySelector('.topbar').getBoundingClientRect(), out = []
			if (toast.bottom > bar.bottom || toast.left < 0 || toast.right > innerWidth) out.push('the toast ends at ' + toast.bottom + ', the bar at ' + bar.bottom)
			for (var y = 0; y < document.documentElement.scrollHeight; y += 150) {
				scrollTo(0, y)
				document.querySelectorAll('main a, main button, main summary').forEach(function (el) {
					var r = el.getBoundingClientRect()
					if (!el.checkVisibility() || r.bottom <= bar.bottom || r.top >= innerHeight) return
					if (r.left < toast.right && r.right > toast.left && Math.max(r.top, bar.bottom) < toast.bottom) out.push(el.id)
				})
			}
			return out
		})()`))
		if len(covered) > 0 {
			t.Errorf("%s: %v", l.name, covered)
		}
	}
}

// Logging out in one tab does not discard text typed in another.
func TestUnsavedNotesOutliveTheSessionInABrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.add("project", standby)
	b := w.tab()
	b.logInByHand()
	page := "/workspaces/" + string(id)
	elsewhere := func() { w.Exec(`DELETE FROM sessions`) }
	logInAgain := func() {
		t.Helper()
		b.enter("#username", "admin")
		b.enter("#password", adminPassword+"\r")
	}

	b.visit(page)
	b.until(`document.querySelector('[sse-connect]')`)
	b.enter("#memo", "typed and not saved")
	elsewhere()
	b.shown("#logged-out-dialog[open]")
	// Nothing else is visible, and Esc does not change that.
	hidden := func() {
		t.Helper()
		b.until(`Array.from(document.body.children).every(function (el) { return el.id === 'logged-out-dialog' || !el.checkVisibility() })`)
		b.until(`!document.body.innerText.includes('project') && !document.title.includes('project')`)
	}
	hidden()
	b.eval(`window.closes = 0; document.getElementById('logged-out-dialog').addEventListener('close', function () { window.closes++ })`)
	for range 3 {
		b.run(chromedp.KeyEvent(kb.Escape))
	}
	b.until(`window.closes > 0`)
	b.shown("#logged-out-dialog[open]:modal")
	hidden()
	b.press("#logged-out-dialog [data-keep]")
	logInAgain()
	b.until(`location.pathname.startsWith('/workspaces/') && document.getElementById('memo').value === 'typed and not saved'`)
	b.press("form[data-keep-text] .btn")
	b.until(`document.getElementById('toasts').textContent.includes('project')`)
	if got := w.row(id).Memo; got != "typed and not saved" {
		t.Errorf("saved %q", got)
	}

	// Text that was saved or never changed causes no question.
	elsewhere()
	b.until(`location.pathname === '/login'`)
	logInAgain()
	b.shown("#memo")

	b.until(`sessionStorage.getItem('codehub-draft') === null`)
}

// Text that the server refused is kept as well.
func TestRefusedTextOutlivesTheSessionInABrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.add("project", standby)
	b := w.tab()
	b.logInByHand()
	elsewhere := func() { w.Exec(`DELETE FROM sessions`) }

	b.press("#new-workspace")
	b.enter("#f-description", "a long description")
	b.enter("#f-name", "project\r")
	b.shown("dialog[open] #e-name")
	elsewhere()
	b.shown("#logged-out-dialog[open]")
	b.press("#logged-out-dialog [data-keep]")
	b.enter("#username", "admin")
	b.enter("#password", adminPassword+"\r")
	b.until(`location.pathname === '/workspaces/new' && document.getElementById('f-name').value === 'project' && document.getElementById('f-description').value === 'a long description'`)

	// The notes of a workspace that was deleted in the meantime.
	b.visit("/workspaces/" + string(id))
	b.enter("#memo", "typed and refused")
	if _, err := w.DB.DeleteWorkspace(t.Context(), w.caller("admin"), id, false); err != nil {
		t.Fatal(err)
	}
	b.press("form[data-keep-text] .btn")
	b.shown(".toast-error")
	elsewhere()
	b.shown("#logged-out-dialog[open]")

	// Another user of the same browser does not get them.
	b.press("#logged-out-dialog [data-keep]")
	w.AddAccount("ann", "another password", false)
	b.enter("#username", "ann")
	b.enter("#password", "another password\r")
	b.until(`location.pathname !== '/login'`)
	b.visit("/")
	b.shown(".topbar")
	b.until(`sessionStorage.getItem('codehub-draft') === null`)
}

func TestHiddenTabsCloseTheirStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.tab()
	b.logIn()
	b.until(`document.querySelector('[sse-connect]')`)
	hide := func(hidden bool) {
		b.eval(fmt.Sprintf(`Object.defineProperty(document, 'hidden', { value: %v, configurable: true }); document.dispatchEvent(new Event('visibilitychange'))`, hidden))
	}
	hide(true)
	b.until(`!document.querySelector('[sse-connect]')`)
	id := w.add("made-meanwhile", standby)
	hide(false)
	b.shown(card(id, "stopped"))
}

func TestLimitInABrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.tab()
	var ids []workspace.ID
	for _, name := range []string{"one", "two"} {
		ids = append(ids, w.add(name, running))
		w.want(ids[len(ids)-1], "desired_state", "RUNNING")
	}
	id := w.add("three", standby)
	b.logIn()
	b.press(fmt.Sprintf(`[id="%s-start"]`, id))
	b.shown("dialog[open] #limit-list")
	b.press(fmt.Sprintf(`[id="limit-%s"]`, ids[0]))
	b.until(`document.querySelector('#limit-list .tone-busy')`)
	if ws := w.row(id); ws.DesiredState == workspace.DesiredRunning {
		t.Fatal("it starts before the other workspace has stopped")
	}
	// Once the other workspace has stopped, the waiting one starts automatically.
	w.observe(ids[0], standby)
	b.until(`!document.querySelector('dialog[open]')`)
	b.shown(card(id, "starting"))
}

// A user who opens a workspace over the running limit enters it, at the address that was
// opened, as soon as the limit allows.
func TestLimitPageInABrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ide()
	var ids []workspace.ID
	for _, name := range []string{"one", "two"} {
		ids = append(ids, w.add(name, running))
		w.want(ids[len(ids)-1], "desired_state", "RUNNING")
	}
	id := w.add("three", standby)
	b := w.tab()
	b.logIn()
	b.visit("/w/" + string(id) + "/?folder=/home/coder/x")
	b.shown(`#wait[data-kind=limit] #limit-list`)
	// A change redraws the list, also while a button is held down.
	b.eval(`document.getElementById('limit-list').dataset.before = '1'`)
	b.pressWhile(fmt.Sprintf(`[id="limit-%s"]`, ids[0]), func() {
		other := "renamed"
		if _, err := w.DB.PatchWorkspace(t.Context(), w.caller("admin"), ids[1], postgres.Patch{Edit: workspace.Edit{Name: &other}}); err != nil {
			t.Fatal(err)
		}
		b.until(`document.querySelector('#limit-list:not([data-before])')?.textContent.includes('renamed')`)
	})
	b.until(`document.querySelector('#limit-list .tone-busy')`)
	b.eval(mark)
	w.observe(ids[0], operating(running, workspace.OpStopping))
	b.until(`document.querySelector('#limit-list').textContent.includes('Stopping') && window.marked`)
	w.observe(ids[0], standby)
	b.shown(`#wait[data-kind=loading]`)
	if ws := w.row(id); ws.DesiredState != workspace.DesiredRunning {
		t.Fatalf("desired %s", ws.DesiredState)
	}
	w.observe(id, running)
	b.until(`document.getElementById('ide')?.textContent === 'folder=/home/coder/x'`)
}

func TestThemeStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.tab()
	b.visit("/login")
	b.press(`[data-theme-form] button[value=dark]`)
	b.until(`document.documentElement.dataset.theme === 'dark'`)
	b.until(`document.querySelector('[data-theme-form] button[value=dark]').getAttribute('aria-pressed') === 'true'`)
	dark := value(b, chromedp.Evaluate[string]("getComputedStyle(document.body).backgroundColor"))
	b.until(`!document.querySelector('.htmx-request')`)
	b.visit("/login")
	b.until(`document.documentElement.dataset.theme === 'dark'`)
	b.press(`[data-theme-form] button[value=light]`)
	b.until(fmt.Sprintf("getComputedStyle(document.body).backgroundColor !== %q", dark))
}

// The IDE's page has the theme that the dashboard was given, and else the system's.
func TestIDEHasTheTheme(t *testing.T) {
	harness.NeedsChromium(t)
	t.Parallel()
	for name, w := range map[string]*world{"with origins of their own": newOriginWorld(t), "below a path": newWorld(t)} {
		t.Run(name, func(t *testing.T) {
			w.ide()
			id := w.add("project", running)
			b := w.tab()
			b.logIn()
			for _, c := range []struct{ choose, system, want string }{{"dark", "light", "dark"}, {"light", "dark", "light"}, {"system", "dark", "dark"}, {"system", "light", "light"}} {
				b.as(screen{"wide", c.system, "en-US,en", 1280, 860})
				b.visit("/")
				b.eval(`document.querySelector('[data-theme-form] button[value=` + c.choose + `]').click()`)
				b.until(`document.querySelector('[data-theme-form] button[value=` + c.choose + `]').getAttribute('aria-pressed') === 'true' && !document.querySelector('.htmx-request')`)
				b.visit("/w/" + string(id) + "/")
				b.until(`document.getElementById('ide')`)
				if got := value(b, chromedp.Evaluate[string](`['light', 'dark'].filter(s => matchMedia('(prefers-color-scheme: ' + s + ')').matches).join(' ')`)); got != c.want {
					t.Errorf("%s on a %s system: the IDE is %s, want %s", c.choose, c.system, got, c.want)
				}
				if !value(b, chromedp.Evaluate[bool](`matchMedia('(min-width: 1px)').matches`)) {
					t.Error("another media query has another answer")
				}
			}
		})
	}
}

// ide is a minimal IDE behind the proxy.
func (w *world) ide() {
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(rw, `<!doctype html><script src="_codehub/ide.js"></script><title>ide</title><p id="ide">%s</p>`, strings.ReplaceAll(r.URL.RawQuery, "<", ""))
	}))
	w.t.Cleanup(s.Close)
	w.logs.mu.Lock()
	defer w.logs.mu.Unlock()
	w.logs.addr = strings.TrimPrefix(s.URL, "http://")
}

// A page that keeps returning is reloaded only a bounded number of times.
func TestEnteringIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.add("project", standby)
	b := w.tab()
	b.logIn()
	b.visit("/w/" + string(id) + "/")
	b.shown(`#wait[data-kind=loading]`)
	b.eval(fmt.Sprintf(`sessionStorage.setItem('codehub-enter-%s', JSON.stringify(Array(6).fill(Date.now()))); %s`, id, mark))
	w.observe(id, running)
	b.shown(`#wait[data-kind=ready] [data-stuck]`)
	b.shown(`#wait [data-enter-link]`)
	if !value(b, chromedp.Evaluate[bool]("window.marked === true")) {
		t.Error("the page was loaded again")
	}
}

// The button of a tall dialog is visible without scrolling, on a low screen and on a phone, and
// no field stays below it.
func TestTallDialogShowsItsButton(t *testing.T) {
	t.Parallel()
	sizes := workspace.Sizes{Default: workspace.Size{Name: workspace.DefaultSize, NanoCPUs: 2e9, Memory: 4 << 30}}
	for _, name := range []string{"large", "huge", "giant"} {
		sizes.Offered = append(sizes.Offered, workspace.Size{Name: name, NanoCPUs: 8e9, Memory: 16 << 30})
	}
	w := makeSizedWorld(t, sizes, origin.PathMode, func(*web.Server) {})
	w.AddAccount(auth.AdminUsername, adminPassword, true)
	b := w.tab()
	b.logIn()
	for _, l := range []screen{{"low", "light", "en-US,en", 1280, 600}, {"phone", "light", "en-US,en", 390, 700}} {
		b.as(l)
		b.visit("/")
		b.press("#new-workspace")
		b.shown("dialog[open] #dialog-form")
		b.eval(`document.querySelector('dialog[open] details.advanced').open = true`)
		const submit = `document.querySelector('dialog[open] button[type=submit]')`
		const top = `(el => { const r = el.getBoundingClientRect(), at = document.elementFromPoint(r.x + r.width / 2, r.y + r.height / 2); return r.bottom <= innerHeight && el.contains(at) })`
		b.until(`document.querySelector('dialog[open]').scrollHeight > document.querySelector('dialog[open]').clientHeight`)
		if !value(b, chromedp.Evaluate[bool](top+"("+submit+")")) {
			t.Errorf("%s: the button is not visible", l.name)
		}
		b.shoot(t.ArtifactDir(), l, "tall-dialog")
		b.eval(`document.getElementById('f-image').focus()`)
		if !value(b, chromedp.Evaluate[bool](top+"(document.activeElement)")) {
			t.Errorf("%s: the button covers the field with the focus", l.name)
		}
		b.eval(`document.querySelector('dialog[open]').scrollTo(0, 1e6)`)
		if !value(b, chromedp.Evaluate[bool](top+"(document.querySelector('dialog[open] .note')) && "+top+"("+submit+")")) {
			t.Errorf("%s: the end of the dialog cannot be reached", l.name)
		}
	}
}
