package dashboard

import (
	"bytes"
	"context"
	"fmt"
	"image/png"
	"math"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"codehub/internal/bus/activity"
	"codehub/internal/gateway/origin"
	"codehub/internal/postgres"
	"codehub/internal/running/attach"
	"codehub/internal/runtime/agent"
	"codehub/internal/testing/agenttest"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/web"
	"codehub/internal/users/auth"
	"codehub/internal/web/httpapi"
	"codehub/internal/workspace"
)

// withTerminals gives the world the API, and agents in this process.
func (w *world) withTerminals() (*agenttest.Agents, *activity.Recorder) {
	agents, used := agenttest.New(w.t), activity.New()
	attacher := attach.New(attach.Config{Store: w.DB, Runtime: agents, Sessions: w.Auth, Activity: used, CheckInterval: 50 * time.Millisecond})
	w.dash.Usage = attacher
	w.mux.Handle("/api/", httpapi.New(httpapi.Config{
		Settings: w.dash.Settings, Store: w.DB, Auth: w.Auth, Hub: w.Hub, Logs: w.logs, Attach: attacher, Log: w.dash.Log,
	}))
	return agents, used
}

// steadyUsage is what every workspace of the pictures uses.
type steadyUsage struct{}

func (steadyUsage) Load(context.Context, workspace.ID) (attach.Load, error) {
	return attach.Load{CPU: 1.25, Usage: agent.Usage{
		CPULimit: 2, Memory: 1_310_000_000, MemoryLimit: 4 << 30, Disk: 9_800_000_000, DiskSize: 40_000_000_000, Processes: 41,
		Holders: []agent.Holder{{What: "make test", Since: time.Now().Add(-9 * time.Minute).Unix()}},
	}}, nil
}

const terminalRows = `[...document.querySelectorAll('.xterm-rows > div')].map(e => e.textContent).join('\n')`

// prints waits until the terminal shows text.
func (b *tab) prints(text string) {
	b.t.Helper()
	b.until(printed(text))
}

// printed is the expression that is true while the terminal shows the text.
func printed(text string) string {
	return fmt.Sprintf("(%s).replace(/\\u00a0/g, ' ').includes(%q)", terminalRows, text)
}

// types types into the terminal, which has the focus. A real browser drops the character
// of a key that the page has handled; chromedp sends it anyway.
func (b *tab) types(text string) {
	b.t.Helper()
	b.until(`document.activeElement?.classList.contains('xterm-helper-textarea')`)
	for _, r := range text {
		for _, k := range kb.Encode(r) {
			if k.Type == kb.KeyChar && r != ' ' && !unicode.IsUpper(r) { // xterm leaves these to the browser
				continue
			}
			if _, err := chromedp.Call(b.ctx, input.DispatchKeyEvent, *k); err != nil {
				b.t.Fatal(err)
			}
		}
	}
}

// chord presses a key with modifiers.
func (b *tab) chord(key string, modifiers ...chromedp.Modifier) {
	b.t.Helper()
	for _, r := range key {
		for _, k := range kb.Encode(r) {
			if k.Type == kb.KeyChar { // a key with Ctrl has no character
				continue
			}
			for _, m := range modifiers {
				k.Modifiers |= int64(m)
			}
			if _, err := chromedp.Call(b.ctx, input.DispatchKeyEvent, *k); err != nil {
				b.t.Fatal(err)
			}
		}
	}
}

// copyAndPaste copies a word that the terminal shows, and pastes it into the next command.
func (b *tab) copyAndPaste(word string) {
	b.t.Helper()
	b.types("echo copied-$((40+3))-" + word + "\r")
	copied := "copied-43-" + word
	b.prints("\n" + copied)
	at := value(b, chromedp.Evaluate[struct{ X, Y float64 }](fmt.Sprintf(`(r => ({X: r.left + 20, Y: r.top + r.height / 2}))([...document.querySelectorAll('.xterm-rows > div')].find(e => e.textContent.trim() === %q).getBoundingClientRect())`, copied)))
	b.run(chromedp.MouseClickXY(at.X, at.Y, chromedp.ClickCount(2)))
	b.chord("C", chromedp.ModifierCtrl, chromedp.ModifierShift)
	b.until(fmt.Sprintf(`(window.clipboard.readText().then(t => window.copied = t), window.copied === %q)`, copied))
	b.types("echo pasted-")
	pasted := "echo pasted-" + copied
	for _, k := range kb.Encode('V') {
		if k.Type == kb.KeyChar {
			continue
		}
		k.Modifiers |= int64(chromedp.ModifierCtrl | chromedp.ModifierShift)
		if k.Type == kb.KeyDown || k.Type == kb.KeyRawDown {
			k.Commands = []string{"PasteAndMatchStyle"} // as a browser does with this key
		}
		if _, err := chromedp.Call(b.ctx, input.DispatchKeyEvent, *k); err != nil {
			b.t.Fatal(err)
		}
	}
	b.prints(pasted)
	b.types("-end\r")
	b.prints("\npasted-" + copied + "-end")
}

