package reconcile

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"codehub/internal/base/health"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// Kinds of orphans.
const (
	orphanContainer = "container"
	orphanVolume    = "volume"
	orphanJob       = "job"
)

// maxOrphansPerKind limits how many orphans of a kind are recorded.
const maxOrphansPerKind = 1000

// orphans is the database's list of orphans. It stores since when each has been
// one, so that the delay survives a change of the leader. Only the tick reads it;
// side tasks replace it.
type orphans struct {
	loaded bool
	list   map[orphanKey]recordedOrphan
	next   time.Time // no write before then, after an error
}

type orphanKey struct{ kind, name string }

type recordedOrphan struct {
	postgres.Orphan
	since time.Time // by this process's clock
}

// observedOrphan is an observed resource without a workspace, and how to remove it.
type observedOrphan struct {
	postgres.Orphan
	id     workspace.ID
	remove func(ctx context.Context) // nil: it is kept
}

// handleOrphans records the containers, homes and storage jobs whose workspace does
// not exist: Docker finished creating them after the workspace was deleted, or the
// database was restored from a backup. Containers and jobs are removed after
// CODEHUB_ORPHAN_DELAY if a second query still finds no workspace for them. Homes
// are never removed here.
func (t *term) handleOrphans(ctx context.Context, seen observation) {
	var found []observedOrphan
	if t.inventory.hasOrphans || len(seen.jobs) > 0 {
		found = t.observedOrphans(ctx, seen)
	}
	found = append(found, t.asideOrphans(ctx)...)
	t.reportOrphans(found)
	known := t.knownOrphans()
	if !known.loaded || orphansChanged(found, known.list) {
		t.writeOrphans(ctx, found)
	}
	if !t.removable {
		return
	}
	for _, s := range found {
		o, ok := known.list[orphanKey{s.Kind, s.Name}]
		if !ok || s.remove == nil || time.Since(o.since) < t.orphanDelay() {
			continue
		}
		t.removeOrphan(ctx, s)
	}
}

func (t *term) orphanDelay() time.Duration {
	if t.cfg.OrphanDelay > 0 {
		return t.cfg.OrphanDelay
	}
	return 2 * t.cfg.IdleInterval
}

// observedOrphans lists the orphans of the observation, at most maxOrphansPerKind
// of a kind. If suspiciously many are orphans, they are kept: the database may be
// the wrong one.
func (t *term) observedOrphans(ctx context.Context, seen observation) []observedOrphan {
	var out []observedOrphan
	containers, volumes := t.suspiciousContainers(seen.containers), t.suspiciousVolumes(seen.volumes)
	for id, k := range seen.containers {
		if t.inventory.has(id) {
			continue
		}
		s := observedOrphan{id: id, Orphan: orphanOf(orphanContainer, k.ID, id, stateName(k.State)), remove: func(ctx context.Context) {
			t.cfg.Log.Warn("removing orphaned container", "workspace", id, "container", k.ID, "state", k.Detail)
			if err := t.removeContainer(ctx, id, k, t.cfg.StopGrace); err != nil {
				t.cfg.Log.Debug("container not removed yet", "container", k.ID, "err", err)
			}
		}}
		out = append(out, s.keepBecause(containers))
	}
	for id, v := range seen.volumes {
		if !t.inventory.has(id) && !v.Foreign {
			out = append(out, observedOrphan{id: id, Orphan: orphanOf(orphanVolume, id.VolumeName(), id, v.Storage)}.keepBecause("homes are never removed automatically"))
		}
	}
	for id, jobs := range seen.jobs {
		for _, j := range jobs {
			if t.inventory.has(id) {
				continue
			}
			s := observedOrphan{id: id, Orphan: orphanOf(orphanJob, j.ID, id, string(j.Kind)), remove: func(context.Context) { t.endJob(t.ctx, j) }}
			if holds(j, seen.volumes[id]) {
				s = s.keepBecause("it records which archive its home was restored from")
			}
			out = append(out, s.keepBecause(volumes))
		}
	}
	return limitPerKind(out)
}

func orphanOf(kind, name string, id workspace.ID, detail string) postgres.Orphan {
	return postgres.Orphan{Kind: kind, Name: name, WorkspaceID: string(id), Detail: detail}
}

// keepBecause marks the orphan as kept, unless reason is empty.
func (s observedOrphan) keepBecause(reason string) observedOrphan {
	if reason != "" {
		s.Kept, s.remove, s.Detail = true, nil, s.Detail+"; kept: "+reason
	}
	return s
}

