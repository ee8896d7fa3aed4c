// Package usage records what workspaces use of the server, by day: the time that they run,
// processor and memory time as their agents report it, and the sizes of homes and archives. It
// runs on the leader. docs/administration.md describes the figures.
package usage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"codehub/internal/base/health"
	"codehub/internal/postgres"
	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// Agents asks the agents of running workspaces.
type Agents interface {
	// Usage returns what a workspace uses. It starts no workspace, and is no activity.
	Usage(ctx context.Context, id workspace.ID) (agent.Usage, error)
}

// Homes measures the sizes of homes.
type Homes interface {
	// HomeSizes measures all homes, or only some.
	HomeSizes(ctx context.Context, only ...workspace.ID) (map[workspace.ID]int64, error)
	// HomeSize measures one home; known is false if it cannot be measured.
	HomeSize(ctx context.Context, id workspace.ID) (size int64, known bool, err error)
}

// Config holds a Runner's dependencies and settings.
type Config struct {
	Agents Agents
	Homes  Homes // nil: sizes of homes are not known
	postgres.UsageSettings
	// Sizes bound what an agent reports, which its workspace's user controls, and have the
	// limits of homes.
	Sizes workspace.Sizes
	// MaxBytes is the limit of bytes of owners who have no other one; 0: none.
	MaxBytes int64
	Interval time.Duration // between two samples; 0: a minute
	// Conditions lists that use cannot be recorded; nil: it is only logged.
	Conditions *health.Monitor
	Log        *slog.Logger
}

const (
	// askTimeout limits one question, and asksTimeout all of a sample.
	askTimeout  = 2 * time.Second
	asksTimeout = 20 * time.Second
	askAtOnce   = 32
	// sizesTimeout limits a measurement of all homes.
	sizesTimeout = 30 * time.Minute
)

// Runner samples while this server leads.
type Runner struct {
	cfg                 Config
	samples, size, full *health.Condition
}

// New returns a Runner.
func New(cfg Config) *Runner {
	if cfg.Interval <= 0 {
		cfg.Interval = time.Minute
	}
	condition := func(failing, resolved string) *health.Condition {
		return cfg.Conditions.New(health.Config{Name: "usage", Failing: failing, Resolved: resolved, Level: slog.LevelWarn, Log: cfg.Log})
	}
	return &Runner{cfg: cfg,
		samples: condition("record the use of workspaces failed; retrying", "the use of workspaces is recorded again"),
		size:    condition("measure the sizes of homes failed; retrying", "the sizes of homes are measured again"),
		full:    condition("measure new and full homes failed; retrying", "new and full homes are measured again"),
	}
}

// sample is what was last known of a running workspace.
type sample struct {
	at    time.Time
	owner string
	cpu   float64   // seconds since the container started; -1: not known
	cpuAt time.Time // when the agent reported cpu
}

