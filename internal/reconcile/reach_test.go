package reconcile_test

import (
	"context"
	"io"
	"testing"
	"time"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// A job that waits for another server to relay what it asks is done over by
// the one that leads now: the other may never come back.
func TestJobOfAnotherServersSocket(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withArchives)
	w.archives.socket = "/run/first"
	w.fake.SetJob(func(ctx context.Context, spec runtime.JobSpec, home string, out io.Writer) int {
		if spec.BucketDir == "/run/first" {
			<-ctx.Done() // nobody answers it any more
			return 1
		}
		return realJob(ctx, spec, home, out)
	})
	for _, step := range []struct {
		at    string
		wish  workspace.DesiredState
		phase workspace.Phase
	}{
		{"archive.job-started", workspace.DesiredArchived, workspace.PhaseArchived},
		{"restore.job-started", workspace.DesiredRunning, workspace.PhaseRunning},
	} {
		t.Run(step.at, func(t *testing.T) {
			w.archives.socket = "/run/second"
			stop := w.lead()
			id := w.filled(step.at, "work")
			if step.wish == workspace.DesiredRunning {
				w.archived(id)
			}
			stop()
			w.archives.socket = "/run/first"
			g := w.gate(step.at)
			w.step = g.hold
			stop = w.lead()
			w.want(id, step.wish, false)
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
