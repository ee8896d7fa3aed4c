package reconcile_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"codehub/internal/control/reconcile"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/storage/storagejob"
	"codehub/internal/workspace"
)

// An archive is cancelled after it was stored and read back, the owner edits, and
// the home is archived again: the first upload is not used.
func TestCancelledArchiveIsNotReused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := w.gate("archive.verified")
	w.step = g.hold
	w.lead()
	id := w.filled("one", "work")
	w.want(id, workspace.DesiredArchived, false)
	w.reached(g)
	first := w.row(id).ArchiveOpID
	w.want(id, workspace.DesiredRunning, true)
	w.await(id, "given up", func(ws workspace.Workspace) bool { return ws.Operation != workspace.OpArchiving })
	g.letGo()
	ws := w.awaitPhase(id, workspace.PhaseRunning)
	if ws.ArchiveKey != "" || ws.Home.State != workspace.HomeLive {
		t.Errorf("the cancelled archive is the current one: %s, home %s", ws.ArchiveKey, ws.Home.State)
	}
	w.write(id, "edited")
	ws = w.archived(id)
	if ws.ArchiveOpID == first || ws.ArchiveKey == w.archives.Key(id, first) {
		t.Error("the earlier upload is the current archive")
	}
	w.opened(id, "edited")
}

// A request to start arrives while archive_key is stored: before it the home stays,
// after it the home is restored.
func TestStartWhileArchiveIsStored(t *testing.T) {
	t.Parallel()
	for _, at := range few("archive.before-store", "archive.volume-removed", "archive.stored", "archive.checked") {
		for _, state := range []workspace.DesiredState{workspace.DesiredStandby, workspace.DesiredRunning} {
			t.Run(fmt.Sprint(at, " ", state), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				g := w.gate(at)
				w.step = g.hold
				w.lead()
				id := w.filled("one", "work")
				before := w.row(id).Home.Claim
				w.want(id, workspace.DesiredArchived, false)
				w.reached(g)
				w.want(id, state, true)
				g.letGo()
				ws := w.await(id, "as wished", func(ws workspace.Workspace) bool {
					return ws.Phase == workspace.Phase(state) && ws.Operation == workspace.OpNone && ws.DesiredState == state
				})
				w.expect(id, "work")
				if kept := ws.Home.Claim == before; kept != (at == "archive.before-store") {
					t.Errorf("the home was kept: %v", kept)
				}
				if ws.ErrorCount != 0 {
					t.Errorf("%d failures", ws.ErrorCount)
				}
			})
		}
	}
}

// slowStore cancels the operation while its archive is being stored.
type slowStore struct {
	*postgres.Controller
	cancelled, storing chan struct{}
}

func (s slowStore) Apply(ctx context.Context, changes []postgres.Change) ([]bool, error) {
	landed, err := s.Controller.Apply(ctx, changes)
	for _, c := range changes {
		if c.Seen.Operation == workspace.OpArchiving && c.Next.Operation == workspace.OpNone {
			close(s.cancelled)
			<-s.storing
		}
	}
	return landed, err
}

func (s slowStore) StoreArchive(ctx context.Context, a postgres.Stored) (bool, error) {
	<-s.cancelled
	err := s.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		close(s.storing)
		_, err := conn.Exec(ctx, `SELECT pg_sleep(0.2)`)
		return err
	})
	if err != nil {
		return false, err
	}
	return s.Controller.StoreArchive(ctx, a)
}

// Cancelling an operation during a statement of its executor does not close the
// leader's session.
func TestCancelKeepsSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.wrap = func(c *postgres.Controller) reconcile.Rows {
		return slowStore{c, make(chan struct{}), make(chan struct{})}
	}
	g := w.gate("archive.before-store")
	w.step = g.hold
	w.lead() // reports an error of Run
	id := w.filled("one", "work")
	w.want(id, workspace.DesiredArchived, false)
	w.reached(g)
	w.want(id, workspace.DesiredRunning, true)
	g.letGo()
	if ws := w.awaitPhase(id, workspace.PhaseRunning); ws.ArchiveKey != "" {
		t.Errorf("its archive is %s", ws.ArchiveKey)
	}
	w.expect(id, "work")
}

