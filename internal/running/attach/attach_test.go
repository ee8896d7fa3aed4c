package attach_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"codehub/internal/bus/activity"
	"codehub/internal/running/attach"
	"codehub/internal/runtime"
	"codehub/internal/runtime/agent"
	"codehub/internal/runtime/agent/inside"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

const id = workspace.ID("01890a5d-ac96-774b-bcce-b302099a8057")

var ann = workspace.Caller{UserID: "ann", Session: "s"}

// world is a database, a runtime and the sessions of one workspace.
type world struct {
	mu       sync.Mutex
	row      workspace.Workspace
	err      error // of reading the row
	upstream runtime.Upstream
	gone     error // of the upstream
	wakes    int
	reads    int
	onWake   func(*world)
	onRead   func()

	sessions map[string]context.CancelCauseFunc
}

var errLoggedOut = errors.New("logged out")

func (w *world) EnterableWorkspace(context.Context, workspace.Caller, workspace.ID) (workspace.Workspace, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads++
	if w.onRead != nil {
		w.mu.Unlock() // other reads go on meanwhile
		w.onRead()
		w.mu.Lock()
	}
	return w.row, w.err
}

func (w *world) Wake(context.Context, workspace.Caller, workspace.ID) (workspace.Workspace, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wakes++
	w.onWake(w)
	return w.row, w.err
}

func (w *world) Upstream(context.Context, workspace.ID) (runtime.Upstream, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.upstream, w.gone
}

func (w *world) Watch(ctx context.Context, session string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sessions[session] = cancel
	return ctx, func() { cancel(nil) }
}

// set changes the world and reports the event.
func (w *world) set(a *attach.Attacher, f func(*world)) {
	w.mu.Lock()
	f(w)
	w.mu.Unlock()
	a.Changed(id)
}

func (w *world) count(f func(*world) int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return f(w)
}

func running(w *world) {
	w.row.Phase, w.row.DesiredState, w.row.Operation = workspace.PhaseRunning, workspace.DesiredRunning, workspace.OpNone
}

func stopped(w *world) {
	w.row.Phase, w.row.DesiredState, w.row.Operation = workspace.PhaseStandby, workspace.DesiredStandby, workspace.OpNone
}

// newWorld returns a running workspace with an agent. Without an event nothing is read
// again.
func newWorld(t *testing.T) (*world, *attach.Attacher) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := inside.NewServer(inside.Config{Secret: "secret", Home: t.TempDir(), Processes: &inside.Processes{}, Log: slog.New(slog.DiscardHandler)})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() { l.Close(); <-done })
	w := &world{
		row:      workspace.Workspace{ID: id, OwnerID: ann.UserID},
		upstream: runtime.Upstream{ContainerID: "one", Agent: l.Addr().String(), Secret: "secret"},
		sessions: map[string]context.CancelCauseFunc{},
	}
	running(w)
	return w, attach.New(attach.Config{Store: w, Runtime: w, Sessions: w, Activity: activity.New(), PerUser: 3, CheckInterval: time.Hour})
}

