package mark

import (
	"context"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// Verdict is what a mark outside says of the database.
type Verdict string

// Verdicts.
const (
	Same    Verdict = "same"    // the database left it
	Missing Verdict = "missing" // there is none
	Stale   Verdict = "stale"   // an older one than the database left last
	Foreign Verdict = "foreign" // a database left it of which this one knows nothing
)

// Compare compares the mark that is outside, if there is one, with what the
// database knows. A lower serial that the database did not leave itself is of a
// copy of this database, whose serials have grown less since.
func Compare(ctx context.Context, db Past, s postgres.MarkState, there workspace.Mark, found bool) (Verdict, error) {
	switch {
	case !found:
		return Missing, nil
	case there.ID == s.Run || there.ID == s.NextRun:
		return Same, nil
	case there.Serial >= s.Serial:
		return Foreign, nil
	}
	// A power cut or a write that came late brings an older one back, also one of
	// the database that this one took over from.
	if s.TakenOver != nil && there.At.Sub(*s.TakenOver).Abs() < lateWrite {
		return Stale, nil
	}
	left, err := db.Left(ctx, there.ID)
	if err != nil || !left {
		return Foreign, err
	}
	return Stale, nil
}

// lateWrite is how long before and after a take-over the previous leader may have
// left a mark that arrives late: it reads the marks before it leaves one, and its
// writes are bounded.
const lateWrite = time.Minute

// Past knows the marks that a database left; *postgres.Marks is it.
type Past interface {
	Left(ctx context.Context, id string) (bool, error)
}
