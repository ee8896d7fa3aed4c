package dashboard

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	chromium "codehub/internal/testing/harness/browser"
)

// step is something done in a browser.
type step = chromedp.Action[chromedp.Void]

// tab is a tab of a real browser. It fails the test when a page violates its content policy,
// throws or logs an error.
type tab struct {
	t   *testing.T
	w   *world
	ctx context.Context
	// expected is part of an error that the test causes; empty for none.
	expected string
	turn     int // how many pages were shown on one of the screens
	mu       sync.Mutex
	bad      []string
}

// tabs bounds the number of open tabs.
var tabs = make(chan struct{}, 3)

// tab opens a tab, which reaches the world's server and those at the other addresses.
func (w *world) tab(others ...string) *tab {
	w.t.Helper()
	return w.openTab(append(others, w.HTTP.URL)...)
}

// openTab opens a tab with cookies of its own, which reaches the addresses and those of the other
// tabs.
func (w *world) openTab(addresses ...string) *tab {
	w.t.Helper()
	tabs <- struct{}{}
	w.t.Cleanup(func() { <-tabs })
	b := &tab{t: w.t, w: w, ctx: chromium.Shared(w.t, addresses...)}
	if err := chromedp.Listen(b.ctx, b.onEvent); err != nil {
		w.t.Fatalf("open a tab: %v", err)
	}
	if _, err := chromedp.Call(b.ctx, log.Enable, cdp.Empty{}); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, s := range b.bad {
			w.t.Errorf("the browser logged an error: %s", s)
		}
	})
	return b
}

func (b *tab) onEvent(ev any) {
	switch ev := ev.(type) {
	case *runtime.EventExceptionThrown:
		b.complain(thrown(ev.ExceptionDetails))
	case *log.EventEntryAdded:
		// Responses with an error status are logged too, and often intended.
		if ev.Entry.Level == log.EntryLevelError && ev.Entry.Source != log.EntrySourceNetwork {
			b.complain(ev.Entry.Text)
		}
	}
}

func (b *tab) complain(s string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.expected != "" && strings.Contains(s, b.expected) {
		return
	}
	b.bad = append(b.bad, s)
}

func (b *tab) run(steps ...step) {
	b.t.Helper()
	ctx, stop := context.WithTimeout(b.ctx, patience)
	defer stop()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.t.Fatalf("browser: %v", err)
	}
}

// value runs an action that returns a value.
func value[T any](b *tab, a chromedp.Action[T]) T {
	b.t.Helper()
	ctx, stop := context.WithTimeout(b.ctx, patience)
	defer stop()
	v, err := chromedp.Run(ctx, a)
	if err != nil {
		b.t.Fatalf("browser: %v", err)
	}
	return v
}

// until waits for a condition in the page, across navigations.
func (b *tab) until(condition string) {
	b.t.Helper()
	ctx, stop := context.WithTimeout(b.ctx, patience)
	defer stop()
	for {
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("Boolean("+condition+")"))
		if ok {
			return
		}
		select {
		case <-ctx.Done():
			page, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string]("location.href + ', the focus on ' + document.activeElement.outerHTML.slice(0, 200) + '\\n' + (document.body.className === 'neterror' ? document.body.innerText : document.body.innerHTML)"))
			b.t.Fatalf("browser: timed out waiting for %s (%v) on %s", condition, err, page)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// shown waits until an element is there and visible.
func (b *tab) shown(selector string) {
	b.t.Helper()
	b.until(fmt.Sprintf("document.querySelector(%q)?.getClientRects().length", selector))
}

// press clicks an element once it exists. If the page redraws the element after it was found,
// press searches again.
func (b *tab) press(selector string) {
	b.t.Helper()
	ctx, stop := context.WithTimeout(b.ctx, patience)
	defer stop()
	for {
		b.shown(selector)
		err := chromedp.Do(ctx, chromedp.Click(chromedp.CSS(selector)))
		switch {
		case err == nil:
			return
		case ctx.Err() != nil || !strings.Contains(err.Error(), "Could not find node"):
			b.t.Fatalf("browser: press %s: %v", selector, err)
		}
	}
}

// pressWhile holds the mouse button down on an element while something happens.
func (b *tab) pressWhile(selector string, happens func()) {
	b.t.Helper()
	b.shown(selector)
	at := value(b, chromedp.Evaluate[struct{ X, Y float64 }](fmt.Sprintf(`(box => ({X: box.x + box.width/2, Y: box.y + box.height/2}))(document.querySelector(%q).getBoundingClientRect())`, selector)))
	left := func(o *input.DispatchMouseEventParams) { o.Button, o.ClickCount = input.MouseButtonLeft, 1 }
	b.run(chromedp.MouseEvent(chromedp.MousePressed, at.X, at.Y, left))
	happens()
	b.run(chromedp.MouseEvent(chromedp.MouseReleased, at.X, at.Y, left))
}

// key presses a key until a condition in the page is true. A page that is busy may drop a
// key, for example while a dialog opens; a key that had an effect late must do no harm when
// it comes a second time.
func (b *tab) key(key, condition string) {
	b.t.Helper()
	b.again(condition, func() { b.run(chromedp.KeyEvent(key)) })
}

// keys types a text into the field that has the focus, until the field holds it.
func (b *tab) keys(id, text string) {
	b.t.Helper()
	b.again(fmt.Sprintf("document.activeElement.id === %q && document.activeElement.value === %q", id, text), func() {
		b.eval(fmt.Sprintf("document.getElementById(%q).select()", id))
		b.run(chromedp.KeyEvent(text))
	})
}

// again acts until a condition in the page is true. It waits 5 s for it each time.
func (b *tab) again(condition string, act func()) {
	b.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		act()
		for next := time.Now().Add(5 * time.Second); time.Now().Before(next); time.Sleep(20 * time.Millisecond) {
			if value(b, chromedp.Evaluate[bool]("Boolean("+condition+")")) {
				return
			}
		}
		if time.Now().After(deadline) {
			b.until(condition) // fails with the page
			return
		}
	}
}

// enter types into a field. A "\r" at the end submits its form.
func (b *tab) enter(selector, text string) {
	b.t.Helper()
	b.shown(selector)
	b.run(chromedp.SendKeys(chromedp.CSS(selector), text))
}

func (b *tab) visit(path string) {
	b.t.Helper()
	b.run(chromedp.Navigate(b.w.HTTP.URL + path))
}

// inTimeZone sets the tab's time zone.
func (b *tab) inTimeZone(name string) {
	b.t.Helper()
	if _, err := chromedp.Call(b.ctx, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: name}); err != nil {
		b.t.Fatal(err)
	}
}

// logIn logs the admin in without the form.
func (b *tab) logIn() {
	b.t.Helper()
	c := b.w.session("admin")
	_, err := chromedp.Call(b.ctx, network.SetCookie, network.SetCookieParams{
		Name: c.Name, Value: c.Value, URL: b.w.HTTP.URL, HTTPOnly: new(true), SameSite: network.CookieSameSiteLax,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.visit("/")
	b.shown(".topbar")
}

// logInByHand logs the admin in by the form.
func (b *tab) logInByHand() {
	b.t.Helper()
	b.visit("/login")
	b.enter("#username", "admin")
	b.enter("#password", adminPassword+"\r")
	b.shown(".topbar")
	b.until("document.readyState === 'complete'") // with its scripts
}

func thrown(e *runtime.ExceptionDetails) string {
	if e.Exception != nil && e.Exception.Description != "" {
		return e.Exception.Description
	}
	return e.Text
}
