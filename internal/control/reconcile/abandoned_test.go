package reconcile

import (
	"context"
	"testing"
	"testing/synctest"

	"codehub/internal/workspace"
)

// stuckRead is a database without workspaces whose first read waits for release.
type stuckRead struct {
	tickTimes
	release chan struct{}
}

func (r *stuckRead) Candidates(ctx context.Context) ([]*workspace.Workspace, error) {
	<-r.release
	return nil, ctx.Err()
}

// Package lease abandons a term that does not return in time, for example because an executor reads
// from a disk that does not respond. Its late return changes no status of the next term.
func TestAbandonedTermReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := pacedController()
		first := &stuckRead{release: make(chan struct{})}
		ctx, end := context.WithCancel(t.Context())
		returned := make(chan error)
		go func() { returned <- c.Run(ctx, first) }()
		synctest.Wait()
		end()
		next, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Run(next, &tickTimes{}) }()
		synctest.Wait()
		close(first.release)
		if err := <-returned; err != nil {
			t.Error(err)
		}
		if !c.Status().Leading {
			t.Error("the next term leads no more")
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if c.Status().Leading {
			t.Error("it leads after the last term")
		}
	})
}
