package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"codehub/internal/testing/harness/browser"
)

// tab is the tab of a Chromium with a profile and a network of its own.
type tab struct {
	ctx  context.Context
	stop func()
}

// standIn is what package browser, which serves tests, needs of a test.
type standIn struct {
	testing.TB
	ctx     context.Context
	cleanup []func()
}

func (s *standIn) Helper()                  {}
func (s *standIn) Context() context.Context { return s.ctx }
func (s *standIn) Cleanup(f func())         { s.cleanup = append(s.cleanup, f) }
func (s *standIn) Fatal(args ...any)        { panic(fatal(fmt.Sprint(args...))) }
func (s *standIn) Fatalf(format string, args ...any) {
	panic(fatal(fmt.Sprintf(format, args...)))
}
func (s *standIn) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
func (s *standIn) Failed() bool                    { return false }

// TempDir returns a folder that is removed at the end.
func (s *standIn) TempDir() string {
	dir, err := os.MkdirTemp("", "codehub-bench-")
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
func (s *standIn) Skipf(format string, args ...any) {
	panic(fatal(fmt.Sprintf(format, args...)))
}

func (s *standIn) end() {
	for _, f := range slices.Backward(s.cleanup) {
		f()
	}
}

type fatal string

// newTab starts a Chromium that reaches the server at address, by its port on any loopback
// name, and nothing else. Docker's changes of this machine's network do not disturb it.
func newTab(ctx context.Context, address string) (t *tab, err error) {
	s := &standIn{ctx: ctx}
	defer func() {
		if why, ok := recover().(fatal); ok {
			s.end()
			err = fmt.Errorf("start Chromium: %s", string(why))
		}
	}()
	t = &tab{ctx: browser.New(s, address), stop: s.end}
	// The first call starts Chromium, which ends with this context.
	if err := chromedp.Do(t.ctx, t.acceptDialogs()); err != nil {
		s.end()
		return nil, fmt.Errorf("start Chromium: %w", err)
	}
	return t, nil
}

// acceptDialogs accepts the IDE's question before its page is closed.
func (t *tab) acceptDialogs() chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		opened := cdp.Events(t.ctx, target, page.JavascriptDialogOpening)
		go func() {
			for _, err := range opened {
				if err != nil {
					return
				}
				_, _ = cdp.Call(t.ctx, target, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: true})
			}
		}()
		_, err := cdp.Call(ctx, target, page.Enable, page.EnableParams{})
		return err
	})
}

// do runs actions. An error has the page's text.
func (t *tab) do(what string, actions ...chromedp.Action[chromedp.Void]) error {
	ctx, cancel := context.WithTimeout(t.ctx, 2*time.Minute)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		ctx, cancel := context.WithTimeout(t.ctx, 10*time.Second)
		defer cancel()
		shown, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`location.href + ': ' + document.body.innerText.slice(0, 500)`))
		return fmt.Errorf("%s: %w\n%s", what, err, shown)
	}
	return nil
}

// call runs one command of the DevTools protocol.
func call[P, R any](command cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, command, params)
		return err
	})
}

func setCookie(address string, c *http.Cookie) chromedp.Action[chromedp.Void] {
	return call(network.SetCookie, network.SetCookieParams{Name: c.Name, Value: c.Value, URL: address})
}

// insertText types as an input method does.
func insertText(s string) chromedp.Action[chromedp.Void] {
	return call(input.InsertText, input.InsertTextParams{Text: s})
}

// until waits until a JavaScript expression is true.
func until(expression string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		for {
			if ok, err := chromedp.Evaluate[bool](expression)(ctx, t); err == nil && ok {
				return nil
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("never true: %s: %w", expression, ctx.Err())
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
}
