package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	chromiumstorage "github.com/chromedp/cdproto/storage"
	"github.com/chromedp/chromedp"

	"codehub/internal/e2e/proc"
	"codehub/internal/runtime"
)

// visit is one load of the IDE.
type visit struct {
	requests, bytes float64
	key             float64 // seconds until the first key appears
}

// ide is an address of the IDE with a Chromium for it.
type ide struct {
	name, address string
	loads         int
	*tab
}

// suggestNothing are settings of the IDE without which it may load further files when a
// character is typed, or may not.
const suggestNothing = `"editor.quickSuggestions": { "other": "off", "comments": "off", "strings": "off" }, "editor.suggestOnTriggerCharacters": false, ` +
	`"editor.wordBasedSuggestions": "off", "workbench.editor.languageDetection": false,`

// page measures loads of the IDE in Chromium through codehub and from the same code-server
// without it: requests and bytes over the network, and the time until a typed character
// appears in the editor.
func (b *bench) page(ctx context.Context) error {
	id, err := b.api.create(ctx, "bench-page", b.image)
	if err != nil {
		return err
	}
	defer b.api.remove(id)
	if err := prepareIDE(ctx, id, suggestNothing); err != nil {
		return err
	}
	upstream, secret, err := b.bare.reach(ctx, id)
	if err != nil {
		return err
	}
	past, err := relayTo(upstream)
	if err != nil {
		return err
	}
	defer past.Close()
	user, err := logIn(ctx, b.server, "admin", proc.AdminPassword)
	if err != nil {
		return err
	}
	ours, err := user.open(ctx, id)
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(past.Addr().String())
	if err != nil {
		return err
	}
	all := []*ide{{name: "codehub", address: "http://" + ours.host}, {name: "code-server", address: "http://localhost:" + port}}
	for i, cookie := range []func() chromedp.Action[chromedp.Void]{
		func() chromedp.Action[chromedp.Void] { return setCookie(b.server.URL, user.session) },
		func() chromedp.Action[chromedp.Void] {
			return setCookie(all[1].address, &http.Cookie{Name: runtime.SecretCookie, Value: secret})
		},
	} {
		if all[i].tab, err = newTab(ctx, all[i].address); err != nil {
			return err
		}
		defer all[i].stop()
		// The first load also begins the session on the workspace's host.
		if err := all[i].do("log in", cookie()); err != nil {
			return err
		}
		if _, err := all[i].load(ctx, id, false); err != nil {
			return fmt.Errorf("%s: %w", all[i].name, err)
		}
	}
	for _, cold := range []bool{true, false} {
		seen := make([][]visit, len(all))
		err := inTurns(b.n, len(all), func(i int) error {
			v, err := all[i].load(ctx, id, cold)
			if err != nil {
				return fmt.Errorf("%s: %w", all[i].name, err)
			}
			seen[i] = append(seen[i], v)
			return nil
		})
		if err != nil {
			return err
		}
		kind := "warm"
		if cold {
			kind = "cold"
		}
		of := func(i int, f func(visit) float64) float64 { return medianBy(seen[i], f) }
		requests := func(v visit) float64 { return v.requests }
		bytes := func(v visit) float64 { return v.bytes }
		key := func(v visit) float64 { return v.key }
		// A warm load may transfer nothing.
		ok := of(0, requests) <= 1.15*of(1, requests) && of(0, bytes) <= 1.15*of(1, bytes) && of(0, key) <= 1.15*of(1, key)
		fmt.Printf("page: %s load: codehub %.0f requests, %.0f kB, first key after %.2f s; code-server %.0f requests, %.0f kB, %.2f s (codehub: %.2f, %.2f and %.2f times); at most 1.15 times each: %s\n",
			kind, of(0, requests), of(0, bytes)/1e3, of(0, key), of(1, requests), of(1, bytes)/1e3, of(1, key),
			of(0, requests)/of(1, requests), of(0, bytes)/of(1, bytes), of(0, key)/of(1, key), verdict(ok))
	}
	return nil
}

// typedFile is the file that a load opens.
const typedFile = "/home/coder/project/bench.txt"

