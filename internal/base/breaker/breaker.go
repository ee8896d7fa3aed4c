// Package breaker keeps codehub from waiting for a backend that does not
// respond. A breaker is closed while calls go through. After some consecutive
// failures it opens, and calls fail at once. After a pause, which grows each
// time, it is half-open and sends one probe of its own, whose result closes or
// opens it again.
//
// Only whether the backend responds counts, not what it responds: a refusal is a
// response. A call that its caller cancelled counts for nothing; one that reaches its
// own deadline is a failure. A stream has succeeded once it has started: an open
// breaker does not cut it off, and its end is not a failure.
//
// sony/gobreaker does not fit: its pause is constant, and its probe is the next
// call. An observation makes several calls at once, of which all but one would be
// refused, and a server without calls would never notice that the backend is back.
package breaker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"codehub/api"
	"codehub/internal/base/health"
)

// ErrOpen is the error of calls while the breaker is open.
var ErrOpen = errors.New("not responding; calls are paused until it recovers")

// Config configures a Breaker.
type Config struct {
	Name string // of the backend, in logs and metrics

	Failures    int           // consecutive failures that open it; 0: 5
	Patience    time.Duration // a single call that reaches its deadline after this time opens it, if the backend has not responded since; 0: 5 s
	FirstPause  time.Duration // before the first probe; 0: 1 s
	MostPause   time.Duration // longest pause before a later probe; 0: 15 s
	ProbeWithin time.Duration // timeout of a probe; 0: 5 s

	// Probe makes a cheap call to the backend. One goroutine at a time calls
	// it, with a context that the breaker's transport lets through. A response
	// on that transport counts, whatever Probe returns. Without Probe the
	// breaker closes after the pause.
	Probe func(ctx context.Context) error

	Log *slog.Logger // nil: none
	// Conditions lists the backend while the breaker is not closed, as Condition;
	// nil: it is only logged.
	Conditions *health.Monitor
	Condition  string // empty: Name
}

// Breaker is the state of one backend. It is safe for concurrent use.
type Breaker struct {
	cfg       Config
	condition *health.Condition

	mu       sync.Mutex
	ask      func(ctx context.Context) error
	state    string
	since    time.Time
	failures int // consecutive
	last     string
	pause    time.Duration // before the next probe
	timer    *time.Timer
	closed   bool
	opened   int       // number of times it opened
	answered time.Time // when the backend last responded
}

// New returns a closed breaker.
func New(cfg Config) *Breaker {
	if cfg.Failures <= 0 {
		cfg.Failures = 5
	}
	if cfg.Patience <= 0 {
		cfg.Patience = 5 * time.Second
	}
	if cfg.FirstPause <= 0 {
		cfg.FirstPause = time.Second
	}
	if cfg.MostPause <= 0 {
		cfg.MostPause = 15 * time.Second
	}
	if cfg.ProbeWithin <= 0 {
		cfg.ProbeWithin = 5 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Breaker{cfg: cfg, ask: cfg.Probe, state: api.BreakerClosed, since: time.Now(), pause: cfg.FirstPause,
		condition: cfg.Conditions.New(health.Config{
			Name: cmp.Or(cfg.Condition, cfg.Name), Failing: "backend not responding; calls paused", Resolved: "backend responding again",
			Level: slog.LevelError, Log: cfg.Log,
		}),
	}
}

// SetProbe sets Config.Probe, for a backend that is created after its breaker.
func (b *Breaker) SetProbe(ask func(ctx context.Context) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ask = ask
}

// Close stops the probes. The breaker keeps its state.
func (b *Breaker) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if b.timer != nil {
		b.timer.Stop()
	}
}

// State returns the breaker's state.
func (b *Breaker) State() api.Breaker {
	b.mu.Lock()
	defer b.mu.Unlock()
	return api.Breaker{State: b.state, Since: b.since.UTC(), Failures: b.failures, Error: b.last}
}

