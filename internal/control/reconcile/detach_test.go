package reconcile

import (
	"context"
	"testing"

	"codehub/internal/workspace"
)

// An archived or deleted home is complete when its volume is gone. The executor
// still removes the volume's record, and the workspace's next executor waits for
// it.
func TestDetachedWorkFinishes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		end  func(*term, workspace.ID, string)
		ends bool
	}{{(*term).detachWork, false}, {(*term).cancelWork, true}} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		tm := &term{works: map[workspace.ID]*work{}, stopping: map[workspace.ID]chan struct{}{}}
		w := newWork(archivingRow, cancel, nil)
		tm.works["w"] = w
		c.end(tm, "w", "another claim")
		if tm.works["w"] != w {
			t.Fatal("the work of another claim was ended")
		}
		c.end(tm, "w", "claim")
		if tm.works["w"] != nil || tm.stopping["w"] != w.done || (ctx.Err() != nil) != c.ends {
			t.Errorf("works %v, leaving %v, ended %v, want %v", tm.works, tm.stopping, ctx.Err(), c.ends)
		}
	}
}
