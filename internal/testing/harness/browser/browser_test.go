package browser

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"codehub/internal/testing/harness"
)

func TestMain(m *testing.M) {
	code := m.Run()
	CloseShared()
	os.Exit(code)
}

// Network interfaces that appear on the machine, as for every container that starts, end no
// request of a test's browser. Chromium ends the requests that wait for a connection when it
// sees a new address, some two seconds later.
func TestInterfacesEndNoRequest(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	for name, open := range map[string]func(string) context.Context{
		"a browser of its own": func(address string) context.Context { return New(t, address) },
		"the shared browser":   func(address string) context.Context { return Shared(t, address) },
	} {
		var once sync.Once
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				once.Do(func() { addInterface(t) })
			}
		}))
		t.Cleanup(server.Close)
		ctx := open(server.URL)
		// A browser has six connections to a server.
		const requests = `Promise.all([...Array(12).keys()].map(n => fetch('/slow?' + n))).then(() => 'all answered', String)`
		if _, err := chromedp.Run(ctx, chromedp.Navigate(server.URL)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := chromedp.Run(ctx, chromedp.Evaluate[string](requests, func(p *runtime.EvaluateParams) {
			p.AwaitPromise = new(true)
		}))
		if err != nil || got != "all answered" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// addInterface adds an interface with an address to the machine for a while.
func addInterface(t *testing.T) {
	name := fmt.Sprintf("chb%d", os.Getpid())
	script := fmt.Sprintf(`ip link add %sa type veth peer %[1]sb && ip address add 192.0.2.9/32 dev %[1]sa && ip link set %[1]sa up && ip link set %[1]sb up && sleep 4; ip link del %[1]sa`, name)
	if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
