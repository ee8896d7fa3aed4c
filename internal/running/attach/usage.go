package attach

import (
	"context"
	"time"

	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
)

// Usage asks the agent of a running workspace what it uses. It wakes nothing, counts as no
// use, and authorizes nobody: that is the caller's task. The errors are those of
// Upstreams and agent.Client, and ErrNoAgent.
func (a *Attacher) Usage(ctx context.Context, id workspace.ID) (agent.Usage, error) {
	c, err := a.agentOf(ctx, id)
	if err != nil {
		return agent.Usage{}, err
	}
	usage, err := c.Usage(ctx)
	return usage, refusal(err)
}

// Load is a Usage with the processors that are used now.
type Load struct {
	agent.Usage
	CPU float64 // processors
}

// loadInterval is how long the processor time is measured.
const loadInterval = 250 * time.Millisecond

// Load is Usage, measured for a moment. Requests for the same workspace at the same time
// share one measurement.
func (a *Attacher) Load(ctx context.Context, id workspace.ID) (Load, error) {
	ch := a.loads.DoChan(string(id), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
		defer cancel()
		began := time.Now()
		before, err := a.Usage(ctx, id)
		if err != nil {
			return Load{}, err
		}
		select {
		case <-time.After(loadInterval):
		case <-ctx.Done():
			return Load{}, ctx.Err()
		}
		after, err := a.Usage(ctx, id)
		return Load{after, max(0, after.CPUSeconds-before.CPUSeconds) / time.Since(began).Seconds()}, err
	})
	select {
	case r := <-ch:
		return r.Val.(Load), r.Err
	case <-ctx.Done():
		return Load{}, ctx.Err()
	}
}
