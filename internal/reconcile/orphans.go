package reconcile

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// Kinds of what may belong to no workspace.
const (
	orphanContainer = "container"
	orphanVolume    = "volume"
	orphanJob       = "job"
)

// orphansMost bounds how many of a kind are written down.
const orphansMost = 1000

// orphans is what belongs to no workspace, as the database has it: since when
// is kept there, so that another leader goes on counting. It is the tick's,
// but for what is written beside it.
type orphans struct {
	loaded bool
	list   map[orphanKey]orphan
	next   time.Time // not written again before, after an error
}

type orphanKey struct{ kind, name string }

type orphan struct {
	postgres.Orphan
	since time.Time // by this process's clock
}

// stranger is what an observation has of something that belongs to no
// workspace, and how it is removed.
type stranger struct {
	postgres.Orphan
	id     workspace.ID
	remove func(ctx context.Context) // nil for what is kept
}

// tidy notes the containers, homes and storage jobs whose workspace the
// database does not have: one that the engine finished making after its
// workspace was gone, or after the database was restored from a backup. They
// are nobody's, and nobody reaches them. Containers and jobs are removed once
// they have been known for CODEHUB_ORPHAN_DELAY, if a fresh look at the rows
// says the same; a home is never removed here.
func (t *term) tidy(ctx context.Context, seen observation) {
	var found []stranger
	if t.roll.strange || len(seen.jobs) > 0 {
		found = t.strangers(ctx, seen)
	}
	found = append(found, t.asideOrphans(ctx)...)
	t.sayStrangers(found)
	known := t.knownOrphans()
	if !known.loaded || differ(found, known.list) {
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
		t.reap(ctx, s)
	}
}

func (t *term) orphanDelay() time.Duration {
	if t.cfg.OrphanDelay > 0 {
		return t.cfg.OrphanDelay
	}
	return 2 * t.cfg.IdleInterval
}

// strangers are those of the observation, at most orphansMost of a kind. So
// many at once that they are rather of a database that is not the usual one
// are kept.
func (t *term) strangers(ctx context.Context, seen observation) []stranger {
	var out []stranger
	containers, volumes := t.share(seen.containers), t.shareOfVolumes(seen.volumes)
	for id, k := range seen.containers {
		if t.roll.has(id) {
			continue
		}
		s := stranger{id: id, Orphan: orphanOf(orphanContainer, k.ID, id, stateWords(k.State)), remove: func(ctx context.Context) {
			t.cfg.Log.Warn("removing a container that belongs to no workspace", "workspace", id, "container", k.ID, "state", k.Detail)
			if err := t.removeContainer(ctx, id, k, t.cfg.StopGrace); err != nil {
				t.cfg.Log.Debug("container not removed yet", "container", k.ID, "err", err)
			}
		}}
		out = append(out, s.keptIf(containers))
	}
	for id, v := range seen.volumes {
		if !t.roll.has(id) && !v.Foreign {
			out = append(out, stranger{id: id, Orphan: orphanOf(orphanVolume, id.VolumeName(), id, v.Storage)}.keptIf("a home is never removed by itself"))
		}
	}
	for id, jobs := range seen.jobs {
		for _, j := range jobs {
			if t.roll.has(id) {
				continue
			}
			s := stranger{id: id, Orphan: orphanOf(orphanJob, j.ID, id, string(j.Kind)), remove: func(context.Context) { t.endJob(t.ctx, j) }}
			if holds(j, seen.volumes[id]) {
				s = s.keptIf("it tells what its home was restored from")
			}
			out = append(out, s.keptIf(volumes))
		}
	}
	return bounded(out)
}

func orphanOf(kind, name string, id workspace.ID, detail string) postgres.Orphan {
	return postgres.Orphan{Kind: kind, Name: name, WorkspaceID: string(id), Detail: detail}
}

// keptIf keeps what there is a reason for to keep.
func (s stranger) keptIf(why string) stranger {
	if why != "" {
		s.Kept, s.remove, s.Detail = true, nil, s.Detail+"; kept: "+why
	}
	return s
}

func stateWords(s runtime.ContainerState) string {
	switch s {
	case runtime.ContainerCreated:
		return "created"
	case runtime.ContainerRunning:
		return "running"
	}
	return "exited"
}

// share says that suspiciously many belong to nobody, or nothing.
func (t *term) share(containers map[workspace.ID]*runtime.Container) string {
	return t.suspicious("containers", len(containers), func(yield func(workspace.ID) bool) {
		for id := range containers {
			if !yield(id) {
				return
			}
		}
	})
}

func (t *term) shareOfVolumes(volumes map[workspace.ID]*runtime.Volume) string {
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
		if !t.roll.has(id) {
			ownerless++
		}
	}
	if all < 5 || ownerless*5 <= all {
		return ""
	}
	return fmt.Sprintf("%d of %d %s belong to no workspace; is this the right database?", ownerless, all, what)
}

// bounded is list in order, and of each kind no more than orphansMost.
func bounded(list []stranger) []stranger {
	slices.SortFunc(list, func(a, b stranger) int {
		if c := strings.Compare(a.Kind, b.Kind); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	count := map[string]int{}
	return slices.DeleteFunc(list, func(s stranger) bool {
		count[s.Kind]++
		return count[s.Kind] > orphansMost
	})
}

// sayStrangers tells in the status when suspiciously many are kept.
func (t *term) sayStrangers(found []stranger) {
	said := ""
	for _, s := range found {
		if _, why, ok := strings.Cut(s.Detail, "; kept: "); ok && s.Kind == orphanContainer {
			said = why
		}
	}
	if t.saidStrange == said {
		return
	}
	t.saidStrange = said
	t.update(func(s *Status) { s.Strange = said })
	if said != "" {
		t.cfg.Log.Error("suspiciously many containers belong to no workspace; none of them is removed", "why", said)
	}
}

// differ reports whether the database has something else written down.
func differ(found []stranger, list map[orphanKey]orphan) bool {
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

// writeOrphans writes down what was found, beside the tick.
func (t *term) writeOrphans(ctx context.Context, found []stranger) {
	if time.Now().Before(t.knownOrphans().next) {
		return
	}
	seen := make([]postgres.Orphan, len(found))
	for i, s := range found {
		seen[i] = s.Orphan
	}
	t.effect(ctx, "orphans", nil, func(ctx context.Context) bool {
		var list []postgres.Orphan
		err := t.through(ctx, func(ctx context.Context) (err error) {
			list, err = t.rows.SaveOrphans(ctx, seen)
			return err
		})
		now := time.Now()
		t.mu.Lock()
		defer t.mu.Unlock()
		if err != nil {
			t.cfg.Log.Debug("what belongs to no workspace is not written down yet", "err", err)
			t.orphans.next = now.Add(t.cfg.IdleInterval)
			return false
		}
		t.orphans = orphans{loaded: true, list: make(map[orphanKey]orphan, len(list))}
		for _, o := range list {
			t.orphans.list[orphanKey{o.Kind, o.Name}] = orphan{Orphan: o, since: now.Add(-o.Age)}
		}
		return false
	})
}

// reap removes a stranger beside the tick, unless the database has its
// workspace by now.
func (t *term) reap(ctx context.Context, s stranger) {
	t.effect(ctx, "remove/"+s.Name, t.hands, func(ctx context.Context) bool {
		owned := true
		err := t.through(ctx, func(ctx context.Context) (err error) {
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
