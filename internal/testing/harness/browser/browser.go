// Package browser gives tests a real Chromium.
package browser

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"codehub/internal/testing/harness"
)

// New starts a Chromium with an empty profile and these further options, which ends with
// the test, and returns the context of its first tab. It reaches the server at address, by
// its port on any loopback name, and nothing else. make check skips the test.
func New(t testing.TB, address string, more ...chromedp.ExecAllocatorOption) context.Context {
	t.Helper()
	return NewAt(t, []string{address}, more...)
}

// NewAt is New for several servers. One whose address has another IP address than 127.0.0.1 is
// reached there alone.
func NewAt(t testing.TB, addresses []string, more ...chromedp.ExecAllocatorOption) context.Context {
	t.Helper()
	harness.NeedsChromium(t)
	options, err := options()
	if err != nil {
		t.Fatal(err)
	}
	n, err := newNetwork()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.leave)
	for _, a := range addresses {
		n.reach(t, a)
	}
	options = append(options, chromedp.WindowSize(1280, 800), chromedp.ModifyCmdFunc(n.enter))
	allocator, cancel := chromedp.NewExecAllocator(context.WithValue(t.Context(), networkKey{}, n), append(options, more...)...)
	t.Cleanup(cancel)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	return ctx
}

type networkKey struct{}

// Beside makes a command start in the network of a Chromium of New or NewAt, as on the same
// computer: it reaches what the Chromium reaches, by 127.0.0.1, and ends with the test's process.
func Beside(ctx context.Context, cmd *exec.Cmd) { ctx.Value(networkKey{}).(*network).enter(cmd) }

var shared struct {
	once    sync.Once
	ctx     context.Context
	network *network
	err     error
	close   func()
}

// Shared returns the context of a tab in the Chromium that all tests of the
// process share, with a profile of the test's own. It reaches the servers at these addresses,
// by their ports on any loopback name, and those of the tests that run at the same time. A
// test gives each address once. CloseShared ends it. make check skips the test.
func Shared(t testing.TB, addresses ...string) context.Context {
	t.Helper()
	harness.NeedsChromium(t)
	shared.once.Do(openShared)
	if shared.err != nil {
		t.Fatalf("start Chromium: %v", shared.err)
	}
	for _, a := range addresses {
		shared.network.reach(t, a)
	}
	ctx, cancel := chromedp.NewContext(shared.ctx, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	return ctx
}

func openShared() {
	options, err := options()
	if err != nil {
		shared.err = err
		return
	}
	n, err := newNetwork()
	if err != nil {
		shared.err = err
		return
	}
	dir, err := os.MkdirTemp("", "codehub-chromium-")
	if err != nil {
		n.leave()
		shared.err = err
		return
	}
	allocator, stop := chromedp.NewExecAllocator(context.Background(), append(options, chromedp.UserDataDir(dir), chromedp.ModifyCmdFunc(n.enter))...)
	ctx, leave := chromedp.NewContext(allocator)
	shared.ctx, shared.network, shared.err = ctx, n, chromedp.Do(ctx)
	shared.close = func() {
		leave()
		stop()
		chromedp.FromContext(ctx).Allocator.Wait()
		n.leave()
		_ = os.RemoveAll(dir)
	}
}

// CloseShared ends the shared Chromium, if it was started. TestMain calls it.
func CloseShared() {
	if shared.close != nil {
		shared.close()
	}
}

func options() ([]chromedp.ExecAllocatorOption, error) {
	path := ""
	// The first is Chromium without the windows and services around the page: it starts with a
	// third of the processor time, and draws with half of it.
	for _, p := range []string{"/usr/bin/chromium-headless-shell", "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"} {
		if _, err := os.Stat(p); err == nil {
			path = p
			break
		}
	}
	if path == "" {
		return nil, errors.New("no Chromium: install the package chromium-headless-shell")
	}
	return append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true), chromedp.Flag("disable-quic", true), chromedp.Flag("no-first-run", true),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("lang", "en-US"),
		chromedp.Flag("force-prefers-reduced-motion", true), // animations draw all the time
		chromedp.WSURLReadTimeout(time.Minute)), nil
}
