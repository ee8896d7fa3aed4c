package bus

import (
	"context"
	"sync"
	"time"

	"codehub/internal/workspace"
)

// Wanted is one workspace that a subscriber has to be told of.
type Wanted struct {
	Owner string
	ID    workspace.ID
}

// Batched makes a Loader of what reads many workspaces at once; what is not
// there, or not its owner's, is left out. While something is being read, what
// is asked for meanwhile waits and is then read together: a burst of events
// costs the database a few statements. Every load begins after it was asked
// for, so that it sees the change that it was asked for.
func Batched(load func(ctx context.Context, wanted []Wanted) ([]workspace.Workspace, error)) Loader {
	b := &batch{load: load, turn: make(chan struct{}, loadsAtOnce)}
	return b.one
}

const (
	// loadsAtOnce is how many loads run at the same time.
	loadsAtOnce = 2
	// maxBatch bounds one load.
	maxBatch = 500
	// loadWithin bounds a load, which nobody else's end interrupts.
	loadWithin = 5 * time.Second
)

type batch struct {
	load func(ctx context.Context, wanted []Wanted) ([]workspace.Workspace, error)
	turn chan struct{}

	mu   sync.Mutex
	next *round // that may still be joined; nil: none
}

// round is one load.
type round struct {
	wanted map[Wanted]struct{} // until begun
	begun  bool
	done   chan struct{}
	// Once done:
	rows map[workspace.ID]workspace.Workspace
	err  error
}

func (b *batch) one(ctx context.Context, owner string, id workspace.ID) (workspace.Workspace, error) {
	r := b.join(Wanted{owner, id})
	select {
	case <-r.done:
	case <-ctx.Done():
		return workspace.Workspace{}, ctx.Err()
	case b.turn <- struct{}{}:
		b.run(ctx, r)
		<-r.done // somebody else may have begun it
	}
	if r.err != nil {
		return workspace.Workspace{}, r.err
	}
	w, ok := r.rows[id]
	if !ok || w.OwnerID != owner {
		return workspace.Workspace{}, workspace.NotFound("workspace")
	}
	return w, nil
}

func (b *batch) join(w Wanted) *round {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.next
	if r == nil || len(r.wanted) >= maxBatch {
		r = &round{wanted: map[Wanted]struct{}{}, done: make(chan struct{})}
		b.next = r
	}
	r.wanted[w] = struct{}{}
	return r
}

// run carries a round out, unless somebody has begun to, and gives up the turn.
func (b *batch) run(ctx context.Context, r *round) {
	defer func() { <-b.turn }()
	b.mu.Lock()
	begun := r.begun
	r.begun = true
	if b.next == r {
		b.next = nil
	}
	b.mu.Unlock()
	if begun {
		return
	}
	defer close(r.done)
	wanted := make([]Wanted, 0, len(r.wanted))
	for w := range r.wanted {
		wanted = append(wanted, w)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadWithin)
	defer cancel()
	rows, err := b.load(ctx, wanted)
	if err != nil {
		r.err = err
		return
	}
	r.rows = make(map[workspace.ID]workspace.Workspace, len(rows))
	for _, w := range rows {
		r.rows[w.ID] = w
	}
}
