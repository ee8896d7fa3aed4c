package reconcile

import (
	"context"
	"testing"

	"codehub/internal/workspace"
)

// An archived or deleted home is gone for everybody once its volume is; the
// executor goes on to remove what told of it, and the next one waits for that.
func TestRemovalIsNotCutOff(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		end  func(*term, workspace.ID, string)
		ends bool
	}{{(*term).letEnd, false}, {(*term).drop, true}} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		tm := &term{works: map[workspace.ID]*work{}, leaving: map[workspace.ID]chan struct{}{}}
		w := newWork(archivingRow, cancel, nil)
		tm.works["w"] = w
		c.end(tm, "w", "another claim")
		if tm.works["w"] != w {
			t.Fatal("the work of another claim was ended")
		}
		c.end(tm, "w", "claim")
		if tm.works["w"] != nil || tm.leaving["w"] != w.done || (ctx.Err() != nil) != c.ends {
			t.Errorf("works %v, leaving %v, ended %v, want %v", tm.works, tm.leaving, ctx.Err(), c.ends)
		}
	}
}
