package reconcile

import (
	"context"
	"fmt"
	"time"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// settlement is how far the settling of a workspace's volume is.
type settlement struct {
	claim string
	done  bool
	again time.Time // not before
}

// sweep runs what keeps the world tidy, beside the tick: it asks containers
// that have not answered yet, settles the volumes of live homes, has the surroundings of
// the containers checked, removes what nobody owns, and forgets what is gone.
func (t *term) sweep(ctx context.Context, seen observation) {
	alive := make(map[string]bool, len(seen.containers))
	for i := range t.roll.entries {
		e := &t.roll.entries[i]
		row, k, v := e.row, e.container, e.volume
		if k == nil && (v == nil || e.settled) {
			continue
		}
		if k != nil {
			alive[k.ID] = true
		}
		if k != nil && k.State == runtime.ContainerRunning && row.Operation == workspace.OpNone &&
			!row.Conditions.Is(workspace.ContainerReady) && !t.isAnswered(k.ID) {
			t.effect(ctx, "probe/"+k.ID, t.hands, func(ctx context.Context) bool {
				if t.cfg.Runtime.Probe(ctx, *k) != nil {
					return false
				}
				t.markAnswered(k.ID)
				return true
			})
		}
		if v != nil && !e.settled && row.Home.State == workspace.HomeLive && row.Home.Claim == v.Claim {
			e.settled = t.settle(ctx, row.ID, v.Claim, v.Held)
		}
	}
	t.tidy(ctx, seen)
	t.forget(alive)
	t.prepare(ctx)
	t.weigh(ctx)
}

// settle makes sure that a live home is never wiped or removed by a call that
// comes too late, or by people who tidy up: once in a term, and again whenever
// what holds it has gone.
func (t *term) settle(ctx context.Context, id workspace.ID, claim string, held bool) (done bool) {
	if s := t.settlementOf(id, claim, held); s.done || time.Now().Before(s.again) {
		return s.done
	}
	t.effect(ctx, "settle/"+string(id), t.hands, func(ctx context.Context) bool {
		if err := t.settleVolume(ctx, id, claim); err != nil {
			t.cfg.Log.Debug("volume not settled yet", "workspace", id, "err", err)
		}
		return false
	})
	return false
}

// settleNow does the same at once, for a home that was restored and is about
// to be started on: a late call that was to restore something else into it
// cannot be told from a present one until it is settled.
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
	t.settled[id] = settlement{claim: claim, done: err == nil, again: time.Now().Add(2 * t.cfg.IdleInterval)}
	return err
}

// settlementOf tells how far the settling of the home is. One that was seen not
// to be held is not settled, whatever was done before: a start does it anew.
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

// forget drops what is known of containers and operations that are no more.
func (t *term) forget(alive map[string]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, at := range t.answered {
		// What answered after this tick began may not be in what it saw.
		if !alive[id] && at.Before(t.began) {
			delete(t.answered, id)
		}
	}
	for id, w := range t.works {
		// A claim of this very tick is not in the rows that the tick began with.
		if opID, ok := t.roll.opID(id); w.over() && w.began.Before(t.began) && (!ok || opID != w.opID) {
			delete(t.works, id)
		}
	}
	t.crashes.forget(&t.roll)
	t.bucket.forget(&t.roll)
	for id := range t.settled {
		if !t.roll.has(id) {
			delete(t.settled, id)
		}
	}
	for id := range t.refused {
		if !t.roll.has(id) {
			delete(t.refused, id)
		}
	}
	for id, done := range t.leaving {
		select {
		case <-done:
			delete(t.leaving, id)
		default:
		}
	}
}

// prepare has the surroundings of the containers checked and repaired, beside
// the tick and about once in every idle interval.
func (t *term) prepare(ctx context.Context) {
	if time.Since(t.prepared) < t.cfg.IdleInterval {
		return
	}
	t.prepared = time.Now()
	t.effect(ctx, "prepare", nil, func(ctx context.Context) bool {
		err := t.cfg.Runtime.Prepare(ctx)
		if err != nil && context.Cause(ctx) == context.Canceled {
			return false
		}
		said := ""
		if err != nil {
			said = err.Error()
		}
		if before := t.Status().Wall; before != said {
			t.update(func(s *Status) { s.Wall = said })
			if err != nil {
				t.cfg.Log.Error("what has to stand around the containers does not; nothing is started", "err", err)
			} else {
				t.cfg.Log.Info("what has to stand around the containers stands again")
			}
		}
		return false
	})
}
