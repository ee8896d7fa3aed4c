package ttl

import (
	"context"
	"errors"
	"sync"
	"time"

	"codehub/internal/bus/activity"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
)

// Agents asks the agents of running workspaces.
type Agents interface {
	// Usage returns what a workspace uses, and what keeps it awake. It starts no workspace.
	Usage(ctx context.Context, id workspace.ID) (agent.Usage, error)
}

const (
	// askAhead is how long before the end of the idle timeout an agent is asked: early enough
	// that a workspace in use shows no warning of a stop (docs/workspaces.md#idle-workspaces).
	askAhead = 6 * time.Minute
	// askTimeout limits one question, and asksTimeout all of a tick. A workspace whose agent does
	// not answer is stopped, one that was not asked is not.
	askTimeout  = 2 * time.Second
	asksTimeout = 20 * time.Second
	// askAtOnce is how many agents are asked at a time, and askMost in one tick. listMost is how
	// many workspaces are listed, so that those that cannot be asked are known.
	askAtOnce = 32
	askMost   = 2000
	listMost  = 20 * askMost
)

// sample is a reading of the processor time of a workspace.
type sample struct {
	at      time.Time
	seconds float64
}

// asked is an agent's answer.
type asked struct {
	agent.Usage
	// work is how many processors were at work since the sample before; 0 without one.
	work float64
}

// confirm asks the agents of the workspaces that are stopped soon, and records those that
// are in use. It returns those of which that is not known, which must not be stopped.
func (t *term) confirm(ctx context.Context) (unknown []workspace.ID, err error) {
	if t.cfg.Agents == nil || t.cfg.BusyMax <= 0 && t.cfg.WorkMax <= 0 {
		return nil, nil
	}
	list, err := t.idle.IdleSoon(ctx, t.cfg.TTL.Standby, askAhead+t.cfg.Interval, listMost)
	if err != nil {
		return nil, err
	}
	answers, unknown := t.ask(ctx, list)
	var confirmed []postgres.Confirmed
	for _, w := range list {
		answer, ok := answers[w.ID]
		if !ok {
			continue
		}
		if kind, busy := inUse(w, answer, t.cfg.Settings); kind != "" {
			confirmed = append(confirmed, postgres.Confirmed{ID: w.ID, Kind: kind, Busy: busy})
			t.cfg.Log.Debug("workspace is busy", "workspace", w.ID, "kind", kind)
		}
	}
	if len(confirmed) == 0 {
		return unknown, nil
	}
	return unknown, t.idle.Confirm(ctx, confirmed)
}

// ask asks the agents, and keeps samples of those that answered. The use of a workspace is unknown
// if the runtime did not say where its agent is, if there was no time to ask, or if its processes
// count and this is the first sample of them.
func (t *term) ask(ctx context.Context, list []postgres.IdleSoon) (answers map[workspace.ID]asked, unknown []workspace.ID) {
	ctx, cancel := context.WithTimeout(ctx, asksTimeout)
	defer cancel()
	var mu sync.Mutex
	var asking sync.WaitGroup
	samples := map[workspace.ID]sample{}
	answers = map[workspace.ID]asked{}
	leave := func(id workspace.ID) {
		mu.Lock()
		defer mu.Unlock()
		unknown = append(unknown, id)
		if before, ok := t.samples[id]; ok {
			samples[id] = before
		}
	}
	slots := make(chan struct{}, askAtOnce)
	for n, w := range list {
		if n >= askMost || ctx.Err() != nil {
			leave(w.ID)
			continue
		}
		slots <- struct{}{}
		asking.Go(func() {
			defer func() { <-slots }()
			one, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			usage, err := t.cfg.Agents.Usage(one, w.ID)
			if err != nil {
				t.cfg.Log.Debug("ask an agent failed", "workspace", w.ID, "err", err)
				if ctx.Err() != nil || errors.Is(err, runtime.ErrUnreachable) || errors.Is(err, runtime.ErrBusy) {
					leave(w.ID)
				}
				return
			}
			now := sample{time.Now(), usage.CPUSeconds}
			mu.Lock()
			defer mu.Unlock()
			before, sampled := t.samples[w.ID]
			if w.AwakeWhileWorking && !sampled && t.cfg.WorkMax > 0 {
				unknown = append(unknown, w.ID)
			}
			answers[w.ID], samples[w.ID] = asked{usage, workSince(before, now)}, now
		})
	}
	asking.Wait()
	t.samples = samples
	return answers, unknown
}

// workSince returns how many processors were at work between two samples; 0 if that is not
// known.
func workSince(before, now sample) float64 {
	took := now.at.Sub(before.at).Seconds()
	if before.at.IsZero() || took <= 0 || now.seconds < before.seconds { // another container
		return 0
	}
	return (now.seconds - before.seconds) / took
}

// inUse decides by the agent's answer whether a workspace that is idle soon is active, and
// returns the kind of activity and what to record. Holders count until they have kept the
// workspace awake for BusyMax without other activity; processes at work, if the owner has
// enabled that, for WorkMax per day. The workspace's user controls the agent, so both limits
// are enforced here.
func inUse(w postgres.IdleSoon, a asked, s Settings) (activity.Kind, postgres.Busy) {
	busy := w.Busy
	// Other activity restarts the time of the holders.
	if busy.ConfirmedAt == nil || w.LastUse != nil && w.LastUse.After(*busy.ConfirmedAt) {
		busy.HeldSince = nil
	}
	busy.ConfirmedAt = &w.Now
	if len(a.Holders) > 0 && s.BusyMax > 0 {
		if busy.HeldSince == nil {
			busy.HeldSince = &w.Now
		}
		if w.Now.Sub(*busy.HeldSince) < s.BusyMax {
			return activity.Busy, busy
		}
	}
	if !w.AwakeWhileWorking || a.work*100 < float64(s.WorkThreshold) {
		return "", w.Busy
	}
	today := w.Now.UTC().Truncate(24 * time.Hour)
	if busy.WorkDay == nil || !busy.WorkDay.Equal(today) {
		busy.WorkDay, busy.WorkSeconds = &today, 0
	}
	busy.WorkSeconds += int(w.Now.Sub(later(w.IdleSince, today)).Seconds())
	if time.Duration(busy.WorkSeconds)*time.Second > s.WorkMax {
		return "", w.Busy
	}
	return activity.Work, busy
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
