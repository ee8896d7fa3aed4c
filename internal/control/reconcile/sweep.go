package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// settlement is the progress of settling a workspace's volume.
type settlement struct {
	claim   string
	done    bool
	retryAt time.Time // not before
}

// sweep starts the side tasks of a tick: it probes containers that are not ready,
// settles the volumes of live homes, checks network isolation and disks, handles
// orphans, and drops state that is no longer needed.
func (t *term) sweep(ctx context.Context, seen observation) {
	alive := make(map[string]bool, len(seen.containers))
	for i := range t.inventory.entries {
		e := &t.inventory.entries[i]
		row, k, v := e.row, e.container, e.volume
		if k == nil && (v == nil || e.settled) {
			continue
		}
		if k != nil {
			alive[k.ID] = true
		}
		if k != nil && k.State == runtime.ContainerRunning && row.Operation == workspace.OpNone &&
			!row.Conditions.Is(workspace.ContainerReady) && !t.isAnswered(k.ID) {
			t.effect(ctx, "probe/"+k.ID, t.sideTasks, func(ctx context.Context) bool {
				if t.cfg.Runtime.Probe(ctx, *k) != nil {
					return false
				}
				t.markAnswered(k.ID)
				return true
			})
		}
		if v != nil && !e.settled && row.Home.State == workspace.HomeLive && row.Home.Claim == v.Claim && !t.executes(row) {
			e.settled = t.settle(ctx, row.ID, v.Claim, v.Held)
		}
	}
	t.handleOrphans(ctx, seen)
	t.forget(alive)
	t.prepare(ctx)
	t.checkDisks(ctx)
}

// executes reports whether row has an operation, including one claimed by this tick. The
// runtime allows one task on a home at a time, so settling would wait for it.
func (t *term) executes(row *workspace.Workspace) bool {
	if row.Operation != workspace.OpNone {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.works[row.ID]
	return w != nil && !w.hasEnded()
}

// settle protects the volume of a live home from delayed calls that would wipe or
// remove it, and from `docker volume prune`. It does so once per term, and again
// when the container that holds the volume is gone.
func (t *term) settle(ctx context.Context, id workspace.ID, claim string, held bool) (done bool) {
	if s := t.settlementOf(id, claim, held); s.done || time.Now().Before(s.retryAt) {
		return s.done
	}
	t.effect(ctx, "settle/"+string(id), t.sideTasks, func(ctx context.Context) bool {
		if err := t.settleVolume(ctx, id, claim); err != nil {
			t.cfg.Log.Debug("volume not settled yet", "workspace", id, "err", err)
		}
		return false
	})
	return false
}

// settleNow settles a restored home before its first start. Until then a delayed
// call that would restore another archive cannot be told from a current one.
func (t *term) settleNow(ctx context.Context, id workspace.ID, claim string) error {
	if t.settlementOf(id, claim, true).done {
		return nil
	}
	if err := t.settleVolume(ctx, id, claim); err != nil {
		return fmt.Errorf("settle the restored home: %w", err)
	}
	return nil
}

func (t *term) settleVolume(ctx context.Context, id workspace.ID, claim string) error {
	err := t.cfg.Runtime.SettleVolume(ctx, id, claim)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settled[id] = settlement{claim: claim, done: err == nil, retryAt: time.Now().Add(2 * t.cfg.IdleInterval)}
	return err
}

// settlementOf returns the progress of settling the home. If the observation shows
// that the volume is not held, it must be settled again.
func (t *term) settlementOf(id workspace.ID, claim string, held bool) settlement {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.settled[id]
	if s.claim != claim {
		return settlement{}
	}
	if !held && s.done {
		s.done = false
		t.settled[id] = s
	}
	return s
}

// forget drops the state of containers and operations that no longer exist.
func (t *term) forget(alive map[string]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, at := range t.answered {
		// A container that answered after this tick began may be missing in its
		// observation.
		if !alive[id] && at.Before(t.tickBegan) {
			delete(t.answered, id)
		}
	}
	for id, w := range t.works {
		// An operation claimed in this tick is missing in the rows that the tick
		// began with.
		if opID, ok := t.inventory.opID(id); w.hasEnded() && w.began.Before(t.tickBegan) && (!ok || opID != w.opID) {
			delete(t.works, id)
		}
	}
	t.crashes.forget(&t.inventory)
	t.bucket.forget(&t.inventory)
	for id := range t.settled {
		if !t.inventory.has(id) {
			delete(t.settled, id)
		}
	}
	for id := range t.refusedRows {
		if !t.inventory.has(id) {
			delete(t.refusedRows, id)
		}
	}
	for id, done := range t.stopping {
		select {
		case <-done:
			delete(t.stopping, id)
		default:
		}
	}
}

// setIsolation records the result of Runtime.Prepare.
func (t *term) setIsolation(err error) {
	var open *runtime.IsolationError
	if !errors.As(err, &open) {
		t.wall.Set(err)
		if err == nil {
			t.open.Set(nil)
			t.unchecked.Set(nil)
		}
		return
	}
	t.wall.Set(nil)
	if open.Unknown {
		t.unchecked.Set(open) // what the last check found stays
	} else {
		t.open.Set(open)
		t.unchecked.Set(nil)
	}
}

// prepare checks and repairs the network isolation outside the tick, about once per
// idle interval.
func (t *term) prepare(ctx context.Context) {
	if time.Since(t.preparedAt) < t.cfg.IdleInterval {
		return
	}
	t.preparedAt = time.Now()
	t.effect(ctx, "prepare", nil, func(ctx context.Context) bool {
		err := t.cfg.Runtime.Prepare(ctx)
		if err != nil && context.Cause(ctx) == context.Canceled {
			return false
		}
		t.setIsolation(err)
		return false
	})
}
