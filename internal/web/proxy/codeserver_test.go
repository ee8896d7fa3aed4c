package proxy

import (
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"codehub/internal/bus/activity"
	"codehub/internal/testing/harness"
)

// These tests check with the IDE of codehub and a browser what counts as activity of an open
// tab (docs/workspaces.md#idle-workspaces), and that what the IDE sends by itself does not. They take more than 20 s,
// since the IDE takes that long to start.

// reportPause is after what time the page reports the next action at once.
const reportPause = 16 * time.Second

func TestCodeServerIdle(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	for folder, file := range map[string]string{"/home/coder": "", "/home/coder/project": "a.css"} {
		t.Run(folder, func(t *testing.T) {
			t.Parallel()
			c := newCodeServer(t, "")
			c.longFile()
			c.open(folder, file)
			c.quiet(2*time.Minute, 5*time.Minute)
			c.reconnects(20 * time.Second)
			now := time.Now()
			c.do("press a key that does nothing", chromedp.KeyEvent(kb.Shift))
			c.used(now, activity.Presence, time.Minute)
		})
	}
}

func TestCodeServerInUse(t *testing.T) {
	t.Parallel()
	// Without shell integration only the terminal's output shows its use.
	c := newCodeServer(t, `"terminal.integrated.shellIntegration.enabled": false, "editor.wordBasedSuggestions": "off", "files.autoSave": "off",`)
	c.docker("exec", c.container, "sh", "-c", "yes 'a line' | head -500 > /home/coder/project/a.md")
	c.open("/home/coder/project", "a.md")

	c.quiet(reportPause, time.Minute) // it writes its settings when it loads
	c.reconnects(2 * time.Second)
	now := time.Now()
	c.do("scroll", wheel())
	c.used(now, activity.Presence, 10*time.Second)
	now = time.Now()
	c.do("type in the editor", chromedp.MouseClickXY(700, 200), chromedp.KeyEvent("x"))
	c.used(now, activity.Typing, 10*time.Second)

	c.command("Terminal: Create New Terminal", true)
	shown := `(document.querySelector('.terminal-wrapper.active .xterm-rows')?.innerText ?? '')`
	c.do("wait for the prompt", chromedp.WaitVisible(".terminal-wrapper.active .xterm-rows"), becomes(shown+`.includes('$')`))
	c.do("turn the echo off", chromedp.Click(".terminal-wrapper.active .xterm-screen"), insert("read -s x"), chromedp.KeyEvent("\r"))
	c.quiet(reportPause, time.Minute)
	now = time.Now()
	c.do("type in the terminal", insert("w"))
	c.used(now, activity.Typing, 10*time.Second)
	c.do("leave something running", chromedp.KeyEvent("\r"), insert("while sleep 5; do date; done"), chromedp.KeyEvent("\r"))
	c.used(time.Now(), activity.Output, time.Minute)
	if !harness.Verifying() {
		return
	}
	// The output continues without a user.
	for range 2 {
		time.Sleep(time.Second)
		c.used(time.Now(), activity.Output, 30*time.Second)
	}
	c.command("Markdown: Open Preview", true)
	c.do("see the preview", becomes(`document.querySelector('iframe.webview.ready') !== null`))
	time.Sleep(reportPause)
	now = time.Now()
	c.do("point at the preview", wheel(), chromedp.MouseClickXY(700, 210), chromedp.MouseClickXY(710, 220))
	c.used(now, activity.Presence, 10*time.Second)
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
