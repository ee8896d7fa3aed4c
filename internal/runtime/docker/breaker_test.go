package docker

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/base/breaker"
	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
)

// all makes every request to Docker fail; nil ends that.
func (e *faultProxy) all(how func(http.ResponseWriter, *http.Request)) { e.fail("", how) }

func awaitState(t *testing.T, r *Runtime, want string) {
	t.Helper()
	harness.Await(t, time.Minute, "the breaker is "+want, r.Breaker().State, func(s api.Breaker) bool { return s.State == want })
}

// When Docker accepts calls but does not respond, the breaker opens after a few calls, and
// calls fail at once. Open streams continue, and the breaker closes when Docker recovers.
func TestBreaker(t *testing.T) {
	t.Parallel()
	e := newFaultProxy(t)
	r := newRuntime(t, func(c *Config) { c.Host = e.host })
	t.Cleanup(func() { // cleanup needs Docker
		e.all(nil)
		awaitState(t, r, api.BreakerClosed)
	})
	check(t, r.Prepare(t.Context()))
	spec := seededHome(t, r)
	k := start(t, r, spec)
	log := &growing{}
	first := inspectOf(t, r, runtime.Upstream{ContainerID: k.ID}).State.Pid
	followed := make(chan error, 1)
	go func() { followed <- r.Logs(t.Context(), spec.Workspace, 0, true, log) }()
	log.await(t, 1)

	e.all(func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() })
	for range 20 {
		short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := r.Containers(short)
		cancel()
		if !errors.Is(err, runtime.ErrUnreachable) {
			t.Fatalf("hanging Docker: %v", err)
		}
		if r.Breaker().State().State != api.BreakerClosed {
			break
		}
	}
	if s := r.Breaker().State(); s.State == api.BreakerClosed || s.Error == "" {
		t.Fatalf("%+v", s)
	}
	began := time.Now()
	for _, call := range []func() error{
		func() error { _, err := r.Containers(t.Context()); return err },
		func() error { return r.CreateVolume(t.Context(), volumeOf(spec), nil) },
		func() error { _, err := r.Upstream(t.Context(), newHome().Workspace); return err },
	} {
		if err := call(); !errors.Is(err, runtime.ErrUnreachable) || !errors.Is(err, breaker.ErrOpen) {
			t.Errorf("while open: %v", err)
		}
	}
	t.Logf("three calls while open took %s", time.Since(began))

	// The stream that was opened before still works.
	check(t, syscall.Kill(first, syscall.SIGTERM))
	select {
	case err := <-followed:
		if err != nil || !strings.Contains(log.String(), "testserver: stopped") {
			t.Errorf("the followed log: %v, %q", err, log.String())
		}
	case <-time.After(30 * time.Second):
		t.Error("the followed log does not end")
	}
	if s := r.Breaker().State(); s.State == api.BreakerClosed {
		t.Errorf("while the log was followed: %+v", s)
	}

	e.all(nil)
	awaitState(t, r, api.BreakerClosed)
	if _, err := r.Containers(t.Context()); err != nil {
		t.Errorf("recovered: %v", err)
	}
}

// Docker's error responses and cancelled calls do not open the breaker.
func TestBreakerIgnoresErrorResponses(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	e := newFaultProxy(t)
	r := newRuntime(t, func(c *Config) { c.Host = e.host })
	e.all(answer(500, "no space left on device"))
	for range 10 {
		if _, err := r.Containers(t.Context()); err == nil || errors.Is(err, breaker.ErrOpen) {
			t.Fatal(err)
		}
	}
	asked := make(chan struct{}, 100)
	e.all(func(_ http.ResponseWriter, req *http.Request) {
		asked <- struct{}{}
		<-req.Context().Done()
	})
	for range 10 {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { _, err := r.Containers(ctx); done <- err }()
		<-asked
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	e.all(nil)
	if s := r.Breaker().State(); s.State != api.BreakerClosed || s.Failures != 0 {
		t.Errorf("%+v", s)
	}
}

// growing is a log that is being followed.
type growing struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (g *growing) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.b.Write(p)
}

func (g *growing) String() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.b.String()
}

func (g *growing) lines() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Count(g.b.String(), "\n")
}

func (g *growing) await(t *testing.T, n int) {
	t.Helper()
	harness.EventuallyWithin(t, 30*time.Second, "the container prints", func() bool { return g.lines() >= n })
}
