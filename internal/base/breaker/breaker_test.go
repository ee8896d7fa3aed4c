package breaker_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"codehub/api"
	"codehub/internal/base/breaker"
)

var errAway = errors.New("connection refused")

// backend is a backend that responds or not, and counts its probes.
type backend struct {
	away   atomic.Bool
	probes atomic.Int32
	hang   chan struct{} // not nil: probes hang until it is closed, whatever their context says
}

func (b *backend) probe(context.Context) error {
	b.probes.Add(1)
	if b.hang != nil {
		<-b.hang
	}
	if b.away.Load() {
		return errAway
	}
	return nil
}

func (b *backend) call(t *testing.T, br *breaker.Breaker) error {
	t.Helper()
	return br.Do(t.Context(), func(error) bool { return false }, func() error {
		if b.away.Load() {
			return errAway
		}
		return nil
	})
}

func wantState(t *testing.T, br *breaker.Breaker, want string) {
	t.Helper()
	if got := br.State(); got.State != want {
		t.Fatalf("state %+v, want %s", got, want)
	}
}

func TestOpensAfterConsecutiveFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &backend{}
		br := breaker.New(breaker.Config{Name: "x", Failures: 3, Probe: b.probe})
		defer br.Close()
		b.away.Store(true)
		for range 2 {
			b.call(t, br)
		}
		b.away.Store(false)
		b.call(t, br) // a response resets the count of failures
		b.away.Store(true)
		for range 2 {
			b.call(t, br)
		}
		wantState(t, br, api.BreakerClosed)
		b.call(t, br)
		wantState(t, br, api.BreakerOpen)
		err := br.Do(t.Context(), nil, func() error { t.Fatal("the backend was asked"); return nil })
		if !errors.Is(err, breaker.ErrOpen) || !strings.Contains(err.Error(), errAway.Error()) {
			t.Fatalf("while open: %v", err)
		}
		if s := br.State(); s.Failures != 3 || s.Error != errAway.Error() {
			t.Fatalf("state %+v", s)
		}
	})
}

// TestProbesWithoutCalls: an open breaker probes without calls, and the pauses grow to a bound.
func TestProbesWithoutCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &backend{}
		b.away.Store(true)
		br := breaker.New(breaker.Config{Name: "x", Failures: 1, Probe: b.probe})
		defer br.Close()
		b.call(t, br)
		began := time.Now()
		var at []time.Duration
		for seen := int32(0); len(at) < 7; {
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			if n := b.probes.Load(); n != seen {
				seen = n
				at = append(at, time.Since(began))
			}
		}
		for i, want := range []time.Duration{1, 3, 7, 15, 30, 45, 60} { // 1, 2, 4, 8, 15, 15, 15
			if got := at[i].Round(time.Second); got != want*time.Second {
				t.Errorf("probe %d after %s, want %ds; all: %v", i, at[i], want, at)
			}
		}
		b.away.Store(false)
		time.Sleep(15 * time.Second)
		synctest.Wait()
		wantState(t, br, api.BreakerClosed)
		if s := br.State(); s.Failures != 0 || s.Error != "" {
			t.Errorf("closed: %+v", s)
		}
		if err := b.call(t, br); err != nil {
			t.Fatal(err)
		}
		n := b.probes.Load()
		time.Sleep(time.Minute)
		if b.probes.Load() != n {
			t.Error("a closed breaker goes on probing")
		}
		// A response has reset the pauses.
		b.away.Store(true)
		b.call(t, br)
		time.Sleep(1100 * time.Millisecond)
		if b.probes.Load() != n+1 {
			t.Error("the first probe of the next outage comes late")
		}
	})
}

// TestPausesGrowWhileCallsFail: the pauses grow for a backend that responds only to probes.
func TestPausesGrowWhileCallsFail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &backend{}
		br := breaker.New(breaker.Config{Name: "x", Failures: 1, Probe: b.probe})
		defer br.Close()
		fail := func() { br.Note(t.Context(), time.Now(), errAway) }
		fail()
		time.Sleep(1100 * time.Millisecond)
		wantState(t, br, api.BreakerClosed)
		fail()
		time.Sleep(1100 * time.Millisecond)
		wantState(t, br, api.BreakerOpen)
		time.Sleep(time.Second)
		wantState(t, br, api.BreakerClosed)
	})
}