func TestJobOfAnotherClaimIsIgnored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var jobs atomic.Int32
	w.fake.SetJob(func(ctx context.Context, spec runtime.JobSpec, home string, out io.Writer) int {
		if jobs.Add(1) > 1 {
			return realJob(ctx, spec, home, out)
		}
		// The archive is complete, but its claim is an old one.
		var orders storagejob.Spec
		if err := json.Unmarshal(spec.Input, &orders); err != nil {
			t.Error(err)
		}
		orders.Claim, orders.Meta.ArchiveOpID = "019a0000-0000-7000-8000-000000000009", "019a0000-0000-7000-8000-000000000009"
		input, err := json.Marshal(orders)
		if err != nil {
			t.Error(err)
		}
		spec.Input = input
		return realJob(ctx, spec, home, out)
	})
	failed := w.watchErrors()
	w.lead()
	id := w.filled("one", "work")
	w.archived(id)
	if messages := failed(); len(messages) != 1 || !strings.Contains(messages[0], "reports on") {
		t.Errorf("failures: %q", messages)
	}
	if jobs.Load() != 2 {
		t.Errorf("%d jobs", jobs.Load())
	}
	w.opened(id, "work")
}

// watchErrors collects the errors of operations. It ignores decisions that the
// database did not accept.
func (w *world) watchErrors() func() []string {
	var mu sync.Mutex
	var messages []string
	w.wrap = func(c *postgres.Controller) reconcile.Rows {
		return watched{c, func(changes []postgres.Change, landed []bool) {
			mu.Lock()
			defer mu.Unlock()
			for i, c := range changes {
				if landed[i] && c.Next.ErrorCount > c.Seen.ErrorCount {
					messages = append(messages, c.Next.ErrorMessage)
				}
			}
		}}
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return messages
	}
}

// watched reports the result of each change.
type watched struct {
	*postgres.Controller
	after func(changes []postgres.Change, landed []bool)
}

func (w watched) Apply(ctx context.Context, changes []postgres.Change) ([]bool, error) {
	landed, err := w.Controller.Apply(ctx, changes)
	if landed != nil {
		w.after(changes, landed)
	}
	return landed, err
}

// A job that did not receive its instructions, because the server was killed, is
// started once more without a failure.
func TestJobWithoutInstructions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		times int32
		fails int
	}{{"once", 1, 0}, {"again and again", 2, 1}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var jobs atomic.Int32
			w.fake.SetJob(func(ctx context.Context, spec runtime.JobSpec, home string, out io.Writer) int {
				if jobs.Add(1) <= c.times {
					spec.Input = spec.Input[:len(spec.Input)/2]
				}
				return realJob(ctx, spec, home, out)
			})
			failed := w.watchErrors()
			w.lead()
			id := w.filled("one", "work")
			w.archived(id)
			if messages := failed(); len(messages) != c.fails {
				t.Errorf("failures: %q", messages)
			}
		})
	}
}

// A job without a valid result fails in the end, and the home stays.
func TestJobWithoutAResult(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.SetJob(func(_ context.Context, _ runtime.JobSpec, _ string, out io.Writer) int {
		fmt.Fprintln(out, "panic: runtime error: index out of range")
		fmt.Fprintln(out, `{"progress": {"step": "packing", "bytes": 12}}`)
		fmt.Fprintln(out, `{"unknown": true}`)
		return 2
	})
	w.lead()
	id := w.filled("one", "work")
	w.want(id, workspace.DesiredArchived, false)
	ws := w.awaitPhase(id, workspace.PhaseError)
	if ws.ErrorReason != workspace.ErrRetryExceeded || !strings.Contains(ws.ErrorMessage, "exit code 2") ||
		!strings.Contains(ws.ErrorMessage, "index out of range") || ws.Home.State != workspace.HomeLive {
		t.Errorf("%s: %s, home %s", ws.ErrorReason, ws.ErrorMessage, ws.Home.State)
	}
	w.fake.SetJob(realJob)
	w.recovered(id, workspace.RecoverAfresh)
	w.awaitPhase(id, workspace.PhaseArchived)
	w.awaitNoJobs(id)
	w.opened(id, "work")
}