func TestAttachToRunning(t *testing.T) {
	t.Parallel()
	_, a := newWorld(t)
	x, err := a.Attach(t.Context(), ann, id, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if _, err := x.Agent.Hello(t.Context()); err != nil {
		t.Error(err)
	}
	x.Used(activity.Typing)
	x.Close()
	if cause := context.Cause(x.Context()); !errors.Is(cause, attach.ErrClosed) {
		t.Error(cause)
	}
}

func TestAttachRunningWakesNothing(t *testing.T) {
	t.Parallel()
	w, a := newWorld(t)
	x, err := a.AttachRunning(t.Context(), ann, id)
	if err != nil {
		t.Fatal(err)
	}
	x.Close()
	stopped(w)
	var closed *attach.NotOpen
	if _, err := a.AttachRunning(t.Context(), ann, id); !errors.As(err, &closed) {
		t.Error(err)
	}
	if n := w.count(func(w *world) int { return w.wakes }); n != 0 {
		t.Errorf("%d wakes", n)
	}
}

func TestAttachNeedsDecision(t *testing.T) {
	t.Parallel()
	for phase, opening := range map[workspace.Phase]lifecycle.Opening{
		workspace.PhaseArchived: lifecycle.OpenRestores, workspace.PhaseError: lifecycle.OpenFails, workspace.PhasePending: lifecycle.OpenCreates,
	} {
		w, a := newWorld(t)
		w.row.Phase, w.row.DesiredState = phase, workspace.DesiredArchived
		_, err := a.Attach(t.Context(), ann, id, nil)
		var not *attach.NotOpen
		if !errors.As(err, &not) || not.Opening != opening || not.Error() == "" {
			t.Errorf("%s: %v", phase, err)
		}
	}
}

func TestAttachIsRefused(t *testing.T) {
	t.Parallel()
	w, a := newWorld(t)
	w.err = workspace.Errorf(workspace.CodeForbidden, "This workspace belongs to another user.")
	if _, err := a.Attach(t.Context(), ann, id, nil); workspace.CodeOf(err) != workspace.CodeForbidden {
		t.Error(err)
	}
	w.err = nil
	w.upstream.Agent = ""
	if _, err := a.Attach(t.Context(), ann, id, nil); !errors.Is(err, attach.ErrNoAgent) {
		t.Error(err)
	}
}

func TestAttachmentsOfUserAreLimited(t *testing.T) {
	t.Parallel()
	_, a := newWorld(t)
	var open []*attach.Attachment
	for range 3 {
		x, err := a.Attach(t.Context(), ann, id, nil)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, x)
	}
	if _, err := a.Attach(t.Context(), ann, id, nil); !errors.Is(err, attach.ErrTooMany) {
		t.Error(err)
	}
	if x, err := a.Attach(t.Context(), workspace.Caller{UserID: "bob"}, id, nil); err != nil {
		t.Error(err)
	} else {
		x.Close()
	}
	open[0].Close()
	open[0].Close() // twice has no effect
	x, err := a.Attach(t.Context(), ann, id, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range append(open[1:], x) {
		x.Close()
	}
}

func TestAttachmentEnds(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*world, *attach.Attacher)
		want   error
	}{
		"stopped": {func(w *world, a *attach.Attacher) { w.set(a, stopped) }, attach.ErrStopped},
		"container replaced": {func(w *world, a *attach.Attacher) {
			w.set(a, func(w *world) { w.upstream.ContainerID = "two" })
		}, attach.ErrStopped},
		"container gone": {func(w *world, a *attach.Attacher) { w.set(a, func(w *world) { w.gone = runtime.ErrNotFound }) }, attach.ErrStopped},
		"handed over": {func(w *world, a *attach.Attacher) {
			w.set(a, func(w *world) {
				w.err = workspace.Errorf(workspace.CodeForbidden, "This workspace belongs to another user.")
			})
		}, attach.ErrAccessEnded},
		"deleted": {func(w *world, a *attach.Attacher) {
			w.set(a, func(w *world) { w.row.Phase, w.row.Operation = workspace.PhaseDeleting, workspace.OpDeleting })
		}, attach.ErrAccessEnded},
		"logged out": {func(w *world, _ *attach.Attacher) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.sessions["s"](errLoggedOut)
		}, errLoggedOut},
		"an event was lost": {func(w *world, a *attach.Attacher) {
			w.mu.Lock()
			stopped(w)
			w.mu.Unlock()
			a.Gap()
		}, attach.ErrStopped},
		"server stops": {func(_ *world, a *attach.Attacher) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			a.Close(ctx)
		}, attach.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, a := newWorld(t)
			x, err := a.Attach(t.Context(), ann, id, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer x.Close()
			test.change(w, a)
			select {
			case <-x.Context().Done():
			case <-time.After(harness.Patience):
				t.Fatal("the attachment has not ended")
			}
			if cause := context.Cause(x.Context()); !errors.Is(cause, test.want) {
				t.Errorf("%v, want %v", cause, test.want)
			}
		})
	}
}