// permit sets whether the page may use a part of the clipboard.
func (b *tab) permit(name string, setting cdpbrowser.PermissionSetting) {
	b.t.Helper()
	if _, err := chromedp.CallBrowser(b.ctx, cdpbrowser.SetPermission, cdpbrowser.SetPermissionParams{
		Permission: &cdpbrowser.PermissionDescriptor{Name: name}, Setting: setting,
		Origin: b.w.HTTP.URL, BrowserContextID: chromedp.FromContext(b.ctx).BrowserContextID,
	}); err != nil {
		b.t.Fatal(err)
	}
}

// says waits for the text of the terminal's state.
func (b *tab) says(text string) {
	b.t.Helper()
	b.until(fmt.Sprintf("document.getElementById('terminal-status').textContent.includes(%q)", text))
}

// Underscores are not cut off, with any of the fonts that this machine has and at any zoom.
func TestTerminalShowsUnderscores(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	agents, _ := w.withTerminals()
	id := w.add("shell", running)
	w.want(id, "desired_state", "RUNNING")
	agents.Start(id)
	b := w.tab()
	b.logIn()
	// Before the page's own scripts run.
	if _, err := chromedp.Call(b.ctx, cdppage.AddScriptToEvaluateOnNewDocument, cdppage.AddScriptToEvaluateOnNewDocumentParams{Source: `
		const font = new URLSearchParams(location.search).get('font')
		document.addEventListener('readystatechange', () => { if (font) document.documentElement.style.setProperty('--mono', font) })`}); err != nil {
		t.Fatal(err)
	}
	for _, font := range []string{"", "DejaVu Sans Mono", "Liberation Mono", "Noto Sans Mono CJK KR"} {
		for _, zoom := range []float64{1, 1.25, 2} {
			if _, err := chromedp.Call(b.ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: 800, Height: 400, DeviceScaleFactor: zoom}); err != nil {
				t.Fatal(err)
			}
			b.visit("/workspaces/" + string(id) + "/terminal?font=" + url.QueryEscape(font))
			b.types(`printf '\033[2J\033[Ha b\na_b\n\033[44mxxx\033[0m\n'` + "\r")
			b.until(`[...document.querySelectorAll('.xterm-rows > div')].slice(0, 3).map(e => e.textContent.replace(/\u00a0/g, ' ').trim()).join('|') === 'a b|a_b|xxx'`)
			at := value(b, chromedp.Evaluate[struct{ X, Y, Width, Height float64 }](`(r => ({X: r.left, Y: r.top, Width: r.width, Height: r.height}))(document.querySelectorAll('.xterm-rows > div')[0].getBoundingClientRect())`))
			picture, err := png.Decode(bytes.NewReader(value(b, chromedp.CaptureScreenshot())))
			if err != nil {
				t.Fatal(err)
			}
			ink := func(row float64) (n int) {
				for y := int(math.Ceil((at.Y + row*at.Height) * zoom)); y < int((at.Y+(row+1)*at.Height)*zoom); y++ {
					for x := int(at.X * zoom); x < int((at.X+40)*zoom); x++ {
						r, _, _, _ := picture.At(x, y).RGBA()
						background, _, _, _ := picture.At(int((at.X+at.Width-4)*zoom), y).RGBA()
						if math.Abs(float64(r)-float64(background)) > 0x3000 {
							n++
						}
					}
				}
				return n
			}
			if without, with := ink(0), ink(1); without == 0 || with < without+4 {
				t.Errorf("%q at a zoom of %v: %d pixels of 'a_b' and %d of 'a b' differ from the background", font, zoom, with, without)
			}
		}
	}
}

func TestTerminalInTheBrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	agents, used := w.withTerminals()
	id := w.add("shell", running)
	w.want(id, "desired_state", "RUNNING")
	agents.Start(id)
	b := w.tab()
	b.logIn()
	b.visit("/workspaces/" + string(id) + "/terminal")
	b.types("echo $((40+2))-typed\r")
	b.prints("42-typed")
	if a, ok := used.Last(id); !ok || a.Kind != activity.Output && a.Kind != activity.Typing {
		t.Errorf("the last use is %+v", a)
	}

	// Colours of 24 bits are inline styles in xterm; the policy of the page holds.
	b.types(`printf '\033[38;2;255;0;0mred\033[0m\n'` + "\r")
	b.until(`[...document.querySelectorAll('.xterm-rows span')].some(e => e.textContent.startsWith('red') && e.style.color)`)
	b.until(`getComputedStyle(document.querySelector('.xterm-rows')).color !== 'rgb(0, 0, 0)'`)

	// Korean, composed as an input method does it.
	b.types("echo ")
	for _, part := range []string{"ㅎ", "하", "한"} {
		if _, err := chromedp.Call(b.ctx, input.ImeSetComposition, input.ImeSetCompositionParams{Text: part, SelectionStart: 1, SelectionEnd: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := chromedp.Call(b.ctx, input.InsertText, input.InsertTextParams{Text: "한"}); err != nil {
		t.Fatal(err)
	}
	b.types("-korean\r")
	b.prints("\n한-korean")

	// Copy and paste: by the clipboard of secure origins, where that is denied, and as on others.
	b.eval(`window.clipboard = navigator.clipboard`)
	b.permit("clipboard-read", cdpbrowser.PermissionSettingGranted)
	b.permit("clipboard-write", cdpbrowser.PermissionSettingGranted)
	b.copyAndPaste("granted")
	b.permit("clipboard-write", cdpbrowser.PermissionSettingDenied)
	b.copyAndPaste("denied")
	b.eval(`Object.defineProperty(navigator, 'clipboard', {value: undefined})`)
	b.copyAndPaste("plain")

	// A paste that is longer than a message may be.
	b.types("stty -echo; echo reading-$((4+4)); echo counted-$(head -c 300000 | wc -c); stty echo\r")
	b.prints("\nreading-8")
	b.eval(`(d => {
		d.setData('text/plain', ('x'.repeat(99) + '\n').repeat(3000))
		document.querySelector('.xterm-helper-textarea').dispatchEvent(new ClipboardEvent('paste', {clipboardData: d, bubbles: true, cancelable: true}))
	})(new DataTransfer())`)
	b.prints("counted-300000")

	// The shell follows the window's size.
	b.types("(stty -echo; trap 'echo interrupted-$((6+6)); trap \"\" INT; read line; stty echo; exit' INT; while sleep 0.1; do stty size; done)\r")
	rows := value(b, chromedp.Evaluate[int](`document.querySelectorAll('.xterm-rows > div').length`))
	b.prints(fmt.Sprint("\n", rows, " "))
	if _, err := chromedp.Call(b.ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: 390, Height: 360, DeviceScaleFactor: 1}); err != nil {
		t.Fatal(err)
	}
	b.until(fmt.Sprintf(`document.querySelectorAll('.xterm-rows > div').length < %d`, rows))
	rows = value(b, chromedp.Evaluate[int](`document.querySelectorAll('.xterm-rows > div').length`))
	b.prints(fmt.Sprint("\n", rows, " "))
	b.until(`document.documentElement.scrollWidth <= 390`)
	harness.Eventually(t, "Ctrl-C ends the command", func() bool {
		// Bash ignores the signal if a command of the loop ends at that moment.
		b.chord("c", chromedp.ModifierCtrl)
		return value(b, chromedp.Evaluate[bool](printed("interrupted-12"))) // later ones are not echoed, and do not scroll it away
	})
	b.types("\r")

	// Tab is the shell's, so the keyboard has another way to leave the terminal.
	b.types("\t")
	b.until(`document.activeElement?.classList.contains('xterm-helper-textarea')`)
	b.chord("X", chromedp.ModifierCtrl, chromedp.ModifierShift)
	b.until(`document.activeElement?.id === 'terminal-back'`)

	// The shell ends, and another one starts.
	b.run(chromedp.Focus(chromedp.CSS(".xterm-helper-textarea")))
	b.types("exit 3\r")
	b.says("status 3")
	b.press("#terminal-again")
	b.types("echo next-$((1+1))\r")
	b.prints("next-2")

	// The workspace stops, and runs again.
	b.goesOnAfterStop(w, agents, id)

	// Start is pressed while the page asks for the state: the late response, Stopped, changes nothing.
	w.want(id, "desired_state", "STANDBY")
	w.observe(id, standby)
	agents.Stop(id)
	b.says("is not running")
	b.eval(`window.ask = window.fetch
		window.fetch = (...args) => ask(...args).then(r => new Promise(resolve => window.respond = () => resolve(r)))`)
	b.until(`window.respond !== undefined`)
	b.press("#terminal-again")
	b.says("Waiting for the workspace")
	b.eval(`window.said = []
		new MutationObserver(() => said.push(document.getElementById('terminal-status').textContent)).observe(document.getElementById('terminal-status'), {childList: true})
		window.fetch = ask
		respond()`)
	agents.Start(id)
	w.observe(id, running)
	b.until(`said.includes('')`) // connected
	if said := value(b, chromedp.Evaluate[string](`said.join('\n')`)); strings.Contains(said, "is not running") {
		t.Errorf("after Start the page says: %s", said)
	}
	b.types("echo started-$((3+3))\r")
	b.prints("started-6")

	w.Exec(`DELETE FROM sessions`)
	w.Auth.InvalidateAll()
	b.until(`location.pathname === '/login' || document.getElementById('terminal-login')?.getClientRects().length`)
}

// goesOnAfterStop stops the terminal's workspace and lets it run again.
func (b *tab) goesOnAfterStop(w *world, agents *agenttest.Agents, id workspace.ID) {
	w.want(id, "desired_state", "STANDBY")
	w.observe(id, standby)
	agents.Stop(id)
	b.says("is not running")
	agents.Start(id)
	w.want(id, "desired_state", "RUNNING")
	w.observe(id, running)
	b.until(`document.getElementById('terminal-status').textContent === ''`) // connected
	b.types("echo again-$((2+2))\r")
	b.prints("again-4")
}

// Without scripts the page names the command instead, and leads back to where a guest came from.
func TestTerminalWithoutScripts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	own := w.add("shell", running)
	contains(t, "the owner's page", w.loggedIn().get("/workspaces/"+string(own)+"/terminal").body, "<noscript>", "codehub exec -t shell")
	w.AddAccount("ann", "another password", false)
	shared := w.AddWorkspace(w.caller("ann"), "shop").ID
	w.observe(shared, running)
	if _, err := w.DB.Share(t.Context(), w.caller("ann"), shared, postgres.NewShare{User: "admin", Access: workspace.AccessUse}); err != nil {
		t.Fatal(err)
	}
	contains(t, "a guest's page", w.loggedIn().get("/workspaces/"+string(shared)+"/terminal").body, "codehub exec -t ann/shop", `href="/shared/`+string(shared)+`"`)
}

