package docker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"codehub/internal/health"
	"codehub/internal/runtime"
)

// pullTick is the interval at which the pulls are judged.
const pullTick = time.Second

// pulls carries out what a pullQueue decides.
type pulls struct {
	mu    sync.Mutex
	queue pullQueue
	calls map[*queuedPull]*pullCall
	tick  time.Duration // 0: pullTick
	stuck *health.Condition
}

// pullCall is how a pull learns what was decided.
type pullCall struct {
	start chan struct{}           // receives once per start
	stop  context.CancelCauseFunc // of the call to Docker; nil while none runs
	cause error                   // of a stop that was decided before the call began
}

// errSetBack ends a call to Docker that will be repeated.
var errSetBack = errors.New("the pull waits for another user's pull")

var errPullsBlocked = errors.New("no image pull of codehub downloads anything, and Docker starts no download: another program pulls images, or a registry does not respond and Docker has to be restarted")

func (s *pulls) join(user string) (*queuedPull, *pullCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, c := s.queue.add(user), &pullCall{start: make(chan struct{}, 1)}
	if s.calls == nil {
		s.calls = map[*queuedPull]*pullCall{}
	}
	s.calls[p] = c
	s.judge()
	return p, c
}

// leave ends the pull, so that another one may begin.
func (s *pulls) leave(p *queuedPull) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue.remove(p)
	delete(s.calls, p)
	s.judge()
}

// judge decides and tells the pulls. The caller holds s.mu.
func (s *pulls) judge() {
	verdicts := s.queue.judge(time.Now())
	if s.queue.blocked() {
		s.stuck.Set(errPullsBlocked)
	} else {
		s.stuck.Set(nil)
	}
	for _, v := range verdicts {
		c := s.calls[v.pull]
		if v.kind == pullStart {
			c.cause = nil
			c.start <- struct{}{}
			continue
		}
		cause := stopCause(v, s.queue.rules)
		if c.stop == nil {
			c.cause = cause
			continue
		}
		c.stop(cause)
	}
}

func stopCause(v verdict, rules pullRules) error {
	switch v.kind {
	case pullTooLong:
		return &runtime.SlowPullError{Limit: rules.timeout}
	case pullTooSlow:
		return &runtime.SlowPullError{Rate: v.rate, Least: rules.minRate}
	}
	return errSetBack
}

// watch judges until ctx ends.
func (s *pulls) watch(ctx context.Context) {
	every := s.tick
	if every == 0 {
		every = pullTick
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			s.mu.Lock()
			s.judge()
			s.mu.Unlock()
		}
	}
}

// begin returns the context of a call to Docker, which a later decision cancels.
func (s *pulls) begin(ctx context.Context, c *pullCall) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.cause != nil {
		cancel(c.cause)
	}
	c.stop = cancel
	return ctx, cancel
}

// returned records that the call to Docker has returned.
func (s *pulls) returned(p *queuedPull, c *pullCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.stop = nil
	s.queue.left(p)
}

func (s *pulls) record(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// pull fetches the image in the user's turn (see pullQueue). If the image is not
// available, the error is a *runtime.PullError with Docker's message, and a
// *runtime.SlowPullError if its registry is too slow.
func (r *Runtime) pull(ctx context.Context, image, user string, progress func(runtime.Progress)) error {
	if why := r.notPulled(image); why != "" {
		return &runtime.PullError{Image: image, Message: why}
	}
	p, call := r.pulls.join(user)
	defer r.pulls.leave(p)
	ctx, end := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer end()
	watching.Go(func() { r.pulls.watch(ctx) })
	for {
		if err := awaitTurn(ctx, image, call, progress); err != nil {
			return err
		}
		err := r.pullOnce(ctx, image, p, call, progress)
		var slow *runtime.SlowPullError
		switch {
		case err != nil && ctx.Err() == nil && errors.Is(err, errSetBack):
			r.log.Info("image pull set back for another user", "image", image)
		case errors.As(err, &slow):
			slow.Image = image
			return slow
		default:
			return err
		}
	}
}

// queueReport is how often a waiting pull reports that it waits. Its wait is bounded by
// the time limits of the pulls before it.
const queueReport = 5 * time.Second

func awaitTurn(ctx context.Context, image string, call *pullCall, progress func(runtime.Progress)) error {
	select {
	case <-call.start:
		return nil
	default:
	}
	t := time.NewTicker(queueReport)
	defer t.Stop()
	for {
		report(progress, runtime.StepWaitingPull)
		select {
		case <-call.start:
			return nil
		case <-t.C:
		case <-ctx.Done():
			return fmt.Errorf("pull %s: %w", image, context.Cause(ctx))
		}
	}
}

// pullOnce has Docker pull the image. If a decision of the queue ends the call, the
// error is that decision's.
func (r *Runtime) pullOnce(ctx context.Context, image string, p *queuedPull, call *pullCall, progress func(runtime.Progress)) error {
	defer r.pulls.returned(p, call)
	ctx, cancel := r.pulls.begin(ctx, call)
	defer cancel(nil)
	report(progress, runtime.StepPulling)
	login := r.credentials(image)
	stream, err := r.api.ImagePull(ctx, image, client.ImagePullOptions{RegistryAuth: login.encoded})
	if err != nil {
		return login.refusal(image, pullFailed(ctx, image, err))
	}
	defer stream.Close()
	var sum layers
	for m, err := range stream.JSONMessages(ctx) {
		if err != nil {
			return login.refusal(image, pullFailed(ctx, image, err))
		}
		if m.Error != nil {
			return login.refusal(image, pullFailed(ctx, image, errors.New(m.Error.Message)))
		}
		phase, known := phaseOf(m.Status)
		if m.ID == "" || !known {
			continue
		}
		size, changed := int64(0), false
		if m.Progress != nil {
			size = m.Progress.Total
			if m.Status == "Downloading" || m.Status == "Extracting" {
				changed = sum.update(m.ID, m.Status == "Extracting", m.Progress.Current, m.Progress.Total)
			}
		}
		r.pulls.record(func() {
			p.layer(m.ID, phase, size)
			p.downloaded(sum.done)
		})
		if changed && progress != nil {
			progress(runtime.Progress{Step: runtime.StepPulling, Done: sum.done, Total: sum.total})
		}
	}
	if ctx.Err() != nil { // the end of the stream is then not Docker's
		return pullFailed(ctx, image, ctx.Err())
	}
	return r.pulled(ctx, image)
}
