package mark

import (
	"context"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// Verdict is the result of comparing a mark of Docker or the bucket with the
// database.
type Verdict string

// Verdicts.
const (
	Same    Verdict = "same"    // the database stored it last
	Missing Verdict = "missing" // there is no mark
	Stale   Verdict = "stale"   // an older mark of this database
	Foreign Verdict = "foreign" // a mark that this database does not know
)

// Compare compares the mark of Docker or the bucket, if found, with the database.
// A mark with a lower serial that the database did not store itself is of a copy
// of this database, whose serials have grown less since.
func Compare(ctx context.Context, db Past, s postgres.MarkState, there workspace.Mark, found bool) (Verdict, error) {
	switch {
	case !found:
		return Missing, nil
	case there.ID == s.Run || there.ID == s.NextRun:
		return Same, nil
	case there.Serial >= s.Serial:
		return Foreign, nil
	}
	// A power cut or a late write can bring an older mark back, also one of the
	// database that this one took over from.
	if s.TakenOver != nil && there.At.Sub(*s.TakenOver).Abs() < lateWrite {
		return Stale, nil
	}
	left, err := db.Left(ctx, there.ID)
	if err != nil || !left {
		return Foreign, err
	}
	return Stale, nil
}

// lateWrite is how long before and after a takeover a late mark of the previous
// leader may be dated: it reads the marks before it stores one, and its writes are
// bounded.
const lateWrite = time.Minute

// Past knows the marks that a database stored; *postgres.Marks implements it.
type Past interface {
	Left(ctx context.Context, id string) (bool, error)
}
