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
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	chromium "codehub/internal/harness/browser"
)

// browser is one headless Chromium with one tab and an empty profile.
type browser struct {
	*testing.T
	ctx   context.Context
	steps int
	dir   string // of the screenshots
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	ctx := chromium.New(t)
	b := &browser{T: t, ctx: ctx, dir: filepath.Join(env.output, strings.ReplaceAll(t.Name(), "/", "-"))}
	if err := os.RemoveAll(b.dir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Do(ctx, b.leaveByAll()); err != nil {
		t.Fatalf("start Chromium: %v", err)
	}
	return b
}

// leaveByAll has every dialog answered with yes, for as long as the browser
// lives: the IDE may ask whether it is to be left, and nobody is there.
func (b *browser) leaveByAll() chromedp.Action[chromedp.Void] {
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

// do runs actions within a generous bound; on failure a screenshot says where
// it stands.
func (b *browser) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 2*time.Minute)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
		defer cancel()
		url, _ := chromedp.Run(ctx, chromedp.Location())
		text, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body.innerText.slice(0, 2000)`))
		b.shot("failed")
		b.Fatalf("%s: %v\nat %s\n%s", what, err, url, text)
	}
}

// shot keeps a screenshot as test output.
func (b *browser) shot(name string) {
	b.Helper()
	b.steps++
	ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.Errorf("screenshot: %v", err)
		return
	}
	if err := os.WriteFile(filepath.Join(b.dir, fmt.Sprintf("%02d-%s.png", b.steps, name)), png, 0o644); err != nil {
		b.Error(err)
	}
}

// text types as an input method does: key by key, the terminal would see
// some twice.
func text(s string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, input.InsertText, input.InsertTextParams{Text: s})
		return err
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
				return fmt.Errorf("never true: %s: %w", expression, ctx.Err())
			case <-tick.C:
			}
		}
	})
}

// login fills in the login page.
func (b *browser) login(url, password string) {
	b.Helper()
	b.do("open the login page", chromedp.Navigate(url+"/"), chromedp.WaitVisible("#username"))
	b.shot("login")
	b.do("log in",
		chromedp.SendKeys("#username", "admin"), chromedp.SendKeys("#password", password),
		chromedp.Click("form button.btn-primary"), chromedp.WaitVisible("#new-workspace"))
}

// terminal opens a terminal in the workbench and waits for its prompt.
func (b *browser) terminal() {
	b.Helper()
	b.do("wait for the workbench", until(`document.querySelector('.monaco-workbench .part.editor') !== null`), until(`!document.querySelector('.monaco-progress-container.active.infinite.long')`))
	// The command is there only once the remote side has connected.
	offered := until(`[...document.querySelectorAll('.quick-input-list .monaco-list-row')].some(e => e.innerText.includes('Create New Terminal'))`)
	for try := 1; ; try++ {
		b.do("open the command palette", chromedp.KeyEvent(kb.F1), chromedp.WaitVisible(".quick-input-widget input"), text("Terminal: Create New Terminal"))
		ctx, cancel := context.WithTimeout(b.ctx, 3*time.Second)
		err := chromedp.Do(ctx, offered)
		cancel()
		if err == nil {
			break
		}
		if try == 20 {
			b.shot("no-terminal")
			b.Fatalf("the IDE offers no terminal: %v", err)
		}
		b.do("close the command palette", chromedp.KeyEvent(kb.Escape))
	}
	b.do("take it", chromedp.KeyEvent("\r"))
	b.do("wait for the prompt", chromedp.WaitVisible(".terminal-wrapper.active .xterm-rows"),
		until(`(document.querySelector('.terminal-wrapper.active .xterm-rows')?.innerText ?? '').includes('$')`))
}

// shell types a command into the terminal and waits until want is in what
// the terminal shows.
func (b *browser) shell(command, want string) {
	b.Helper()
	b.do("type "+command, chromedp.Click(".terminal-wrapper.active .xterm-screen"), text(command), chromedp.KeyEvent("\r"),
		until(fmt.Sprintf(`(document.querySelector('.terminal-wrapper.active .xterm-rows')?.innerText ?? '').replaceAll('\u00a0', ' ').includes(%q)`, want)))
}
