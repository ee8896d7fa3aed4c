package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"codehub/internal/postgres"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// Users make all kinds of requests at once, with a controller: no call fails except for the
// state of its workspace, there is no deadlock, the limit holds, and the schema checks the
// row's invariants.
func TestMixedCalls(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	const limit = 3
	repeated := make(chan struct{}, 1000) // transactions that a deadlock ended
	e := open(t, postgres.Options{Limits: postgres.Limits{PerUser: limit}, MaxConns: 24, Log: logTo(repeated)})
	ann, bob := e.user("ann"), e.user("bob")
	fine := []workspace.Code{
		workspace.CodeNotFound, workspace.CodeGone, workspace.CodeNotDeleted, workspace.CodeNotInError, workspace.CodeNameTaken,
		workspace.CodeNotCancellable, workspace.CodeOperationInProgress, workspace.CodeRecoveryRequired, workspace.CodeLimitExceeded,
	}
	var ids []workspace.ID
	for i := range 12 {
		w := e.workspace([]workspace.Caller{ann, bob}[i%2], state{"phase": "STANDBY", "conditions": noContainer})
		ids = append(ids, w.ID)
	}
	ctx, cancel := context.WithCancel(t.Context())
	controller := make(chan error, 1)
	go func() { controller <- fakeController(ctx, e) }()
	stop := make(chan struct{})
	watched := watchEach(e, stop)

	var users errgroup.Group
	var waited atomic.Int32
	for worker := range 16 {
		users.Go(func() error {
			r := rand.New(rand.NewPCG(1, uint64(worker)))
			for i := range 60 {
				which := r.IntN(len(ids))
				who, id := []workspace.Caller{ann, bob}[which%2], ids[which]
				err := anyCall(t.Context(), e, r, who, id, fmt.Sprintf("%d-%d", worker, i))
				if workspace.CodeOf(err) == workspace.CodeUnavailable {
					waited.Add(1) // on a busy machine
					continue
				}
				if err != nil && !slices.Contains(fine, workspace.CodeOf(err)) {
					return err
				}
			}
			return nil
		})
	}
	err := users.Wait()
	cancel()
	err = errors.Join(err, <-controller)
	close(stop)
	most := <-watched
	if err != nil {
		t.Fatal(err)
	}
	if n := waited.Load(); n > 16*60/50 {
		t.Errorf("%d calls waited too long for a lock", n)
	}
	if most > limit {
		t.Errorf("%d of one user's ran at once, the limit is %d", most, limit)
	}
	if n := len(repeated); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}

func anyCall(ctx context.Context, e *env, r *rand.Rand, who workspace.Caller, id workspace.ID, name string) (err error) {
	states := []workspace.DesiredState{workspace.DesiredRunning, workspace.DesiredStandby, workspace.DesiredArchived}
	switch r.IntN(12) {
	case 0:
		_, err = e.CreateWorkspace(ctx, who, newWorkspace(name, states[r.IntN(2)]))
	case 1, 2, 3:
		_, err = e.PatchWorkspace(ctx, who, id, postgres.Patch{Edit: workspace.Edit{Memo: &name}, Desired: &states[r.IntN(3)], Queue: r.IntN(2) == 0})
	case 4:
		_, err = e.Wake(ctx, who, id)
	case 5:
		_, err = e.DeleteWorkspace(ctx, who, id, r.IntN(2) == 0)
	case 6, 7:
		_, err = e.UndeleteWorkspace(ctx, who, id)
	case 8:
		_, err = e.RequestRecover(ctx, who, id, workspace.RecoverAfresh)
	case 9:
		_, err = e.RequestCancel(ctx, who, id)
	case 10:
		_, err = e.RequestForceStop(ctx, who, id)
	case 11:
		_, _, err = e.ListWorkspaces(ctx, who, postgres.Filter{Deleted: r.IntN(2) == 0})
	}
	return err
}

// fakeController is a controller without containers: it moves rows as the real one does, and
// applies queued states.
func fakeController(ctx context.Context, e *env) error {
	c := postgres.NewController(postgres.NewSession(e.conn()))
	r := rand.New(rand.NewPCG(2, 2))
	for ctx.Err() == nil {
		rows, err := c.Candidates(e.Context())
		if err != nil {
			return err
		}
		var changes []postgres.Change
		for _, w := range rows {
			changes = append(changes, step(r, *w))
		}
		if _, err := c.Apply(e.Context(), changes); err != nil {
			return err
		}
		for _, w := range rows {
			if w.NextDesired != "" {
				if _, err := e.ApplyQueued(e.Context(), w.ID); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func step(r *rand.Rand, w workspace.Workspace) postgres.Change {
	n := w
	claim := func(op workspace.Operation) {
		now := time.Now()
		n.Operation, n.OpID, n.OpStartedAt = op, uuid.NewString(), &now
	}
	end := func(phase workspace.Phase) {
		n.Phase, n.Operation, n.OpID, n.OpStartedAt = phase, workspace.OpNone, "", nil
	}
	ready := func(ready bool, reason string) {
		n.Conditions = n.Conditions.With(workspace.ContainerReady, ready, reason, "", time.Now())
	}
	c := postgres.Change{Seen: w, Claim: true}
	switch {
	case w.RecoverRequestedAt != nil:
		c.ClearRecover = true
		n.ErrorReason, n.Phase = "", workspace.PhaseStandby
		if w.Conditions.HasContainer() {
			n.Phase = workspace.PhaseRunning
		}
	case w.DeletedAt != nil && w.Operation == workspace.OpNone:
		n.Phase = workspace.PhaseDeleting
		if w.Conditions.HasContainer() {
			claim(workspace.OpDeleting)
		}
	case w.Operation == workspace.OpStarting && r.IntN(4) == 0:
		n.ErrorReason = workspace.ErrTimeout
		end(workspace.PhaseError)
	case w.Operation == workspace.OpStarting:
		ready(true, workspace.ReasonContainerReady)
		end(workspace.PhaseRunning)
	case w.Operation != workspace.OpNone:
		ready(false, workspace.ReasonNoContainer)
		end(workspace.PhaseStandby)
	case w.Phase == workspace.PhaseDeleting || w.Phase == workspace.PhasePending:
		n.Phase = workspace.PhaseStandby
		if w.Conditions.HasContainer() {
			n.Phase = workspace.PhaseRunning
		}
	case w.Phase == workspace.PhaseStandby && w.DesiredState == workspace.DesiredRunning:
		claim(workspace.OpStarting)
	case w.Phase == workspace.PhaseRunning && w.DesiredState != workspace.DesiredRunning:
		claim(workspace.OpStopping)
	}
	c.ClearCancel, c.ClearForceStop = true, true
	c.Next = n
	return c
}

// watchEach returns the maximum of workspaces of one user that ran at once.
func watchEach(e *env, stop <-chan struct{}) <-chan int {
	most := make(chan int, 1)
	go func() {
		n := 0
		for {
			n = max(n, query[int](e, `
				SELECT COALESCE(max(n), 0) FROM (
					SELECT count(*) AS n FROM workspaces
					WHERE deleted_at IS NULL AND (phase = 'RUNNING' OR operation = 'STARTING' OR (desired_state = 'RUNNING' AND phase <> 'ERROR'))
					GROUP BY owner_user_id) AS each`))
			select {
			case <-stop:
				most <- n
				return
			default:
			}
		}
	}()
	return most
}