// fixedUsage is what an agent reports.
type fixedUsage agent.Usage

func (u fixedUsage) Load(context.Context, workspace.ID) (attach.Load, error) {
	return attach.Load{CPU: 0.06, Usage: agent.Usage(u)}, nil
}

// The usage has the size of the home and its limit, and nothing of the machine's disk.
func TestUsageIsOfTheHome(t *testing.T) {
	t.Parallel()
	w := makeSizedWorld(t, workspace.Sizes{Default: workspace.Size{Name: workspace.DefaultSize, NanoCPUs: 2e9, Memory: 4 << 30, Disk: 20 << 30}}, origin.PathMode, func(*web.Server) {})
	w.AddAccount(auth.AdminUsername, adminPassword, true)
	id := w.add("project", running)
	path := "/workspaces/" + string(id) + "/usage"
	b := w.loggedIn()
	machine := fixedUsage{CPULimit: 2, Memory: 1 << 30, MemoryLimit: 4 << 30, Disk: 176 << 30, DiskSize: 270 << 30}
	w.dash.Usage = machine
	lacks(t, "a home that was not measured", b.get(path).body, "176", "270", "Home folder")
	w.want(id, "home_bytes", 3<<30)
	contains(t, "a measured home", b.get(path).body, "Home folder", "3 GiB of 20 GiB", "1 GiB of 4 GiB", "0.06 of 2 cores")
	contains(t, "in Korean", b.get(path, "Accept-Language", "ko").body, "3 GiB / 20 GiB", "0.06 / 2코어")
	w.want(id, "home_limit", 20<<30)
	lacks(t, "a quota on the machine's disk", b.get(path).body, "176", "270")
	w.dash.Usage = fixedUsage{CPULimit: 2, Memory: 1 << 30, MemoryLimit: 4 << 30, Disk: 5 << 30, DiskSize: 19 << 30}
	contains(t, "a file system of its own", b.get(path).body, "5 GiB of 20 GiB")
}
