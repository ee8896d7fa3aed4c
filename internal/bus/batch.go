package bus

import (
	"context"
	"sync"
	"time"

	"codehub/internal/workspace"
)

// Wanted identifies a workspace to load for a subscriber.
type Wanted struct {
	Owner string
	ID    workspace.ID
}

// Batched makes a Loader from a function that reads many workspaces with one
// statement and omits those that do not exist or have another owner. Requests that
// arrive during a load wait and share the next one, so that a burst of events costs
// few statements. Every load begins after it was requested, so it includes the
// change that caused the request.
func Batched(load func(ctx context.Context, wanted []Wanted) ([]workspace.Workspace, error)) Loader {
	b := &batch{load: load, turn: make(chan struct{}, maxLoads)}
	return b.one
}

const (
	// maxLoads limits concurrent loads.
	maxLoads = 2
	// maxBatch limits the size of one load.
	maxBatch = 500
	// loadTimeout limits a load, which does not end with the request that started
	// it.
	loadTimeout = 5 * time.Second
)

type batch struct {
	load func(ctx context.Context, wanted []Wanted) ([]workspace.Workspace, error)
	turn chan struct{}

	mu   sync.Mutex
	next *round // can still be joined; nil: none
}

// round is one load.
type round struct {
	wanted map[Wanted]struct{} // until the load begins
	begun  bool
	done   chan struct{}
	// Set when done is closed:
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
		<-r.done // another request may have started it
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

// run carries out a round, unless another request has started it, and frees the
// slot.
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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTimeout)
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
