// Package breaker keeps codehub from waiting for a backend that does not
// answer. A breaker is closed while calls go through; after some
// failures in a row it is open, and calls fail at once; after a pause, longer
// each time, it is half-open: one probe of its own is sent, and what comes of
// that closes or opens it again.
//
// What counts is whether the backend answers, never what it says: a refusal is
// an answer. Whoever gives up a call has learned nothing of the backend, so
// that counts for nothing either; one that runs into its own deadline has. A
// stream counts as answered once it has begun: nothing that runs is cut off by
// an open breaker, and the end of a stream is no failure.
//
// It is not sony/gobreaker: there the pause is always the same, and the probe
// is whatever call comes next. A look at everything is several calls at once,
// of which all but one would be refused, upon which the caller gives up the
// one that was let through; and a server that nobody asks anything would never
// find out that the backend is back.
package breaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"codehub/api"
)

// ErrOpen is what calls fail with while the backend is known not to answer.
var ErrOpen = errors.New("not responding; calls are paused until it recovers")

// Config says what a Breaker watches, and how patient it is.
type Config struct {
	Name string // of the backend, for the log and the metrics

	Failures    int           // in a row, that open it; 0: 5
	Patience    time.Duration // without any answer, after which a single call that ran into its deadline opens it; 0: 5 s
	FirstPause  time.Duration // before the first probe; 0: 1 s
	MostPause   time.Duration // before each of the later ones, at most; 0: 15 s
	ProbeWithin time.Duration // that a probe may take; 0: 5 s

	// Probe asks the backend something cheap. It is called by one goroutine at
	// a time, with a context that the breaker's own transport lets through; an
	// answer that came by that counts, whatever the probe makes of it. Without
	// a probe the backend is taken to be back after the pause.
	Probe func(ctx context.Context) error

	Log *slog.Logger // nil: none
}

// Breaker is the state of one backend. It is safe for concurrent use.
type Breaker struct {
	cfg Config

	mu       sync.Mutex
	ask      func(ctx context.Context) error
	state    string
	since    time.Time
	failures int // in a row
	last     string
	pause    time.Duration // before the next probe
	timer    *time.Timer
	closed   bool
	opened   int       // how often it has opened
	answered time.Time // when the backend last answered
}

// New makes a closed breaker.
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
	return &Breaker{cfg: cfg, ask: cfg.Probe, state: api.BreakerClosed, since: time.Now(), pause: cfg.FirstPause}
}

// SetProbe sets Config.Probe, for a backend that is made after its breaker.
func (b *Breaker) SetProbe(ask func(ctx context.Context) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ask = ask
}

// Close ends the probes. The breaker stays as it is.
func (b *Breaker) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if b.timer != nil {
		b.timer.Stop()
	}
}

// State is how the backend fares.
func (b *Breaker) State() api.Breaker {
	b.mu.Lock()
	defer b.mu.Unlock()
	return api.Breaker{State: b.state, Since: b.since.UTC(), Failures: b.failures, Error: b.last}
}

// Allow is ErrOpen, with what the backend failed with last, unless a call may
// be made. ctx of a probe may always.
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

// Note takes down how a call ended that was allowed and began then: nil if the
// backend answered, whatever it said. An error counts unless the caller had
// given up.
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
		return // of a call from before: the probe finds out
	}
	now := time.Now()
	if err == nil {
		b.failures, b.last, b.pause, b.answered = 0, "", b.cfg.FirstPause, now
		return
	}
	b.failures++
	// A backend that hangs would otherwise cost as many deadlines as failures.
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && now.Sub(began) >= b.cfg.Patience && b.answered.Before(began) {
		b.failures = max(b.failures, b.cfg.Failures)
	}
	b.last = words(err)
	if b.failures >= b.cfg.Failures {
		b.opened++
		b.become(api.BreakerOpen)
		b.cfg.Log.Error("backend not responding; calls paused", "backend", b.cfg.Name, "failures", b.failures, "err", err)
		b.await()
	}
}

// Do makes one call under the breaker, for backends without a transport.
// answered says which errors are the backend's own answers.
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

// become changes the state; mu is held.
func (b *Breaker) become(state string) { b.state, b.since = state, time.Now() }

// await has the backend probed after the pause, and makes the next one longer;
// mu is held.
func (b *Breaker) await() {
	if b.closed {
		return
	}
	b.timer = time.AfterFunc(b.pause, b.sendProbe)
	b.pause = min(2*b.pause, b.cfg.MostPause)
}

// probe is what the context of a probe carries.
type probe struct {
	of       *Breaker
	answered atomic.Bool // a call of it was
}

type probeKey struct{}

func (b *Breaker) probeOf(ctx context.Context) *probe {
	if p, ok := ctx.Value(probeKey{}).(*probe); ok && p.of == b {
		return p
	}
	return nil
}

// sendProbe asks the backend whether it is back. One that hangs whatever its
// context says, such as a folder on a disk that does not answer, is not asked
// a second time before it has answered.
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
		b.become(api.BreakerOpen)
		b.await()
		return
	}
	b.failures, b.last = 0, ""
	b.become(api.BreakerClosed)
	b.cfg.Log.Info("backend responding again", "backend", b.cfg.Name)
}

// overdue shows that a probe hangs.
func (b *Breaker) overdue() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == api.BreakerHalfOpen {
		b.become(api.BreakerOpen)
	}
}

// words is an error for people to read: bounded, in one line.
func words(err error) string {
	const most = 500
	s := strings.Join(strings.Fields(err.Error()), " ")
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
