package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"codehub/internal/testing/harness"
	chromium "codehub/internal/testing/harness/browser"
)

// browser is one headless Chromium with one tab and an empty profile.
type browser struct {
	*testing.T
	ctx   context.Context
	steps int
	dir   string // folder of the screenshots
	close func() // closes the tab; nil for the first one
}

func newBrowser(t *testing.T, address string, options ...chromedp.ExecAllocatorOption) *browser {
	t.Helper()
	return newBrowserAt(t, []string{address}, options...)
}

// newBrowserAt is newBrowser for several servers.
func newBrowserAt(t *testing.T, addresses []string, options ...chromedp.ExecAllocatorOption) *browser {
	t.Helper()
	env.browsers <- struct{}{}
	t.Cleanup(func() { <-env.browsers })
	ctx := chromium.NewAt(t, addresses, options...)
	b := &browser{T: t, ctx: ctx, dir: filepath.Join(env.output, strings.ReplaceAll(t.Name(), "/", "-"))}
	if err := os.RemoveAll(b.dir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Do(ctx, b.acceptDialogs()); err != nil {
		t.Fatalf("start Chromium: %v", err)
	}
	return b
}

// tabOf returns another tab of the same Chromium.
func (b *browser) tabOf(options ...chromedp.ContextOption) *browser {
	b.Helper()
	ctx, cancel := chromedp.NewContext(b.ctx, options...)
	b.Cleanup(cancel)
	tab := &browser{T: b.T, ctx: ctx, dir: b.dir, steps: b.steps, close: cancel}
	if err := chromedp.Do(ctx, tab.acceptDialogs()); err != nil { // the tab ends with the context of its first action
		b.Fatal(err)
	}
	return tab
}

// tab opens another tab, in front.
func (b *browser) tab() *browser {
	b.Helper()
	tab := b.tabOf()
	tab.bringToFront()
	return tab
}

// opened waits for a tab that a page has opened at an address that begins like this.
func (b *browser) opened(address string) *browser {
	b.Helper()
	var opened target.ID
	harness.Eventually(b, "a tab at "+address, func() bool {
		list, err := chromedp.Targets(b.ctx)
		if err != nil {
			b.Fatal(err)
		}
		for _, info := range list {
			if info.Type == "page" && strings.HasPrefix(info.URL, address) {
				opened = info.TargetID
			}
		}
		return opened != ""
	})
	return b.tabOf(chromedp.WithTargetID(opened))
}

// bringToFront activates the tab, which then receives the keys.
func (b *browser) bringToFront() {
	b.Helper()
	b.do("bring it to the front", chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, page.BringToFront, cdp.Empty{})
		return err
	}))
}

// acceptDialogs accepts every JavaScript dialog, such as the IDE's question
// before its page is closed.
func (b *browser) acceptDialogs() chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		opened := cdp.Events(b.ctx, t, page.JavascriptDialogOpening)
		go func() {
			for _, err := range opened {
				if err != nil {
					return
				}
				_, _ = cdp.Call(b.ctx, t, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: true})
			}
		}()
		_, err := cdp.Call(ctx, t, page.Enable, page.EnableParams{})
		return err
	})
}

// do runs actions with a timeout of two minutes. It repeats an action whose element the
// page replaces in the meantime. If they fail, it takes a screenshot and logs the address
// and text of the page.
func (b *browser) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, harness.Patience)
	defer cancel()
	var err error
	for _, a := range actions {
		for err = chromedp.Do(ctx, a); err != nil && strings.Contains(err.Error(), "Could not find node"); err = chromedp.Do(ctx, a) {
			b.Logf("%s: again, because the element was replaced", what)
		}
		if err != nil {
			break
		}
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
		defer cancel()
		url, _ := chromedp.Run(ctx, chromedp.Location())
		text, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body.innerText.slice(0, 2000)`))
		b.screenshot("failed")
		b.Fatalf("%s: %v\nat %s\n%s", what, err, url, text)
	}
}

// screenshot saves a screenshot to the test output. A test does not fail without it: on a busy
// machine Chromium may need longer.
func (b *browser) screenshot(name string) {
	b.Helper()
	b.steps++
	ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.Logf("screenshot: %v", err)
		return
	}
	if err := os.WriteFile(filepath.Join(b.dir, fmt.Sprintf("%02d-%s.png", b.steps, name)), png, 0o644); err != nil {
		b.Error(err)
	}
}

// text inserts text as an input method does. If it sent single keys, the
// terminal would receive some of them twice.
func text(s string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, input.InsertText, input.InsertTextParams{Text: s})
		return err
	})
}

// pressEnter presses Enter. chromedp.KeyEvent also sends its character, which a real browser drops
// because the terminal has handled the key: the shell would receive it twice.
func pressEnter() chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		for _, k := range kb.Encode('\r') {
			if k.Type == kb.KeyChar {
				continue
			}
			if _, err := cdp.Call(ctx, t, input.DispatchKeyEvent, *k); err != nil {
				return err
			}
		}
		return nil
	})
}

// until waits for a JavaScript expression to become true, over reloads and
// navigations.
func until(expression string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			if ok, err := chromedp.Evaluate[bool](expression)(ctx, t); err == nil && ok {
				return nil
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("not true: %s: %w", expression, ctx.Err())
			case <-tick.C:
			}
		}
	})
}

// navigate opens an address.
func navigate(address string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := chromedp.Navigate(address)(ctx, t)
		return err
	})
}

// login fills in the login page as the administrator.
func (b *browser) login(url, password string) {
	b.Helper()
	b.loginAs(url, "admin", password)
}

func (b *browser) loginAs(url, user, password string) {
	b.Helper()
	b.do("open the login page", navigate(url+"/"), chromedp.WaitVisible("#username"))
	b.screenshot("login")
	b.do("log in",
		chromedp.SendKeys("#username", user), chromedp.SendKeys("#password", password),
		chromedp.Click("form button.btn-primary"), chromedp.WaitVisible("#new-workspace"))
}

// workbench waits for the IDE's page.
func (b *browser) workbench() {
	b.Helper()
	b.do("wait for the workbench", until(`document.querySelector('.monaco-workbench .part.editor') !== null`), until(`!document.querySelector('.monaco-progress-container.active.infinite.long')`))
}

// terminal opens a terminal in the workbench and waits for its prompt.
func (b *browser) terminal() {
	b.Helper()
	b.workbench()
	b.command("Terminal: Create New Terminal")
	b.do("wait for the prompt", chromedp.WaitVisible(".terminal-wrapper.active .xterm-rows"),
		until(terminalShows("$")))
}

// terminalShows is a condition on what the IDE's terminals show. After a reload the page
// can have an earlier one as well, and both count as active.
func terminalShows(want string) string {
	return fmt.Sprintf(`[...document.querySelectorAll('.terminal-wrapper.active .xterm-rows')].some(e => e.innerText.replaceAll('\u00a0', ' ').includes(%q))`, want)
}

// shell types a command into the terminal and waits until want is in what
// the terminal shows.
func (b *browser) shell(command, want string) {
	b.Helper()
	b.do("type "+command, chromedp.Click(".terminal-wrapper.active .xterm-screen"), text(command), chromedp.KeyEvent("\r"),
		until(terminalShows(want)))
}
