package reconcile_test

import (
	"context"
	"io"
	"testing"
	"time"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// The new leader replaces a job that waits for the relay of another server, which
// may never return.
func TestJobOfAnotherServersRelayIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.archives.socket = "/run/first"
	w.fake.SetJob(func(ctx context.Context, spec runtime.JobSpec, home string, out io.Writer) int {
		if spec.BucketDir == "/run/first" {
			<-ctx.Done() // the relay is gone
			return 1
		}
		return realJob(ctx, spec, home, out)
	})
	for _, step := range []struct {
		at    string
		state workspace.DesiredState
		phase workspace.Phase
	}{
		{"archive.job-started", workspace.DesiredArchived, workspace.PhaseArchived},
		{"restore.job-started", workspace.DesiredRunning, workspace.PhaseRunning},
	} {
		t.Run(step.at, func(t *testing.T) {
			w.archives.socket = "/run/second"
			stop := w.lead()
			id := w.filled(step.at, "work")
			if step.state == workspace.DesiredRunning {
				w.archived(id)
			}
			stop()
			w.archives.socket = "/run/first"
			g := w.gate(step.at)
			w.step = g.hold
			stop = w.lead()
			w.want(id, step.state, false)
			w.reached(g)
			time.AfterFunc(10*time.Millisecond, g.letGo)
			stop()
			w.archives.socket = "/run/second"
			stop = w.lead()
			defer stop()
			if ws := w.awaitPhase(id, step.phase); ws.ErrorCount != 0 {
				t.Errorf("it counted as %d failures: %s", ws.ErrorCount, ws.ErrorMessage)
			}
			w.opened(id, "work")
		})
	}
}
