package reconcile

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"codehub/internal/judge"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// observation is what the backend said of everything at once: one list call
// for each kind of thing (design §4).
type observation struct {
	containers map[workspace.ID]*runtime.Container
	volumes    map[workspace.ID]*runtime.Volume
}

func (t *term) observe(ctx context.Context, rows []workspace.Workspace) (observation, error) {
	var containers []runtime.Container
	var volumes []runtime.Volume
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		containers, err = t.cfg.Runtime.Containers(gctx)
		return err
	})
	g.Go(func() (err error) {
		volumes, err = t.cfg.Runtime.Volumes(gctx)
		return err
	})
	err := g.Wait()
	if err != nil {
		return observation{}, fmt.Errorf("observe: %w", err)
	}
	seen := observation{
		containers: make(map[workspace.ID]*runtime.Container, len(containers)),
		volumes:    make(map[workspace.ID]*runtime.Volume, len(volumes)),
	}
	for i := range containers {
		seen.containers[containers[i].Workspace] = &containers[i]
	}
	for i := range volumes {
		seen.volumes[volumes[i].Workspace] = &volumes[i]
	}
	if !t.cfg.AcceptVolumeLoss {
		if lost, of := seen.lost(rows); of >= 5 && lost*5 > of {
			return observation{}, fmt.Errorf("%d of %d volumes: %w", lost, of, errVolumesGone)
		}
	}
	return seen, nil
}

// lost counts the volumes that were there at the last observation and are not
// in this one (design §2: more than 20 % of at least five is no observation,
// but an engine that came back with another data folder).
func (o observation) lost(rows []workspace.Workspace) (lost, of int) {
	for _, row := range rows {
		if row.Home.State != workspace.HomeLive || !row.Conditions.Is(workspace.VolumeReady) {
			continue
		}
		of++
		if v := o.volumes[row.ID]; v == nil || v.Claim != row.Home.Claim {
			lost++
		}
	}
	return lost, of
}

// of is the observation of one workspace, as the judge takes it.
func (o observation) of(row workspace.Workspace, answered func(containerID string) bool) judge.Observation {
	j := judge.Observation{ContainerKnown: true, VolumeKnown: true}
	if k := o.containers[row.ID]; k != nil {
		c := judge.Container{ID: k.ID, Detail: k.Detail}
		switch k.State {
		case runtime.ContainerCreated:
			c.State = judge.Created
		case runtime.ContainerRunning:
			c.State = judge.Running
			c.Answers = answered(k.ID)
		default:
			c.State = judge.Exited
		}
		j.Container = &c
	}
	if v := o.volumes[row.ID]; v != nil {
		j.Volume = &judge.Volume{Claim: v.Claim, Seeded: v.Seeded}
	}
	return j
}

func (t *term) markAnswered(containerID string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answered[containerID] = true
}

func (t *term) isAnswered(containerID string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.answered[containerID]
}

// sweep runs what keeps the world tidy, beside the tick: it asks containers
// that have not answered yet, settles seeded volumes, has the surroundings of
// the containers checked, and forgets what is gone.
func (t *term) sweep(ctx context.Context, rows []workspace.Workspace, seen observation) {
	alive := make(map[string]bool, len(seen.containers))
	for _, row := range rows {
		k, v := seen.containers[row.ID], seen.volumes[row.ID]
		if k != nil {
			alive[k.ID] = true
		}
		if k != nil && k.State == runtime.ContainerRunning && row.Operation == workspace.OpNone &&
			!row.Conditions.Is(workspace.ContainerReady) && !t.isAnswered(k.ID) {
			t.effect("probe/"+k.ID, func() bool {
				if t.cfg.Runtime.Probe(ctx, *k) != nil {
					return false
				}
				t.markAnswered(k.ID)
				return true
			})
		}
		if v != nil && v.Seeded && row.Home.State == workspace.HomeLive && row.Home.Claim == v.Claim && t.settled[row.ID] != v.Claim {
			t.settled[row.ID] = v.Claim // once in a term is enough: it may be repeated, and need not be
			t.effect("settle/"+string(row.ID), func() bool {
				if err := t.cfg.Runtime.SettleVolume(ctx, row.ID, v.Claim); err != nil && ctx.Err() == nil {
					t.cfg.Log.Warn("volume not settled", "workspace", row.ID, "err", err)
				}
				return false
			})
		}
	}
	t.forget(rows, alive)
	t.prepare(ctx)
}

// forget drops what is known of containers and operations that are no more.
func (t *term) forget(rows []workspace.Workspace, alive map[string]bool) {
	current := make(map[workspace.ID]string, len(rows))
	for _, row := range rows {
		current[row.ID] = row.OpID
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for id := range t.answered {
		if !alive[id] {
			delete(t.answered, id)
		}
	}
	for id, w := range t.works {
		// A claim of this very tick is not in the rows that the tick began with.
		if opID, ok := current[id]; w.over() && w.began.Before(t.began) && (!ok || opID != w.opID) {
			delete(t.works, id)
		}
	}
	for id := range t.settled {
		if _, ok := current[id]; !ok {
			delete(t.settled, id)
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
	t.effect("prepare", func() bool {
		err := t.cfg.Runtime.Prepare(ctx)
		if ctx.Err() != nil {
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
			}
		}
		return false
	})
}
