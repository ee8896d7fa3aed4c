package rollback

import (
	"context"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// maxMissing is how many workspaces a comparison names.
const maxMissing = 5

// Compare plans with the rows of a restored backup, and changes nothing. live reads those of this
// installation's database, which shows what has changed since the backup: a workspace that has the
// same home in both must be as complete as the backup has it. It is read last, so that a change
// during the comparison is not taken for a loss.
func (s *Service) Compare(ctx context.Context, restored postgres.RollbackState, live func(context.Context) (postgres.RollbackState, error)) (api.DrillComparison, error) {
	out := api.DrillComparison{Changes: map[string]int{}, MissingIn: []string{}}
	steps, err := s.plan(ctx, restored, false)
	if err != nil {
		return out, err
	}
	now, err := live(ctx)
	if err != nil {
		return out, err
	}
	rows := map[workspace.ID]*postgres.RollbackRow{}
	for i, row := range now.Rows {
		rows[row.ID] = &now.Rows[i]
	}
	for _, step := range steps {
		out.Workspaces++
		switch {
		case step.missing() && sameHome(step.Row, rows[step.ID]):
			if out.Missing++; len(out.MissingIn) < maxMissing {
				out.MissingIn = append(out.MissingIn, step.Name()+" ("+step.Owner()+")")
			}
		case step.unremarkable():
			out.Unchanged++
		default:
			out.Changes[string(step.Reason)]++
		}
	}
	return out, nil
}

// missing reports whether a volume or archive that the row names does not exist. Of a workspace in
// ERROR that was known when the backup was made.
func (s Step) missing() bool {
	return s.Row != nil && s.Row.Phase != workspace.PhaseError && (s.Lost || s.Reason == VolumeGone || s.Reason == ArchiveGone)
}

// sameHome reports whether the home of a workspace, which is not deleted, is the same in two
// databases.
func sameHome(a, b *postgres.RollbackRow) bool {
	return a != nil && b != nil && a.DeletedAt == nil && b.DeletedAt == nil &&
		a.Home.State == b.Home.State && a.Home.Claim == b.Home.Claim && a.ArchiveKey == b.ArchiveKey
}