func stateName(s runtime.ContainerState) string {
	switch s {
	case runtime.ContainerCreated:
		return "created"
	case runtime.ContainerRunning:
		return "running"
	}
	return "exited"
}

// suspiciousContainers returns why the orphaned containers are kept, or "" if they
// may be removed.
func (t *term) suspiciousContainers(containers map[workspace.ID]*runtime.Container) string {
	return t.suspicious("containers", len(containers), func(yield func(workspace.ID) bool) {
		for id := range containers {
			if !yield(id) {
				return
			}
		}
	})
}

func (t *term) suspiciousVolumes(volumes map[workspace.ID]*runtime.Volume) string {
	return t.suspicious("homes", len(volumes), func(yield func(workspace.ID) bool) {
		for id, v := range volumes {
			if !v.Foreign && !yield(id) {
				return
			}
		}
	})
}

func (t *term) suspicious(what string, all int, ids func(func(workspace.ID) bool)) string {
	ownerless := 0
	for id := range ids {
		if !t.inventory.has(id) {
			ownerless++
		}
	}
	if all < 5 || ownerless*5 <= all {
		return ""
	}
	return fmt.Sprintf("%d of %d %s are orphans; check that this is the right database", ownerless, all, what)
}

// limitPerKind sorts list and keeps at most maxOrphansPerKind of each kind.
func limitPerKind(list []observedOrphan) []observedOrphan {
	slices.SortFunc(list, func(a, b observedOrphan) int {
		if c := strings.Compare(a.Kind, b.Kind); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	count := map[string]int{}
	return slices.DeleteFunc(list, func(s observedOrphan) bool {
		count[s.Kind]++
		return count[s.Kind] > maxOrphansPerKind
	})
}

// reportOrphans sets Status.Orphans when suspiciously many containers are orphans.
func (t *term) reportOrphans(found []observedOrphan) {
	message := ""
	for _, s := range found {
		if _, why, ok := strings.Cut(s.Detail, "; kept: "); ok && s.Kind == orphanContainer {
			message = why
		}
	}
	t.orphaned.Set(health.Error(message))
}

// orphansChanged reports whether the observed orphans differ from the recorded
// ones.
func orphansChanged(found []observedOrphan, list map[orphanKey]recordedOrphan) bool {
	if len(found) != len(list) {
		return true
	}
	for _, s := range found {
		o, ok := list[orphanKey{s.Kind, s.Name}]
		if !ok || o.Detail != s.Detail || o.Kept != s.Kept || o.WorkspaceID != s.WorkspaceID {
			return true
		}
	}
	return false
}

func (t *term) knownOrphans() orphans {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.orphans
}

// writeOrphans records the observed orphans outside the tick.
func (t *term) writeOrphans(ctx context.Context, found []observedOrphan) {
	if time.Now().Before(t.knownOrphans().next) {
		return
	}
	seen := make([]postgres.Orphan, len(found))
	for i, s := range found {
		seen[i] = s.Orphan
	}
	t.effect(ctx, "orphans", nil, func(ctx context.Context) bool {
		var list []postgres.Orphan
		err := t.inSession(ctx, func(ctx context.Context) (err error) {
			list, err = t.rows.SaveOrphans(ctx, seen)
			return err
		})
		now := time.Now()
		t.mu.Lock()
		defer t.mu.Unlock()
		if err != nil {
			t.cfg.Log.Debug("record orphans failed", "err", err)
			t.orphans.next = now.Add(t.cfg.IdleInterval)
			return false
		}
		t.orphans = orphans{loaded: true, list: make(map[orphanKey]recordedOrphan, len(list))}
		for _, o := range list {
			t.orphans.list[orphanKey{o.Kind, o.Name}] = recordedOrphan{Orphan: o, since: now.Add(-o.Age)}
		}
		return false
	})
}

// removeOrphan removes an orphan outside the tick, unless its workspace exists by
// now.
func (t *term) removeOrphan(ctx context.Context, s observedOrphan) {
	t.effect(ctx, "remove/"+s.Name, t.sideTasks, func(ctx context.Context) bool {
		owned := true
		err := t.inSession(ctx, func(ctx context.Context) (err error) {
			owned, err = t.rows.Owned(ctx, s.id)
			return err
		})
		if err != nil || owned {
			return false
		}
		s.remove(ctx)
		return false
	})
}