// An outage of the database or of Docker ends no attachment.
func TestAttachmentOutlivesOutage(t *testing.T) {
	t.Parallel()
	w, a := newWorld(t)
	x, err := a.Attach(t.Context(), ann, id, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for _, outage := range []func(*world){
		func(w *world) { w.err = errors.New("no connection") },
		func(w *world) { w.err, w.gone = nil, runtime.ErrUnreachable },
	} {
		before := w.count(func(w *world) int { return w.reads })
		w.set(a, outage)
		harness.Eventually(t, "it was read again", func() bool { return w.count(func(w *world) int { return w.reads }) > before })
	}
	w.set(a, func(w *world) { w.gone = nil })
	if err := x.Context().Err(); err != nil {
		t.Error(context.Cause(x.Context()))
	}
	if _, err := x.Agent.Usage(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := (&agent.Client{Addr: x.Agent.Addr, Secret: "other"}).Hello(t.Context()); !errors.Is(err, agent.ErrRefused) {
		t.Error(err)
	}
}

// The end of an attachment, after which a client learns the exit status of its command, does not
// wait for a database that does not respond.
func TestAttachmentEndsDuringCheck(t *testing.T) {
	t.Parallel()
	w, a := newWorld(t)
	x, err := a.Attach(t.Context(), ann, id, nil)
	if err != nil {
		t.Fatal(err)
	}
	reading, answer := make(chan struct{}), make(chan struct{})
	defer close(answer)
	w.set(a, func(w *world) {
		w.onRead = sync.OnceFunc(func() { close(reading); <-answer })
	})
	<-reading
	closed := make(chan struct{})
	go func() {
		x.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(harness.Patience):
		t.Error("it waits for the check")
	}
}

// step is a change of a workspace that an attachment waits for.
type step func(*workspace.Workspace)

// steps of the workspace's life, as the owner and the controller make them.
var (
	startClaimed step = func(w *workspace.Workspace) { w.Operation = workspace.OpStarting }
	startFails   step = func(w *workspace.Workspace) { w.Operation = workspace.OpNone }
	ready        step = func(w *workspace.Workspace) { w.Phase, w.Operation = workspace.PhaseRunning, workspace.OpNone }
	cancelled    step = func(w *workspace.Workspace) { w.DesiredState, w.NextDesired = workspace.DesiredStandby, "" }
	stopClaimed  step = func(w *workspace.Workspace) {
		w.Phase, w.DesiredState, w.Operation = workspace.PhaseRunning, workspace.DesiredStandby, workspace.OpStopping
	}
	restarts step = func(w *workspace.Workspace) {
		stopClaimed(w)
		w.DesiredCause, w.NextDesired = workspace.CauseRestart, workspace.DesiredRunning
	}
	atRest  step = func(w *workspace.Workspace) { w.Phase, w.Operation = workspace.PhaseStandby, workspace.OpNone }
	applied step = func(w *workspace.Workspace) { w.DesiredState, w.DesiredCause, w.NextDesired = w.NextDesired, "", "" }
	archive step = func(w *workspace.Workspace) {
		w.DesiredState, w.Operation = workspace.DesiredArchived, workspace.OpArchiving
	}
)

// waker applies lifecycle.Wake, as the database does.
func waker(t *testing.T) func(*world) {
	return func(w *world) {
		out, err := lifecycle.Wake(w.row, time.Now())
		if err != nil {
			t.Error(err)
			return
		}
		w.row = out.Workspace
	}
}

// A wait starts the workspace once. It ends if the owner stops the workspace or cancels its
// start meanwhile, and never starts the workspace again.
func TestWaitDoesNotUndoStop(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		begin func(*world)
		steps []step
		wakes int
		want  lifecycle.Opening
	}{
		"the start is cancelled":             {stopped, []step{startClaimed, cancelled, startFails}, 1, lifecycle.OpenStarts},
		"stopped before the start":           {stopped, []step{cancelled}, 1, lifecycle.OpenStarts},
		"archived before the start":          {stopped, []step{archive}, 1, lifecycle.OpenQueues},
		"the queued start is dropped":        {stopping, []step{cancelled}, 1, lifecycle.OpenQueues},
		"cancelled while it waits for limit": {stopping, []step{atRest, cancelled}, 1, lifecycle.OpenStarts},
		"another's start is cancelled": {func(w *world) {
			stopped(w)
			w.row.DesiredState, w.row.Operation = workspace.DesiredRunning, workspace.OpStarting
		}, []step{cancelled, startFails}, 0, lifecycle.OpenStarts},
		"the restart is dropped": {func(w *world) { restarts(&w.row) }, []step{cancelled}, 0, lifecycle.OpenQueues},
		"stopped before its agent answers": {func(w *world) {
			running(w)
			w.gone = errors.New("no address yet")
		}, []step{stopClaimed}, 0, lifecycle.OpenQueues},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, a := newWorld(t)
			w.onWake = waker(t)
			c.begin(w)
			err := waitThrough(t, w, a, c.steps, c.wakes)
			var not *attach.NotOpen
			if !errors.As(err, &not) || not.Opening != c.want || not.Error() == "" {
				t.Errorf("%v, want opening %v", err, c.want)
			}
			if n := w.count(func(w *world) int { return w.wakes }); n != c.wakes {
				t.Errorf("%d wakes, want %d", n, c.wakes)
			}
		})
	}
}

