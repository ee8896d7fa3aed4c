package reconcile_test

import (
	"context"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// A home that could not be restored is kept. The workspace stays in STANDBY with
// the reason, is not packed repeatedly, and can be used.
func TestUnrestorableHomeIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var jobs atomic.Int32
	w.fake.SetJob(func(ctx context.Context, spec runtime.JobSpec, home string, out io.Writer) int {
		jobs.Add(1)
		if err := tooDeep(home); err != nil {
			t.Error(err)
		}
		return realJob(ctx, spec, home, out)
	})
	w.lead()
	id := w.filled("one", "work")
	w.want(id, workspace.DesiredArchived, false)
	ws := w.await(id, "in STANDBY with the reason", func(ws workspace.Workspace) bool {
		return ws.Phase == workspace.PhaseStandby && ws.Operation == workspace.OpNone && ws.ErrorReason == workspace.ErrUnrestorable
	})
	if ws.Home.State != workspace.HomeLive || !strings.Contains(ws.ErrorMessage, "nnn") || len(ws.ErrorMessage) > 4096 {
		t.Errorf("home %+v, message %q", ws.Home, ws.ErrorMessage)
	}
	if _, ok := w.fake.Home(id); !ok {
		t.Error("the home was removed")
	}
	w.awaitNoJobs(id)
	w.filled("two", "other work") // takes many ticks
	if n := jobs.Load(); n != 1 {
		t.Errorf("it was packed %d times", n)
	}
	if ws := w.row(id); ws.ErrorReason != workspace.ErrUnrestorable {
		t.Errorf("the reason is now %q", ws.ErrorReason)
	}
	if ws := w.opened(id, "work"); ws.ErrorReason != "" {
		t.Errorf("it runs, with the message %q", ws.ErrorReason)
	}
	w.fake.SetJob(realJob)
	w.archived(id)
	w.opened(id, "work")
}

// tooDeep creates a path that is too long for an archive.
func tooDeep(home string) error {
	at, err := unix.Open(home, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { unix.Close(at) }()
	name := strings.Repeat("n", 255)
	for range 1100 {
		if err := unix.Mkdirat(at, name, 0o755); err != nil {
			return err
		}
		next, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		unix.Close(at)
		at = next
	}
	return nil
}
