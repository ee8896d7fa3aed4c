package postgres_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// At the owner's limit of bytes a workspace that ran is imported and stopped.
func TestImportAtLimitOfBytes(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{Bytes: 20}})
	ctx := t.Context()
	ann := e.user("ann")
	e.workspace(ann, usedBytes(30))
	i := postgres.Import{OldID: "old", ID: workspace.ID(uuid.Must(uuid.NewV7()).String())}
	must(e.ClaimImport(ctx, i))(t)
	w, err := e.FinishImport(ctx, postgres.ImportedWorkspace{Import: i, OwnerID: ann.UserID, NewWorkspace: newWorkspace("moved", workspace.DesiredRunning), CreatedAt: time.Now()})
	if err != nil || w.DesiredState != workspace.DesiredStandby {
		t.Errorf("%s, %v", w.DesiredState, err)
	}
}
