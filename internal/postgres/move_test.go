package postgres_test

import (
	"testing"

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