// Run samples through the leader's session until ctx ends.
func (r *Runner) Run(ctx context.Context, session postgres.Session) error {
	store := postgres.NewUsage(session)
	defer r.samples.Reset()
	defer r.size.Reset()
	defer r.full.Reset()
	var measuring sync.WaitGroup
	defer measuring.Wait()
	measuring.Go(func() { r.measure(ctx, store) })
	t := time.NewTicker(r.cfg.Interval)
	defer t.Stop()
	last := map[workspace.ID]sample{}
	for {
		var err error
		if last, err = r.sample(ctx, store, last); ctx.Err() != nil {
			return nil
		}
		r.samples.Set(err)
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// sample records the use since the last sample and returns the new one. A workspace counts from
// the second sample on in which it runs.
func (r *Runner) sample(ctx context.Context, store *postgres.Usage, last map[workspace.ID]sample) (map[workspace.ID]sample, error) {
	list, err := store.Running(ctx)
	if err != nil {
		return last, err
	}
	answers := r.ask(ctx, list)
	now := time.Now()
	next := make(map[workspace.ID]sample, len(list))
	var used []postgres.Used
	for _, w := range list {
		answer, answered := answers[w.ID]
		before, known := last[w.ID]
		// Nobody has observed the time of a long gap.
		known = known && before.owner == w.OwnerID && now.Sub(before.at) <= 3*r.cfg.Interval
		s := before.next(known, now, w.OwnerID, answer, answered)
		next[w.ID] = s
		if known {
			used = append(used, postgres.Used{RunningWorkspace: w, Spent: spent(before, s, answer, r.cfg.Sizes.Of(w.Size))})
		}
	}
	if len(used) == 0 {
		return next, nil
	}
	return next, store.Add(ctx, used)
}

// next is the sample after s, which is known if nothing but time has passed since. Without an
// answer it keeps the last one: the next answer has what was used since.
func (s sample) next(known bool, now time.Time, owner string, answer agent.Usage, answered bool) sample {
	out := sample{at: now, owner: owner, cpu: -1}
	switch {
	case answered:
		out.cpu, out.cpuAt = answer.CPUSeconds, now
	case known:
		out.cpu, out.cpuAt = s.cpu, s.cpuAt
	}
	return out
}

// spent is the use between two samples of a workspace of that size: of a processor, since the
// agent's last answer. Without an answer to the second one it is the running time alone.
func spent(before, now sample, answer agent.Usage, size workspace.Size) postgres.Spent {
	seconds := now.at.Sub(before.at).Seconds()
	out := postgres.Spent{RunningSeconds: seconds}
	if !now.cpuAt.Equal(now.at) {
		return out
	}
	if before.cpu >= 0 {
		out.CPUSeconds = now.cpu - before.cpu
		if out.CPUSeconds < 0 { // another container
			out.CPUSeconds = now.cpu
		}
		out.CPUSeconds = max(0, out.CPUSeconds)
		if size.NanoCPUs > 0 {
			out.CPUSeconds = min(out.CPUSeconds, size.Cores()*now.at.Sub(before.cpuAt).Seconds())
		}
	}
	memory := max(0, answer.Memory)
	if size.Memory > 0 {
		memory = min(memory, size.Memory)
	}
	out.MemorySeconds = float64(memory) * seconds
	return out
}

// ask asks the agents. One that does not answer in time is not in the result.
func (r *Runner) ask(ctx context.Context, list []postgres.RunningWorkspace) map[workspace.ID]agent.Usage {
	ctx, cancel := context.WithTimeout(ctx, asksTimeout)
	defer cancel()
	var mu sync.Mutex
	var asking sync.WaitGroup
	answers := map[workspace.ID]agent.Usage{}
	slots := make(chan struct{}, askAtOnce)
	for _, w := range list {
		slots <- struct{}{}
		asking.Go(func() {
			defer func() { <-slots }()
			one, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			u, err := r.cfg.Agents.Usage(one, w.ID)
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			answers[w.ID] = u
		})
	}
	asking.Wait()
	return answers
}

// measure measures the sizes of homes and removes old use, at the beginning and then at every
// interval, until ctx ends.
func (r *Runner) measure(ctx context.Context, store *postgres.Usage) {
	interval := r.cfg.SizeInterval
	if interval <= 0 {
		interval = time.Hour
	}
	again := time.NewTicker(r.cfg.Interval)
	defer again.Stop()
	full, tried := fullHomes{}, map[workspace.ID]bool{}
	for {
		r.size.Set(r.measureOnce(ctx, store))
		next := time.After(interval)
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return
			case <-next:
				waiting = false
			case <-again.C:
				err := errors.Join(r.measureNew(ctx, store, tried), r.measureFull(ctx, store, full))
				if ctx.Err() == nil {
					r.full.Set(err)
				}
			}
		}
	}
}

