package postgres_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// A claim that waits for the commit of a FinishMove leaves the finished move as it is.
func TestClaimMoveKeepsFinishedMove(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	w := e.workspace(e.user("ann"), nil)
	first := postgres.Move{Source: uuid.NewString(), ID: workspace.ID(uuid.NewString()), ArchiveOpID: uuid.NewString()}
	if abandoned, err := e.ClaimMove(t.Context(), first); err != nil || len(abandoned) != 0 {
		t.Fatalf("%v, %v", abandoned, err)
	}
	e.during(func() {
		second := first
		second.ArchiveOpID = uuid.NewString()
		_, err := e.ClaimMove(t.Context(), second)
		wantCode(t, err, workspace.CodeGone)
	}, `UPDATE moved_workspaces SET moved_at = now(), version = 'v'`, `UPDATE workspaces SET id = '`+string(first.ID)+`' WHERE id = '`+string(w.ID)+`'`)
	moves, err := e.Moves(t.Context(), first.Source)
	if mv := moves[first.ID]; err != nil || !mv.Done || mv.ArchiveOpID != first.ArchiveOpID || mv.Version != "v" {
		t.Errorf("%+v, %v", mv, err)
	}
}

// Administrators learn of a limit of the owner, not of theirs.
func TestMoveAtOwnersLimitOfBytes(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{Bytes: 20 << 20}})
	ctx := t.Context()
	ann := e.user("ann")
	e.workspace(ann, usedBytes(30<<20))
	m := postgres.Move{Source: uuid.NewString(), ID: workspace.ID(uuid.Must(uuid.NewV7()).String()), ArchiveOpID: uuid.NewString()}
	must(e.ClaimMove(ctx, m))(t)
	_, err := e.FinishMove(ctx, postgres.MovedWorkspace{Move: m, Owner: postgres.MovedUser{Source: m.Source, OldID: uuid.NewString(), ID: ann.UserID, Username: "ann"}, NewWorkspace: newWorkspace("moved", workspace.DesiredArchived), CreatedAt: time.Now()})
	wantCode(t, err, workspace.CodeQuotaExceeded)
	if got, want := err.Error(), "The owner's workspaces use 30 MiB, and at most 20 MiB are allowed."; !strings.Contains(got, want) {
		t.Errorf("%q does not contain %q", got, want)
	}
}