func stopping(w *world) { stopClaimed(&w.row) }

// waitThrough attaches, takes each step once the attachment has seen the one before, and
// returns the attachment's error. It fails after more wakes than these.
func waitThrough(t *testing.T, w *world, a *attach.Attacher, steps []step, wakes int) error {
	t.Helper()
	seen, out := make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	go func() {
		x, err := a.Attach(ctx, ann, id, func(workspace.Workspace) {
			select {
			case seen <- struct{}{}:
			case <-ctx.Done():
			}
		})
		if err == nil {
			x.Close()
		}
		out <- err
	}()
	for n, next := range steps {
		select {
		case <-seen:
		case err := <-out:
			t.Fatalf("it ended before step %d: %v", n, err)
		}
		w.set(a, func(w *world) { next(&w.row) })
	}
	for {
		select {
		case <-seen:
			if n := w.count(func(w *world) int { return w.wakes }); n > wakes {
				t.Fatalf("%d wakes, want %d", n, wakes)
			}
		case err := <-out:
			return err
		}
	}
}

// A wait goes on as long as a start is desired or queued.
func TestWaitGoesOn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		begin func(*world)
		steps []step
		wakes int
	}{
		"a start that fails is retried":  {stopped, []step{startClaimed, startFails, startClaimed, ready}, 1},
		"a stop comes first":             {stopping, []step{atRest, applied, startClaimed, ready}, 1},
		"an archiving comes first":       {func(w *world) { stopped(w); archive(&w.row) }, []step{atRest, applied, startClaimed, ready}, 1},
		"a restart":                      {func(w *world) { restarts(&w.row) }, []step{atRest, applied, startClaimed, ready}, 0},
		"a restart during the wait":      {stopped, []step{startClaimed, restarts, atRest, applied, startClaimed, ready}, 1},
		"the owner starts what stops":    {stopping, []step{atRest, applied, ready}, 1},
		"a cancelled start begins again": {cancelling, []step{atRest, func(w *workspace.Workspace) { w.DesiredState = workspace.DesiredRunning }, ready}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, a := newWorld(t)
			w.onWake = waker(t)
			c.begin(w)
			if err := waitThrough(t, w, a, c.steps, c.wakes); err != nil {
				t.Error(err)
			}
			if n := w.count(func(w *world) int { return w.wakes }); n != c.wakes {
				t.Errorf("%d wakes, want %d", n, c.wakes)
			}
		})
	}
}

// cancelling is a start that was cancelled before the attachment: it wakes the workspace after that.
func cancelling(w *world) {
	stopped(w)
	w.row.Operation = workspace.OpStarting
}
