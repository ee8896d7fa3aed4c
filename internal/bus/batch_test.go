package bus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"codehub/internal/workspace"
)

// reader is a slow table.
type reader struct {
	rows
	takes time.Duration
	calls atomic.Int32
	most  atomic.Int32
}

func (r *reader) many(ctx context.Context, wanted []Wanted) (list []workspace.Workspace, err error) {
	r.calls.Add(1)
	r.most.Store(max(r.most.Load(), int32(len(wanted))))
	for _, w := range wanted {
		row, err := r.load(ctx, w.Owner, w.ID)
		switch code := workspace.CodeOf(err); {
		case err == nil:
			list = append(list, row)
		case code != workspace.CodeNotFound && code != workspace.CodeForbidden:
			return nil, err
		}
	}
	select { // read what was there before
	case <-time.After(r.takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return list, nil
}

func TestBatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reader{takes: 10 * time.Millisecond}
		load := Batched(r.many)
		const n = 1000
		for i := range n {
			r.set("ann", workspace.ID(fmt.Sprint(i)), fmt.Sprint("name ", i))
		}
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				id := workspace.ID(fmt.Sprint(i))
				if w, err := load(t.Context(), "ann", id); err != nil || w.Name != fmt.Sprint("name ", i) {
					t.Errorf("%s: %+v, %v", id, w, err)
				}
				if _, err := load(t.Context(), "eve", id); workspace.CodeOf(err) != workspace.CodeNotFound {
					t.Errorf("another user's: %v", err)
				}
			})
		}
		wg.Wait()
		if calls := r.calls.Load(); calls > 20 || r.most.Load() > maxBatch {
			t.Errorf("%d calls, of at most %d", calls, r.most.Load())
		}
	})
}

// A load sees the state as of its request, whatever is being read at that time.
func TestBatchedLoadsAfterRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reader{takes: 10 * time.Millisecond}
		load := Batched(r.many)
		var wg sync.WaitGroup
		for i := range 100 {
			name := fmt.Sprintf("%03d", i)
			r.set("ann", "a", name)
			wg.Go(func() {
				if w, err := load(t.Context(), "ann", "a"); err != nil || w.Name < name {
					t.Errorf("%s when it was %s: %v", w.Name, name, err)
				}
			})
			time.Sleep(3 * time.Millisecond)
		}
		wg.Wait()
	})
}

func TestBatchedFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("down")
		r := &reader{takes: time.Hour}
		r.set("ann", "a", "1")
		load := Batched(r.many)
		// A cancelled request does not cancel the others.
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), loadTimeout*3)
				if i%2 == 0 {
					ctx, cancel = context.WithTimeout(t.Context(), time.Second)
				}
				defer cancel()
				if _, err := load(ctx, "ann", "a"); !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		time.Sleep(loadTimeout)
		r.takes, r.down = 0, down
		if _, err := load(t.Context(), "ann", "a"); !errors.Is(err, down) {
			t.Error(err)
		}
		r.down = nil
		if w, err := load(t.Context(), "ann", "a"); err != nil || w.Name != "1" {
			t.Error(w, err)
		}
	})
}
