package reconcile_test

import (
	"context"
	"fmt"
	"testing"

	"codehub/internal/reconcile"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// TestProvisioningWithoutSpaceCanBeCancelled: an engine that has no space is
// waited for, however long, and its owner need not wait along.
func TestProvisioningWithoutSpaceCanBeCancelled(t *testing.T) {
	t.Parallel()
	for _, kept := range []bool{true, false} {
		t.Run(fmt.Sprintf("archives %v", kept), func(t *testing.T) {
			t.Parallel()
			var change []func(*world)
			if kept {
				change = append(change, withArchives)
			}
			w := newWorld(t, change...)
			full := make(chan struct{})
			w.fake.SetBefore(func(_ context.Context, op string, _ workspace.ID) error {
				select {
				case <-full:
				default:
					if op == "CreateVolume" {
						return fmt.Errorf("create the volume: %w", runtime.ErrNoSpace)
					}
				}
				return nil
			})
			c, _ := w.leads()
			id := w.create("one", workspace.DesiredRunning)
			w.awaitStatus(c, "the container engine says", func(s reconcile.Status) string { return s.Disk })
			if _, err := w.db.RequestCancel(t.Context(), w.owner, id); err != nil {
				t.Fatal(err)
			}
			rests := workspace.PhasePending
			if kept {
				rests = workspace.PhaseArchived
			}
			w.await(id, "at rest", func(ws workspace.Workspace) bool {
				return ws.Phase == rests && ws.Operation == workspace.OpNone && ws.DesiredState == workspace.DesiredArchived && ws.ErrorReason == ""
			})
			close(full)
			w.want(id, workspace.DesiredRunning, true)
			w.awaitPhase(id, workspace.PhaseRunning)
		})
	}
}