// measureNew measures the homes that were created or restored since all were measured, together
// and once each: where Docker measures volumes, it reads all of them each time. A home that cannot
// be measured waits for the next measurement of all.
func (r *Runner) measureNew(ctx context.Context, store *postgres.Usage, tried map[workspace.ID]bool) error {
	if r.cfg.Homes == nil || r.cfg.SizeInterval <= 0 {
		return nil
	}
	list, err := store.Unmeasured(ctx)
	if err != nil {
		return err
	}
	maps.DeleteFunc(tried, func(id workspace.ID, _ bool) bool { return !slices.Contains(list, id) })
	list = slices.DeleteFunc(list, func(id workspace.ID) bool { return tried[id] })
	if len(list) == 0 {
		return nil
	}
	for _, id := range list {
		tried[id] = true
	}
	measured, cancel := context.WithTimeout(ctx, fullTimeout)
	defer cancel()
	sizes, err := r.cfg.Homes.HomeSizes(measured, list...)
	if err != nil {
		return err
	}
	for _, id := range list {
		if size, known := sizes[id]; known {
			if err := store.SetSize(ctx, id, size); err != nil {
				return err
			}
		}
	}
	return nil
}

// fullHomes are the homes that are near their limits or whose owners are at theirs, and when each
// was last measured alone, or could not be.
type fullHomes map[workspace.ID]time.Time

const (
	// fullInterval is the time between two measurements of a full home that is in use.
	fullInterval = 5 * time.Minute
	// fullTimeout limits the measurement of one.
	fullTimeout = 5 * time.Minute
)

// measureFull measures the homes that are near or over their limits, and those of owners at their
// limit of bytes, again: while they are in use, and once after that. So the owner sees that
// deleting files has helped, and a workspace that may be started again is. A home that cannot be
// measured does not keep the others waiting.
func (r *Runner) measureFull(ctx context.Context, store *postgres.Usage, full fullHomes) error {
	if r.cfg.Homes == nil || r.cfg.SizeInterval <= 0 {
		return nil
	}
	list, err := store.Filled(ctx, leastNear(r.cfg.Sizes), r.cfg.MaxBytes)
	if err != nil {
		return err
	}
	var failed []error
	present := map[workspace.ID]bool{}
	for _, h := range list {
		space := lifecycle.SpaceOf(workspace.Workspace{Size: h.Size, HomeBytes: &h.Bytes}, r.cfg.Sizes)
		if !h.OwnerFull && (h.Enforced || !space.Near()) {
			continue
		}
		present[h.ID] = true
		last, measured := full[h.ID]
		if measured && (h.Running && h.Now.Sub(last) < fullInterval || !h.Running && last.After(h.PhasedAt)) {
			continue
		}
		err := r.measureHome(ctx, store, h.ID)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("workspace %s: %w", h.ID, err))
		}
		full[h.ID] = h.Now
	}
	maps.DeleteFunc(full, func(id workspace.ID, _ time.Time) bool { return !present[id] })
	return errors.Join(failed...)
}

// measureHome measures one home and records its size.
func (r *Runner) measureHome(ctx context.Context, store *postgres.Usage, id workspace.ID) error {
	measured, cancel := context.WithTimeout(ctx, fullTimeout)
	defer cancel()
	size, known, err := r.cfg.Homes.HomeSize(measured, id)
	if err != nil || !known {
		return err
	}
	return store.SetSize(ctx, id, size)
}

// leastNear is a size that no home near its limit is below; 0: no size has a limit.
func leastNear(sizes workspace.Sizes) int64 {
	least := int64(0)
	for _, s := range append([]workspace.Size{sizes.Default}, sizes.Offered...) {
		if s.Disk > 0 && (least == 0 || s.Disk < least) {
			least = s.Disk
		}
	}
	return least / 2
}

func (r *Runner) measureOnce(ctx context.Context, store *postgres.Usage) error {
	if r.cfg.SizeInterval <= 0 {
		return store.Trim(ctx, r.cfg.Keep)
	}
	var homes map[workspace.ID]int64
	if r.cfg.Homes != nil {
		measured, cancel := context.WithTimeout(ctx, sizesTimeout)
		defer cancel()
		var err error
		if homes, err = r.cfg.Homes.HomeSizes(measured); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
	if err := store.SetSizes(ctx, homes); err != nil || ctx.Err() != nil {
		return err
	}
	return store.Trim(ctx, r.cfg.Keep)
}
