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
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/postgres"
	"codehub/internal/reconcile"
	"codehub/internal/runtime"
	"codehub/internal/storagejob"
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
	for _, at := range []string{"archive.before-store", "archive.stored", "archive.checked", "archive.volume-removed"} {
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

func TestCancelWhileArchiveIsStored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := w.gate("archive.before-store")
	w.step = g.hold
	w.lead()
	id := w.filled("one", "work")
	w.want(id, workspace.DesiredArchived, false)
	w.reached(g)
	if _, err := w.DB.RequestCancel(t.Context(), w.owner, id); err != nil {
		t.Fatal(err)
	}
	g.letGo()
	if ws := w.awaitPhase(id, workspace.PhaseStandby); ws.ArchiveKey != "" || ws.DesiredState != workspace.DesiredStandby {
		t.Errorf("%s, desired %s", ws.ArchiveKey, ws.DesiredState)
	}
	w.opened(id, "work")
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

// An undelete while the removal of the home is claimed either comes too late or
// keeps the home.
func TestUndeleteWhileRemovalIsClaimed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var id workspace.ID
	var once sync.Once
	w.wrap = func(c *postgres.Controller) reconcile.Rows {
		return rows{Controller: c, before: func(changes []postgres.Change) error {
			for _, c := range changes {
				if c.Seen.ID == id && c.Next.Operation == workspace.OpDeleting && c.Next.Home.State == workspace.HomeDeleting {
					once.Do(func() {
						if _, err := w.DB.UndeleteWorkspace(t.Context(), w.owner, id); err != nil {
							t.Errorf("undelete: %v", err)
						}
					})
				}
			}
			return nil
		}}
	}
	id = w.create("one", workspace.DesiredRunning)
	w.lead()
	w.awaitPhase(id, workspace.PhaseRunning)
	w.write(id, "work")
	if _, err := w.DB.DeleteWorkspace(t.Context(), w.owner, id, false); err != nil {
		t.Fatal(err)
	}
	w.await(id, "back", func(ws workspace.Workspace) bool {
		return ws.DeletedAt == nil && ws.Phase == workspace.PhaseStandby && ws.Operation == workspace.OpNone
	})
	w.opened(id, "work")
}

// frozen is the session of a server that does not tick while it is stopped, as by
// SIGSTOP.
type frozen struct {
	*postgres.Controller
	stopped atomic.Bool
	goOn    chan struct{}
}

func (f *frozen) Candidates(ctx context.Context) ([]*workspace.Workspace, error) {
	if f.stopped.Load() {
		select {
		case <-f.goOn:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return f.Controller.Candidates(ctx)
}

// A leader is stopped at any step and continues after its successor has restored
// the home and its owner has edited it: the home does not change. The test does not
// rely on the old leader's context having ended.
func TestResumedOldLeaderChangesNothing(t *testing.T) {
	t.Parallel()
	for _, at := range reconcile.Steps() {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			g := w.gate(at)
			f := &frozen{goOn: make(chan struct{})}
			w.step = g.hold
			w.wrap = func(c *postgres.Controller) reconcile.Rows { f.Controller = c; return f }
			stopFirst := w.lead()

			var id workspace.ID
			switch {
			case strings.HasPrefix(at, "empty"):
				id = w.create("nothing", workspace.DesiredArchived)
			case strings.HasPrefix(at, "restore"):
				id = w.filled("one", "work")
				w.archived(id)
				w.want(id, workspace.DesiredRunning, false)
			default:
				id = w.filled("one", "work")
				w.want(id, workspace.DesiredArchived, false)
			}
			w.reached(g)
			f.stopped.Store(true)

			w.step, w.wrap = nil, func(c *postgres.Controller) reconcile.Rows { return c }
			settled := w.fake.Calls("SettleVolume")
			stopSecond := w.lead()
			w.await(id, "archived, or back already", func(ws workspace.Workspace) bool {
				return ws.Operation == workspace.OpNone && (ws.Phase == workspace.PhaseArchived || ws.Phase == workspace.PhaseRunning)
			})
			w.want(id, workspace.DesiredRunning, false)
			w.awaitPhase(id, workspace.PhaseRunning)
			if !strings.HasPrefix(at, "empty") {
				w.expect(id, "work")
			}
			w.write(id, "edited")
			w.awaitCalls("SettleVolume", settled+1)
			w.want(id, workspace.DesiredStandby, false)
			before := w.awaitPhase(id, workspace.PhaseStandby)
			home, _ := w.fake.Home(id)
			stopSecond()

			g.letGo()
			w.quiet()
			after, ok := w.fake.Home(id)
			if !ok || fmt.Sprint(after) != fmt.Sprint(home) {
				t.Fatalf("the home was %v and is %v (%v)", home, after, ok)
			}
			stopFirst()
			w.lead()
			if ws := w.opened(id, "edited"); !ws.Home.Equal(before.Home) || ws.ArchiveKey != before.ArchiveKey {
				t.Errorf("%+v has become %+v", before.Home, ws.Home)
			}
			w.archived(id)
			w.opened(id, "edited")
		})
	}
}

