package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"codehub/internal/testing/e2e/proc"
)

// typingScript defines benchType in the page.
//
//go:embed typing.js
var typingScript string

// typed is the time for which a measurement types.
const typed = 8 * time.Second

// typing measures the echo of keystrokes in a terminal of the real IDE in Chromium: alone,
// while another user downloads and uploads, while they open thousands of connections, and
// while they do the same past codehub, which shows what the machine itself costs. The server
// has the default limits.
func typing(ctx context.Context, o options) error {
	if err := raiseDescriptors(); err != nil {
		return err
	}
	own, err := serve(ctx, o, proc.Options{Env: []string{"CODEHUB_MAX_CONNECTIONS=10000", "CODEHUB_MAX_REQUESTS_PER_USER=512"}})
	if err != nil {
		return err
	}
	defer own.close()
	other, err := own.neighbour(ctx)
	if err != nil {
		return err
	}
	defer os.RemoveAll(other.dir)
	t, err := own.openTerminal(ctx)
	if err != nil {
		return err
	}
	defer t.stop()

	states := []struct {
		name string
		load func(context.Context) error
	}{
		{"alone", func(ctx context.Context) error { <-ctx.Done(); return nil }},
		{"during transfers", func(ctx context.Context) error { return other.transfer(ctx, other.ours) }},
		{"during transfers past codehub", func(ctx context.Context) error { return other.transfer(ctx, other.direct) }},
		{"during 5,000 connections", func(ctx context.Context) error { return other.flood(ctx, other.ours) }},
		{"during 5,000 connections past codehub", func(ctx context.Context) error { return other.flood(ctx, other.direct) }},
	}
	seen := make([][]time.Duration, len(states))
	err = inTurns(o.n, len(states), func(i int) error {
		took, err := t.typeDuring(ctx, states[i].load)
		if err != nil {
			return fmt.Errorf("%s: %w", states[i].name, err)
		}
		seen[i] = append(seen[i], took...)
		return nil
	})
	if err != nil {
		return err
	}
	p99 := func(i int) float64 { return float64(percentile(seen[i], 99)) / 1e6 }
	parts := []string{}
	for i, s := range states {
		parts = append(parts, fmt.Sprintf("%s median %.1f ms, p99 %.1f ms (%.2f times)", s.name, float64(percentile(seen[i], 50))/1e6, p99(i), p99(i)/p99(0)))
	}
	fmt.Printf("typing: %s; p99 during transfers and connections at most twice that alone: %s\n", strings.Join(parts, "; "), verdict(p99(1) <= 2*p99(0) && p99(3) <= 2*p99(0)))
	return nil
}

// typeDuring types while the load runs.
func (t *tab) typeDuring(ctx context.Context, load func(context.Context) error) ([]time.Duration, error) {
	lctx, stop := context.WithCancel(ctx)
	var failed error
	var g sync.WaitGroup
	g.Go(func() { failed = load(lctx) })
	err := pause(ctx, time.Second)
	var took []time.Duration
	if err == nil {
		tctx, cancel := context.WithTimeout(t.ctx, time.Minute)
		defer cancel()
		var list []float64
		list, err = chromedp.Run(tctx, chromedp.Evaluate[[]float64](fmt.Sprintf("benchType(%d)", typed.Milliseconds()), chromedp.EvalAwaitPromise))
		for _, v := range list {
			took = append(took, time.Duration(v*1e6))
		}
	}
	stop()
	g.Wait()
	return took, errors.Join(err, failed, pause(ctx, time.Second))
}

// openTerminal opens the IDE of a new workspace in Chromium, and in its terminal a program
// that echoes what is typed.
func (b *bench) openTerminal(ctx context.Context) (t *tab, err error) {
	id, err := b.api.create(ctx, "bench-typing", b.image)
	if err != nil {
		return nil, err
	}
	// The IDE does not ask before its page is closed, and does not draw the terminal on a canvas.
	settings := `mkdir -p ~/.local/share/code-server/User && echo '{"terminal.integrated.gpuAcceleration": "off", "terminal.integrated.environmentChangesRelaunch": false, ` +
		`"window.confirmBeforeClose": "never"}' > ~/.local/share/code-server/User/settings.json`
	if err := inside(ctx, id, settings); err != nil {
		return nil, err
	}
	user, err := logIn(ctx, b.server, "admin", proc.AdminPassword)
	if err != nil {
		return nil, err
	}
	if t, err = newTab(ctx, user.main.String()); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			t.stop()
		}
	}()
	err = t.do("open the IDE", setCookie(user.main.String(), user.session),
		call(page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: typingScript}),
		chromedp.Navigate(user.main.String()+"/w/"+id+"/"), until(`document.querySelector('.monaco-workbench .part.editor') !== null`))
	if err != nil {
		return nil, err
	}
	if err := t.command("Terminal: Create New Terminal"); err != nil {
		return nil, err
	}
	shown := `(document.querySelector('.terminal-wrapper.active .xterm-rows')?.innerText ?? '')`
	return t, t.do("start the echo", chromedp.WaitVisible(".terminal-wrapper.active .xterm-rows"), until(shown+`.includes('$')`),
		chromedp.Click(".terminal-wrapper.active .xterm-screen"), insertText("stty -icanon -echo; echo $((6 * 7))-ready; cat"), chromedp.KeyEvent("\r"),
		until(shown+`.includes('42-ready')`))
}

// command runs a command of the IDE by its palette, which has it only after the IDE has
// connected to the server.
func (t *tab) command(name string) error {
	_, last, _ := strings.Cut(name, ": ")
	offered := until(fmt.Sprintf(`[...document.querySelectorAll('.quick-input-list .monaco-list-row')].some(e => e.innerText.includes(%q))`, last))
	for try := 1; ; try++ {
		err := t.do("open the command palette", chromedp.KeyEvent(kb.F1), chromedp.WaitVisible(".quick-input-widget input"), insertText(name))
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(t.ctx, time.Duration(3*try)*time.Second)
		err = chromedp.Do(ctx, offered)
		cancel()
		if err == nil {
			return t.do("choose the command", chromedp.KeyEvent("\r"))
		}
		if try == 10 {
			return fmt.Errorf("%s is not offered: %w", name, err)
		}
		if err := t.do("close the command palette", chromedp.KeyEvent(kb.Escape)); err != nil {
			return err
		}
	}
}