// load opens the IDE with a file, types until a character appears in the editor, and closes
// the page again. A cold load begins without what Chromium stored of earlier ones, except
// cookies.
func (i *ide) load(ctx context.Context, id string, cold bool) (visit, error) {
	var v visit
	if err := inside(ctx, id, "mkdir -p ~/project && echo begin > "+typedFile); err != nil {
		return v, err
	}
	if cold {
		err := i.do("clear the cache", call(network.ClearBrowserCache, cdp.Empty{}),
			call(chromiumstorage.ClearDataForOrigin, chromiumstorage.ClearDataForOriginParams{Origin: i.address, StorageTypes: "appcache,file_systems,indexeddb,local_storage,shader_cache,websql,service_workers,cache_storage"}))
		if err != nil {
			return v, err
		}
	}
	at, err := url.Parse(i.address)
	if err != nil {
		return v, err
	}
	traffic := i.count()
	address := fmt.Sprintf("%s/?folder=/home/coder/project&payload=%s", i.address, url.QueryEscape(fmt.Sprintf(`[["openFile","vscode-remote://%s%s"]]`, at.Host, typedFile)))
	begun := time.Now()
	i.loads++
	text := string(rune(0x4e00 + i.loads)) // a character that the file does not have, also if the IDE has kept what was typed before
	ready := until(`!!document.activeElement?.closest('.editor-instance') && document.querySelector('.editor-instance .view-lines')?.innerText.includes('begin') === true`)
	err = i.do("type into "+typedFile, chromedp.Navigate(address), ready, chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		for {
			if _, err := insertText(text)(ctx, t); err != nil {
				return err
			}
			tctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			_, err := until(`document.querySelector('.editor-instance .view-lines').innerText.includes('`+text+`')`)(tctx, t)
			cancel()
			if err == nil || ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}))
	v.key = time.Since(begun).Seconds()
	if err == nil {
		err = traffic.quiet(ctx)
	}
	v.requests, v.bytes = traffic.stop()
	return v, errors.Join(err, i.do("leave the page", chromedp.Navigate("about:blank")))
}

// traffic is what a page receives over the network.
type traffic struct {
	cancel context.CancelFunc
	group  sync.WaitGroup

	mu              sync.Mutex
	requests, bytes float64
	last            time.Time
}

// count counts the page's traffic.
func (i *ide) count() *traffic {
	ctx, cancel := context.WithCancel(i.ctx)
	c := &traffic{cancel: cancel, last: time.Now()}
	_ = chromedp.Do(ctx, chromedp.Func(func(_ context.Context, t *chromedp.Target) error { // fails only if the load does, too
		finished := cdp.Events(ctx, t, network.LoadingFinished)
		c.group.Go(func() {
			for e, err := range finished {
				if err != nil {
					return
				}
				c.add(e.EncodedDataLength)
			}
		})
		_, err := cdp.Call(ctx, t, network.Enable, network.EnableParams{})
		return err
	}))
	return c
}

func (c *traffic) add(bytes float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = time.Now()
	if bytes > 0 { // not from the cache
		c.requests++
		c.bytes += bytes
	}
}

// quiet waits until the page has received nothing for a while.
func (c *traffic) quiet(ctx context.Context) error {
	const quiet, most = 3 * time.Second, time.Minute
	for begun := time.Now(); time.Since(begun) < most; {
		c.mu.Lock()
		since := time.Since(c.last)
		c.mu.Unlock()
		if since >= quiet {
			return nil
		}
		if err := pause(ctx, quiet-since); err != nil {
			return err
		}
	}
	return errors.New("the page does not stop requesting")
}

func (c *traffic) stop() (requests, bytes float64) {
	c.cancel()
	c.group.Wait()
	return c.requests, c.bytes
}

// relayTo relays connections from a port of this machine to an address: Chromium trusts only
// https and this machine itself with all that the IDE uses.
func relayTo(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				up, err := net.Dial("tcp", address)
				if err != nil {
					return
				}
				defer up.Close()
				go func() {
					_, _ = io.Copy(up, c)
					_ = up.(*net.TCPConn).CloseWrite()
				}()
				_, _ = io.Copy(c, up)
			}()
		}
	}()
	return l, nil
}