// quiet waits until the runtime and the bucket have not been called for a while.
func (w *world) quiet() {
	w.Helper()
	total := func() (n int) {
		for _, op := range []string{"Jobs", "Volumes", "StartJob", "FollowJob", "RemoveJob", "MarkRestored", "RemoveVolume", "CreateVolume", "CreateEmptyVolume"} {
			n += w.fake.Calls(op)
		}
		for _, op := range []string{"State", "Meta", "ArchiveJob", "RestoreJob", "ReadBack", "PutEmpty"} {
			n += w.archives.count(op)
		}
		return n
	}
	for last, since := total(), time.Now(); time.Since(since) < 250*time.Millisecond; time.Sleep(5 * time.Millisecond) {
		if n := total(); n != last {
			last, since = n, time.Now()
		}
	}
}

// An observation with the row from before the archive was stored and the volumes
// from after the removal of the home does not prove data loss.
func TestObservationAcrossRemoval(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before, gone := w.gate("archive.before-store"), make(chan struct{})
	w.step = func(id workspace.ID, step string) {
		before.hold(id, step)
		if step == "archive.volume-removed" {
			close(gone)
		}
	}
	var fails atomic.Int32
	w.wrap = func(c *postgres.Controller) reconcile.Rows {
		return rows{Controller: c, before: func(changes []postgres.Change) error {
			for _, c := range changes {
				if c.Next.ErrorReason == workspace.ErrDataLost {
					fails.Add(1)
				}
			}
			return nil
		}}
	}
	w.lead()
	id := w.filled("one", "work")
	looking := newFirst()
	var hold atomic.Bool
	w.fake.SetBefore(func(ctx context.Context, op string, _ workspace.ID) error {
		if op == "Volumes" && hold.Load() {
			looking.do(func() {
				select {
				case <-gone:
				case <-ctx.Done():
				}
			})
		}
		return nil
	})
	w.want(id, workspace.DesiredArchived, false)
	w.reached(before)
	hold.Store(true)
	<-looking.reached // it has read the row
	before.letGo()
	ws := w.awaitPhase(id, workspace.PhaseArchived)
	w.isArchived(ws)
	if fails.Load() == 0 {
		t.Error("no observation overlapped the removal")
	}
	w.opened(id, "work")
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
	ws := w.await(id, "in ERROR", func(ws workspace.Workspace) bool { return ws.Phase == workspace.PhaseError })
	if ws.ErrorReason != workspace.ErrRetryExceeded || !strings.Contains(ws.ErrorMessage, "exit code 2") ||
		!strings.Contains(ws.ErrorMessage, "index out of range") || ws.Home.State != workspace.HomeLive {
		t.Errorf("%s: %s, home %s", ws.ErrorReason, ws.ErrorMessage, ws.Home.State)
	}
	w.fake.SetJob(realJob)
	if _, err := w.DB.RequestRecover(t.Context(), w.owner, id, workspace.RecoverAfresh); err != nil {
		t.Fatal(err)
	}
	w.awaitPhase(id, workspace.PhaseArchived)
	w.awaitNoJobs(id)
	w.opened(id, "work")
}
