package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/moby/moby/client"

	"codehub/internal/runtime"
)

// faultProxy is a proxy between a runtime and Docker that can inject faults.
type faultProxy struct {
	host  string
	srv   *httptest.Server
	fault atomic.Pointer[func(http.ResponseWriter, *http.Request) bool] // true: handled
}

func newFaultProxy(t *testing.T) *faultProxy {
	t.Helper()
	socket := client.DefaultDockerHost
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "engine"})
	proxy.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(socket, "unix://"))
	}}
	proxy.FlushInterval = -1
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { panic(http.ErrAbortHandler) }
	e := &faultProxy{}
	path := filepath.Join(t.TempDir(), "engine.sock")
	l, err := net.Listen("unix", path)
	check(t, err)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f := e.fault.Load(); f != nil && (*f)(w, r) {
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	srv.Listener.Close()
	srv.Listener = l
	srv.Config.ErrorLog = nil
	srv.Start()
	e.srv = srv
	t.Cleanup(srv.Close)
	e.host = "unix://" + path
	return e
}

// twoServers returns runtimes of two servers of one installation. The first one's requests
// pass through the proxy.
func twoServers(t *testing.T) (*faultProxy, *Runtime, *Runtime) {
	t.Helper()
	e := newFaultProxy(t)
	next := newRuntime(t, nil)
	old := newRuntime(t, func(c *Config) {
		c.Host, c.Installation, c.DataDir = e.host, next.cfg.Installation, next.cfg.DataDir
	})
	return e, old, next
}

// fail makes requests for paths with this suffix fail; nil ends that.
func (e *faultProxy) fail(path string, how func(http.ResponseWriter, *http.Request)) {
	if how == nil {
		e.fault.Store(nil)
		return
	}
	f := func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, path) {
			return false
		}
		how(w, r)
		return true
	}
	e.fault.Store(&f)
}

// cut closes all open connections.
func (e *faultProxy) cut() { e.srv.CloseClientConnections() }

func hangUp(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func answer(status int, words string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"message":%q}`, words)
	}
}

func TestDockerRestartDuringCalls(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name        string
		how         func(http.ResponseWriter, *http.Request)
		unreachable bool
	}{
		{"hangs up", hangUp, true},
		{"hangs up in the middle of its answer", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `[{"Id":`)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, true},
		{"is stopping", answer(503, "the daemon is shutting down"), true},
		{"lost its containerd", answer(500, "transport is closing: unavailable"), true},
		{"cancels what it did", answer(500, "context canceled"), true},
		{"says no", answer(500, "no space left on device"), false},
		{"refuses", answer(403, "not allowed here"), false},
	}
	e := newFaultProxy(t)
	r := newRuntime(t, func(c *Config) { c.Host = e.host })
	check(t, r.Prepare(t.Context()))
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			e.fail("/containers/json", tc.how)
			_, err := r.Containers(t.Context())
			if err == nil || errors.Is(err, runtime.ErrUnreachable) != tc.unreachable {
				t.Errorf("error = %v, want unreachable = %v", err, tc.unreachable)
			}
			e.fail("", nil)
			if _, err := r.Containers(t.Context()); err != nil {
				t.Errorf("recovered: %v", err)
			}
		})
	}
}

// real returns a client without injected faults.
func (r *Runtime) real() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(client.DefaultDockerHost, "unix://"))
	}}}
}
