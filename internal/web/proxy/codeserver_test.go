package proxy

import (
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"codehub/internal/bus/activity"
	"codehub/internal/testing/harness"
)

// These tests check that the background traffic of the default image's IDE does not
// count as activity. The strings depend on its version. They take more than 20 s, since the
// IDE takes that long to start.

// settled is the time after which an abandoned page is quiet: VS Code counts a user
// as present for 70 s.
const settled = 3 * time.Minute

func TestCodeServerIdle(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	for folder, file := range map[string]string{"/home/coder": "", "/home/coder/project": "a.css"} {
		t.Run(folder, func(t *testing.T) {
			t.Parallel()
			c := newCodeServer(t, "")
			c.longFile()
			c.open(folder, file)
			c.quiet(2*time.Minute, settled+2*time.Minute)
			c.reconnects(20 * time.Second)
			now := time.Now()
			if file != "" {
				c.do("scroll", wheel())
				c.used(now, activity.Presence, time.Minute)
			}
			now = time.Now()
			c.do("press a key that does nothing", chromedp.KeyEvent(kb.Shift))
			c.used(now, activity.Presence, time.Minute)
			c.readable()
		})
	}
}

func TestCodeServerInUse(t *testing.T) {
	t.Parallel()
	// Without shell integration only the terminal's output shows its use.
	c := newCodeServer(t, `"terminal.integrated.shellIntegration.enabled": false, "editor.wordBasedSuggestions": "off", "files.autoSave": "off",`)
	c.longFile()
	c.open("/home/coder/project", "a.css")

	c.quiet(5*time.Second, time.Minute) // it writes its settings when it loads
	c.reconnects(2 * time.Second)
	var now time.Time
	dirty := `document.querySelector('.tab.dirty') !== null`
	// The workbench may still move the focus, and it does not send what is typed
	// before the extension host has started.
	for try := 1; ; try++ {
		now = time.Now()
		c.do("type in the editor", chromedp.MouseClickXY(700, 200), chromedp.KeyEvent("x"))
		if _, ok := c.isUsed(now, activity.Typing, 5*time.Second); ok && c.happens(dirty, time.Second) {
			break
		}
		if try == 20 {
			c.used(now, activity.Typing, time.Second)
			c.Fatal("typing has no effect")
		}
	}

	now = c.still()
	c.do("save", chromedp.KeyEvent("s", chromedp.KeyModifiers(chromedp.ModifierCtrl)), becomes("!("+dirty+")"))
	c.used(now, activity.Typing, time.Minute)

	now = c.still()
	for try := 1; ; try++ { // no request is sent before the language extension is active
		c.do("ask for completion", chromedp.KeyEvent(" ", chromedp.KeyModifiers(chromedp.ModifierCtrl)), becomes(`document.querySelector('.suggest-widget.visible') !== null`))
		if _, ok := c.isUsed(now, activity.Typing, 5*time.Second); ok {
			break
		}
		if try == 20 {
			c.Fatal("completion counts for nothing")
		}
		c.do("close the suggestions", chromedp.KeyEvent("\u001b"), becomes(`document.querySelector('.suggest-widget.visible') === null`))
	}

	c.do("close the suggestions", chromedp.KeyEvent("\u001b"))
	c.command("Terminal: Create New Terminal", true)
	shown := `(document.querySelector('.terminal-wrapper.active .xterm-rows')?.innerText ?? '')`
	c.do("wait for the prompt", chromedp.WaitVisible(".terminal-wrapper.active .xterm-rows"), becomes(shown+`.includes('$')`))
	// Typing into a terminal shows in its echo. Keystrokes
	// themselves count only without an echo.
	c.do("turn the echo off", chromedp.Click(".terminal-wrapper.active .xterm-screen"), insert("read -s x"), chromedp.KeyEvent("\r"))
	now = c.still()
	c.do("type in the terminal", insert("w"))
	c.used(now, activity.Typing, time.Minute)

	c.do("leave something running", chromedp.KeyEvent("\r"), insert("while sleep 5; do date; done"), chromedp.KeyEvent("\r"))
	c.used(time.Now(), activity.Output, 20*time.Second)
	c.readable()
	if !harness.Verifying() {
		return
	}
	// After a minute the user counts as absent, and the output continues.
	left := time.Now().Add(90 * time.Second)
	for time.Now().Before(left) {
		c.used(time.Now(), activity.Output, 20*time.Second)
	}
	for range 4 {
		access := c.used(time.Now(), activity.Output, 10*time.Second)
		time.Sleep(time.Second)
		if last, _ := c.recorder.Last(wsA); last.Kind != activity.Output {
			t.Errorf("%s %v after the output, without a user", last.Kind, last.At.Sub(access.At))
		}
	}
	c.readable()
}

// reconnects closes the tab's WebSockets. The new ones, and what they transfer in the time
// after, must not count as activity.
func (c *codeServer) reconnects(after time.Duration) {
	c.Helper()
	before, _ := c.recorder.Last(wsA)
	had := c.sockets()
	c.world.proxy.open.closeAll((*connection).isWebSocket)
	harness.EventuallyWithin(c, patience, "the tab has made new WebSockets", func() bool {
		has := c.sockets()
		for old := range had {
			if has[old] {
				return false
			}
		}
		return len(has) == len(had)
	})
	time.Sleep(after)
	if last, _ := c.recorder.Last(wsA); last != before {
		c.Errorf("%s %v after it, which was all the tab's own doing", last.Kind, time.Since(last.At))
	}
}

// longFile creates a.css in the project.
func (c *codeServer) longFile() {
	c.Helper()
	c.docker("exec", c.container, "sh", "-c", "yes 'body { color: red }' | head -500 > /home/coder/project/a.css")
}

// still waits until earlier actions were recorded.
func (c *codeServer) still() time.Time {
	c.Helper()
	typed := func() time.Time {
		if last, _ := c.recorder.Last(wsA); last.Kind == activity.Typing || last.Kind == activity.Output {
			return last.At
		}
		return time.Time{}
	}
	harness.EventuallyWithin(c, patience, "no typing", func() bool { return time.Since(typed()) > 2*time.Second })
	return time.Now()
}
