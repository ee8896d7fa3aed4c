package proxy

import (
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"testing"
	"time"

	"codehub/internal/workspace"
)

func TestHostsOfCertificates(t *testing.T) {
	t.Parallel()
	trusted := true
	w := newWorld(t, func(c *Config) {
		c.Layout = layoutOf(t, &url.URL{Scheme: "https", Host: "code.example.com"}, "https://*.ws.example.com")
		c.Trusted = func(a netip.Addr) bool { return trusted && a.IsLoopback() }
		c.Settings.Ports.PortVisibilityMax = string(workspace.VisiblePublic)
	})
	w.proxy.routes.loopbackPorts = true
	w.serve(wsA)
	open := newApp(t)
	closed, shared := open.port+1, open.port+2
	if shared > 65535 {
		closed, shared = open.port-1, open.port-2
	}
	w.store.shares = map[workspace.ID][]workspace.PortShare{wsA: {{Port: shared, With: workspace.VisiblePublic, ExpiresAt: new(time.Now().Add(time.Hour))}}}
	ask := func(domain string) int {
		return w.get(askPath+"?domain="+url.QueryEscape(domain), "Cookie", "").StatusCode
	}
	port := func(n int) string { return strconv.Itoa(n) + "--" + string(wsA) + ".ws.example.com" }
	for domain, want := range map[string]int{
		"code.example.com":                  http.StatusOK,
		string(wsA) + ".ws.example.com":     http.StatusOK,
		port(open.port):                     http.StatusOK,
		port(shared):                        http.StatusOK,
		port(closed):                        http.StatusNotFound,
		port(workspace.IDEPort):             http.StatusNotFound,
		string(wsB) + ".ws.example.com":     http.StatusNotFound,
		"x.ws.example.com":                  http.StatusNotFound,
		"ws.example.com":                    http.StatusNotFound,
		string(wsA) + ".example.com":        http.StatusNotFound,
		"x." + string(wsA) + ".example.com": http.StatusNotFound,
		"127.0.0.1":                         http.StatusNotFound,
		"":                                  http.StatusNotFound,
	} {
		if got := ask(domain); got != want {
			t.Errorf("%q: %d, want %d", domain, got, want)
		}
	}
	if _, wakes := w.store.counts(); wakes != 0 {
		t.Errorf("the questions have started %d workspaces", wakes)
	}
	trusted = false
	if got := ask(string(wsA) + ".ws.example.com"); got != http.StatusTeapot {
		t.Errorf("a visitor: %d; to visitors the path must not exist", got)
	}
}
