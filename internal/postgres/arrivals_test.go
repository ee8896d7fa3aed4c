package postgres_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

func newArrival() postgres.Arrival {
	id := uuid.Must(uuid.NewV7()).String()
	return postgres.Arrival{Source: uuid.NewString(), OldID: id, ID: workspace.ID(id), ArchiveOpID: uuid.NewString()}
}

// A claim that waits for the commit of a FinishArrival leaves the finished import as it is.
func TestClaimKeepsFinishedArrival(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	w := e.workspace(e.user("ann"), nil)
	first := newArrival()
	if abandoned, err := e.ClaimArrival(t.Context(), first); err != nil || len(abandoned) != 0 {
		t.Fatalf("%v, %v", abandoned, err)
	}
	e.during(func() {
		second := first
		second.ArchiveOpID = uuid.NewString()
		_, err := e.ClaimArrival(t.Context(), second)
		wantCode(t, err, workspace.CodeGone)
	}, `UPDATE arrivals SET arrived_at = now(), version = 'v'`, `UPDATE workspaces SET id = '`+string(first.ID)+`' WHERE id = '`+string(w.ID)+`'`)
	list, err := e.Arrivals(t.Context(), first.Source)
	if a := list[first.OldID]; err != nil || !a.Done || a.ArchiveOpID != first.ArchiveOpID || a.Version != "v" {
		t.Errorf("%+v, %v", a, err)
	}
}

// At the owner's limit of bytes a workspace is refused, and administrators learn of a limit of the
// owner, not of theirs. One that is forced is added, and stopped if it ran.
func TestArrivalAtOwnersLimitOfBytes(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{Bytes: 20 << 20}})
	ctx := t.Context()
	ann := e.user("ann")
	e.workspace(ann, usedBytes(30<<20))
	n := postgres.ArrivedWorkspace{Arrival: newArrival(), NewWorkspace: newWorkspace("moved", workspace.DesiredRunning), CreatedAt: time.Now()}
	n.Owner = postgres.ArrivedUser{Source: n.Source, OldID: uuid.NewString(), User: postgres.User{ID: ann.UserID, Username: "ann"}}
	must(e.ClaimArrival(ctx, n.Arrival))(t)
	_, err := e.FinishArrival(ctx, n)
	wantCode(t, err, workspace.CodeQuotaExceeded)
	if got, want := err.Error(), "The owner's workspaces use 30 MiB, and at most 20 MiB are allowed."; !strings.Contains(got, want) {
		t.Errorf("%q does not contain %q", got, want)
	}
	n.Force = true
	if w, err := e.FinishArrival(ctx, n); err != nil || w.DesiredState != workspace.DesiredStandby {
		t.Errorf("%s, %v", w.DesiredState, err)
	}
}