// TestHangingProbeIsNotRepeated: no probe follows one that hangs, and calls continue to fail at once.
func TestHangingProbeIsNotRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &backend{hang: make(chan struct{})}
		br := breaker.New(breaker.Config{Name: "x", Failures: 1, Probe: b.probe})
		defer br.Close()
		br.Note(t.Context(), time.Now(), errAway)
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		wantState(t, br, api.BreakerHalfOpen)
		if err := b.call(t, br); !errors.Is(err, breaker.ErrOpen) {
			t.Fatalf("half-open: %v", err)
		}
		time.Sleep(10 * time.Minute)
		wantState(t, br, api.BreakerOpen)
		if n := b.probes.Load(); n != 1 {
			t.Fatalf("%d probes", n)
		}
		close(b.hang)
		synctest.Wait()
		wantState(t, br, api.BreakerClosed)
	})
}

// TestCancelledCallsDoNotCount: a call that its caller cancelled does not count; one that
// reached its own deadline does.
func TestCancelledCallsDoNotCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		br := breaker.New(breaker.Config{Name: "x", Failures: 1})
		defer br.Close()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		br.Note(ctx, time.Now(), ctx.Err())
		br.Note(ctx, time.Now(), errAway) // as the transport reports it
		wantState(t, br, api.BreakerClosed)
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		<-ctx.Done()
		br.Note(ctx, time.Now(), ctx.Err())
		wantState(t, br, api.BreakerOpen)
	})
}

func TestResponsesDoNotCount(t *testing.T) {
	t.Parallel()
	br := breaker.New(breaker.Config{Name: "x", Failures: 1})
	defer br.Close()
	refused := errors.New("403")
	if err := br.Do(t.Context(), func(err error) bool { return err == refused }, func() error { return refused }); err != refused {
		t.Fatal(err)
	}
	wantState(t, br, api.BreakerClosed)
}

// TestTransport: any status is a response; a running stream continues while the breaker is
// open, and its end does not count.
func TestTransport(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	release := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/stream":
			_, _ = io.WriteString(w, "begin ")
			w.(http.Flusher).Flush()
			<-release
			_, _ = io.WriteString(w, "more")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler) // cut off in the middle
		case "/500":
			w.WriteHeader(http.StatusInternalServerError)
		default:
			if broken.Load() {
				panic(http.ErrAbortHandler)
			}
		}
	}))
	defer srv.Close()
	br := breaker.New(breaker.Config{Name: "x", Failures: 3, FirstPause: time.Hour})
	defer br.Close()
	client := &http.Client{Transport: br.Transport(&http.Transport{DisableKeepAlives: true})}
	get := func(path string) (*http.Response, error) {
		req, _ := http.NewRequestWithContext(t.Context(), "POST", srv.URL+path, strings.NewReader("body"))
		return client.Do(req)
	}
	for range 5 {
		resp, err := get("/500")
		if err != nil || resp.StatusCode != 500 {
			t.Fatal(resp, err)
		}
		resp.Body.Close()
	}
	wantState(t, br, api.BreakerClosed)
	stream, err := get("/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	broken.Store(true)
	for range 3 {
		if _, err := get("/"); err == nil {
			t.Fatal("no error")
		}
	}
	wantState(t, br, api.BreakerOpen)
	if _, err := get("/"); !errors.Is(err, breaker.ErrOpen) {
		t.Fatalf("while open: %v", err)
	}
	close(release)
	said, err := io.ReadAll(stream.Body)
	if err == nil || string(said) != "begin more" {
		t.Fatalf("the stream: %q, %v", said, err)
	}
	if s := br.State(); s.Failures != 3 {
		t.Errorf("the stream's end was counted: %+v", s)
	}
}

// TestConcurrentCalls uses one breaker from many goroutines.
func TestConcurrentCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &backend{}
		br := breaker.New(breaker.Config{Name: "x", Probe: b.probe})
		defer br.Close()
		for i := range 50 {
			go func() {
				for range 200 {
					b.away.Store(i == 0 && time.Now().Second()%20 < 10)
					_ = b.call(t, br)
					time.Sleep(100 * time.Millisecond)
				}
			}()
		}
		time.Sleep(time.Minute)
		b.away.Store(false)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		wantState(t, br, api.BreakerClosed)
	})
}

// TestHangingCallOpens: a single call that waited long opens the breaker, unless another call
// had a response meanwhile.
func TestHangingCallOpens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hangs := func(br *breaker.Breaker, within time.Duration, meanwhile func()) {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			time.Sleep(within / 2)
			meanwhile()
			<-ctx.Done()
			br.Note(ctx, began, ctx.Err())
		}
		br := breaker.New(breaker.Config{Name: "x", FirstPause: time.Hour})
		defer br.Close()
		hangs(br, 20*time.Second, func() { br.Note(t.Context(), time.Now(), nil) })
		hangs(br, time.Second, func() {})
		wantState(t, br, api.BreakerClosed)
		hangs(br, 20*time.Second, func() {})
		wantState(t, br, api.BreakerOpen)
	})
}