// Allow returns nil if a call may be made, and otherwise ErrOpen with the
// backend's last error. A probe's context is always allowed.
func (b *Breaker) Allow(ctx context.Context) error {
	if b.probeOf(ctx) != nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == api.BreakerClosed {
		return nil
	}
	return fmt.Errorf("%s: %w (%s)", b.cfg.Name, ErrOpen, b.last)
}

// Note records the result of an allowed call that started at began: nil if the
// backend responded, whatever the response. An error counts unless the caller
// had cancelled the call.
func (b *Breaker) Note(ctx context.Context, began time.Time, err error) {
	if p := b.probeOf(ctx); p != nil {
		if err == nil {
			p.answered.Store(true)
		}
		return
	}
	if errors.Is(err, ErrOpen) {
		return
	}
	if err != nil && (errors.Is(ctx.Err(), context.Canceled) || ctx.Err() == nil && errors.Is(err, context.Canceled)) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state != api.BreakerClosed {
		return // of an earlier call; the probe decides
	}
	now := time.Now()
	if err == nil {
		b.failures, b.last, b.pause, b.answered = 0, "", b.cfg.FirstPause, now
		return
	}
	b.failures++
	// Otherwise a backend that hangs would cost one deadline for each failure.
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && now.Sub(began) >= b.cfg.Patience && b.answered.Before(began) {
		b.failures = max(b.failures, b.cfg.Failures)
	}
	b.last = words(err)
	if b.failures >= b.cfg.Failures {
		b.opened++
		b.become(api.BreakerOpen)
		b.condition.Set(errors.New(b.last), "backend", b.cfg.Name, "failures", b.failures)
		b.await()
	}
}

// Do makes one call under the breaker, for backends without a transport.
// answered reports which errors are responses of the backend.
func (b *Breaker) Do(ctx context.Context, answered func(error) bool, call func() error) error {
	if err := b.Allow(ctx); err != nil {
		return err
	}
	began := time.Now()
	err := call()
	if err != nil && answered(err) {
		b.Note(ctx, began, nil)
	} else {
		b.Note(ctx, began, err)
	}
	return err
}

// become changes the state. The caller holds mu.
func (b *Breaker) become(state string) { b.state, b.since = state, time.Now() }

// await schedules a probe after the pause and doubles the next pause. The
// caller holds mu.
func (b *Breaker) await() {
	if b.closed {
		return
	}
	b.timer = time.AfterFunc(b.pause, b.sendProbe)
	b.pause = min(2*b.pause, b.cfg.MostPause)
}

// probe is the context value of a probe.
type probe struct {
	of       *Breaker
	answered atomic.Bool // one of its calls had a response
}

type probeKey struct{}

func (b *Breaker) probeOf(ctx context.Context) *probe {
	if p, ok := ctx.Value(probeKey{}).(*probe); ok && p.of == b {
		return p
	}
	return nil
}

// sendProbe probes the backend. A probe that ignores its context, such as one
// of a folder on a hanging disk, delays the next one until it returns.
func (b *Breaker) sendProbe() {
	b.mu.Lock()
	b.become(api.BreakerHalfOpen)
	ended, ask := b.closed, b.ask
	b.mu.Unlock()
	if ended {
		return
	}
	p := &probe{of: b}
	ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), probeKey{}, p), b.cfg.ProbeWithin)
	defer cancel()
	inTime := context.AfterFunc(ctx, b.overdue)
	defer inTime()
	var err error
	if ask != nil {
		err = ask(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil && !p.answered.Load() {
		b.failures++
		b.last = words(err)
		b.condition.Set(errors.New(b.last), "backend", b.cfg.Name, "failures", b.failures)
		b.become(api.BreakerOpen)
		b.await()
		return
	}
	b.failures, b.last = 0, ""
	b.become(api.BreakerClosed)
	b.condition.Set(nil, "backend", b.cfg.Name)
}

// overdue reopens the breaker while a probe hangs.
func (b *Breaker) overdue() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == api.BreakerHalfOpen {
		b.become(api.BreakerOpen)
	}
}

// words returns an error as one line of bounded length.
func words(err error) string {
	const most = 500
	s := strings.Join(strings.Fields(err.Error()), " ")
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
