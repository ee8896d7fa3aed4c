package mark_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"codehub/internal/control/mark"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"
)

// firstMark is the first one that this database left.
func (i *installation) firstMark() workspace.Mark {
	i.Helper()
	return workspace.Mark{ID: fixture.Query[string](i, `SELECT run::text FROM past_marks ORDER BY left_at LIMIT 1`), Serial: 1}
}

func (i *installation) restoredAt() bool {
	return fixture.Query[bool](i, `SELECT restored_at IS NOT NULL FROM gc_state`)
}

func (i *installation) takeOver() {
	i.Exec(`UPDATE gc_state SET hold = NULL, hold_since = NULL, take_over = true, taken_over_at = now(), restored_at = now()`)
}

func TestCompareVerdicts(t *testing.T) {
	t.Parallel()
	over := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	state := postgres.MarkState{Run: "run", Serial: 5, NextRun: "next", TakenOver: &over}
	for name, c := range map[string]struct {
		there workspace.Mark
		found bool
		want  mark.Verdict
	}{
		"none":             {want: mark.Missing},
		"last":             {workspace.Mark{ID: "run", Serial: 5}, true, mark.Same},
		"announced":        {workspace.Mark{ID: "next", Serial: 6}, true, mark.Same},
		"older":            {workspace.Mark{ID: "own", Serial: 4}, true, mark.Stale},
		"older, of a copy": {workspace.Mark{ID: "x", Serial: 4}, true, mark.Foreign},
		"as new as ours":   {workspace.Mark{ID: "x", Serial: 5}, true, mark.Foreign},
		"newer":            {workspace.Mark{ID: "x", Serial: 6}, true, mark.Foreign},
		"older, written late by the database that was superseded": {workspace.Mark{ID: "x", Serial: 4, At: over.Add(time.Second)}, true, mark.Stale},
		"older, of a copy that leads elsewhere":                   {workspace.Mark{ID: "x", Serial: 4, At: over.Add(time.Hour)}, true, mark.Foreign},
		"without a serial":                                        {workspace.Mark{ID: "own"}, true, mark.Stale},
	} {
		if got, err := mark.Compare(t.Context(), past{"own": true}, state, c.there, c.found); err != nil || got != c.want {
			t.Errorf("%s: %s, want %s (%v)", name, got, c.want, err)
		}
	}
	if got, err := mark.Compare(t.Context(), past{}, postgres.MarkState{}, workspace.Mark{ID: "x"}, true); err != nil || got != mark.Foreign {
		t.Errorf("a database that has left no mark: %s (%v)", got, err)
	}
}

// past are the marks that a database left.
type past map[string]bool

func (p past) Left(_ context.Context, id string) (bool, error) { return p[id], nil }

// Marks are the same in all three places, and move.
func TestRunStoresMarksEverywhere(t *testing.T) {
	t.Parallel()
	i := newInstallation(t)
	l := i.lead()
	l.awaitActing()
	l.awaitMoved()
	l.await("settled everywhere", func() bool {
		b, found, err := mark.Read(t.Context(), i.bucket)
		return err == nil && found && b.ID == i.inDocker().ID && b.ID == fixture.Query[string](i, `SELECT COALESCE(run::text, '') FROM gc_state`)
	})
	l.stop()
	if i.restoredAt() {
		t.Error("the waits of a new installation began anew")
	}
	l = i.lead()
	l.awaitActing()
	if l.stop(); i.restoredAt() {
		t.Error("the waits began anew with a new term")
	}
}

func TestRunHoldsAfterRestore(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(i *installation){
		"both marks": func(*installation) {},
		// Each is enough by itself.
		"Docker alone": func(i *installation) { i.check(i.bucket.Store.Delete(i.Context(), mark.Key(i.bucket.Installation))) },
		"bucket alone": func(i *installation) { i.fake.TakeMarks() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := newInstallation(t)
			l := i.lead()
			l.awaitMoved()
			restore := i.backup()
			l.awaitMoved()
			l.awaitMoved()
			l.stop()
			restore()
			lose(i)
			before := i.inDocker()
			l = i.lead()
			l.awaitHold()
			if l.k.MayRemove() || l.k.Status().Hold == "" || l.acted.Load() != 0 || i.inDocker() != before {
				t.Errorf("on hold: %+v, acted %d times", l.k.Status(), l.acted.Load())
			}
			l.stop()
			l = i.lead() // a restart changes nothing
			l.awaitHold()
			i.takeOver()
			l.awaitActing()
			if m := l.awaitMoved(); m.Serial < before.Serial+1000 && before.ID != "" {
				t.Errorf("serial %d after %d", m.Serial, before.Serial)
			}
			l.stop()
			l = i.lead()
			l.awaitActing()
			l.stop()
		})
	}
}

// A lost mark does not count as a restored database; the waits start over.
func TestRunContinuesWithoutMarks(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(i *installation){
		"Docker": func(i *installation) { i.fake.TakeMarks() },
		"bucket": func(i *installation) { i.check(i.bucket.Store.Delete(i.Context(), mark.Key(i.bucket.Installation))) },
		"older in the bucket": func(i *installation) {
			i.check(mark.Write(i.Context(), i.bucket, i.firstMark()))
		},
		"older in Docker": func(i *installation) {
			i.fake.TakeMarks()
			i.check(i.fake.SetMark(i.Context(), i.firstMark()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := newInstallation(t)
			l := i.lead()
			l.await("has left some", func() bool { return fixture.Query[int](i, `SELECT serial FROM gc_state`) > 2 })
			l.stop()
			lose(i)
			l = i.lead()
			l.awaitActing()
			if !i.restoredAt() {
				t.Error("the waits did not begin anew")
			}
			i.fake.TakeMarks() // while it leads
			l.await("puts the mark back", func() bool { return i.inDocker().ID != "" })
			if l.stop(); l.acted.Load() != 1 {
				t.Errorf("it began to act %d times", l.acted.Load())
			}
		})
	}
}

// A crash at any moment of a move does not look like a restored database.
func TestMoveInterruptedIsNotForeign(t *testing.T) {
	t.Parallel()
	i := newInstallation(t)
	cut := errors.New("cut off")
	for _, at := range []string{"SetMark", "SetMark/done", "Mark", "SetMark/done", "SetMark/done", "SetMark"} {
		ctx, end := context.WithTimeout(t.Context(), 50*time.Millisecond)
		i.fake.SetBefore(func(_ context.Context, op string, _ workspace.ID) error {
			if op == at {
				return cut
			}
			return nil
		})
		err := i.keeper().Move(ctx, i.Controller())
		end()
		i.fake.SetBefore(nil)
		if mark.IsForeign(err) {
			t.Fatalf("cut off at %s: %v", at, err)
		}
		if err := i.keeper().Move(t.Context(), i.Controller()); err != nil {
			t.Fatalf("after it was cut off at %s: %v", at, err)
		}
	}
	if i.restoredAt() {
		t.Error("the waits began anew")
	}
}

// Without the bucket everything goes on but removals.
func TestRunWithoutBucketPausesRemovals(t *testing.T) {
	t.Parallel()
	i := newInstallation(t)
	l := i.lead()
	l.awaitMoved()
	restore := i.backup()
	l.awaitMoved()
	l.stop()
	i.check(os.Rename(i.bucket.Folder, i.bucket.Folder+".away"))
	l = i.lead()
	l.awaitActing()
	l.awaitMoved()
	if l.acts.Load() != 1 || l.k.MayRemove() {
		t.Fatalf("without the bucket: %+v", l.k.Status())
	}
	i.check(os.Rename(i.bucket.Folder+".away", i.bucket.Folder))
	l.await("compares", l.k.MayRemove)
	// The restored database must not catch up while the bucket is away.
	i.Exec(`UPDATE gc_state SET serial = serial + 100000`)
	l.awaitMoved()
	l.awaitMoved()
	l.stop()

	// It is the bucket alone that shows the restore.
	restore()
	i.fake.TakeMarks()
	i.check(os.Rename(i.bucket.Folder, i.bucket.Folder+".away"))
	l = i.lead()
	l.awaitActing()
	l.awaitMoved()
	if l.k.MayRemove() {
		t.Error("something may be removed")
	}
	i.check(os.Rename(i.bucket.Folder+".away", i.bucket.Folder))
	l.awaitHold()
	l.stop()
}

// A bucket that hangs delays an ordinary term only briefly. Nothing is removed before its mark is
// compared, which then shows what it would have shown at the beginning.
func TestRunBeginsWhileBucketHangs(t *testing.T) {
	t.Parallel()
	for name, foreign := range map[string]bool{"this database's mark": false, "another database's mark": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := newInstallation(t)
			i.check(i.keeper().Move(t.Context(), i.Controller()))
			if foreign {
				i.check(mark.Write(t.Context(), i.bucket, workspace.Mark{ID: uuid.NewString(), Serial: 1 << 20}))
			}
			i.first = 10 * time.Millisecond
			release := i.hang()
			begun := time.Now()
			l := i.lead()
			l.awaitActing()
			if took := time.Since(begun); took > 3*time.Second { // Within is 5 s
				t.Errorf("it began to act after %s", took)
			}
			if l.k.MayRemove() {
				t.Error("something may be removed before the bucket was compared")
			}
			release()
			if foreign {
				l.awaitHold()
			} else if l.await("compares", l.k.MayRemove); i.restoredAt() {
				t.Error("the waits started over, although the bucket has the last mark of the earlier term")
			}
			l.stop()
		})
	}
}

// While it is in doubt whether this database leads, the bucket has its usual time.
func TestRunAwaitsBucketInDoubt(t *testing.T) {
	t.Parallel()
	for name, doubt := range map[string]func(i *installation){
		"another Docker":    func(i *installation) { i.fake.TakeMarks() },
		"older in Docker":   func(i *installation) { i.fake.TakeMarks(); i.check(i.fake.SetMark(i.Context(), i.firstMark())) },
		"another identity":  func(i *installation) { i.files = "1:2" },
		"a takeover":        func(i *installation) { i.takeOver() },
		"the end of a hold": func(i *installation) { i.Exec(`UPDATE gc_state SET hold = 'why', hold_since = now()`) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := newInstallation(t)
			l := i.lead()
			l.await("has left some", func() bool { return fixture.Query[int](i, `SELECT serial FROM gc_state`) > 2 })
			l.stop()
			doubt(i)
			i.first = 10 * time.Millisecond
			release := i.hang()
			l = i.lead()
			time.Sleep(300 * time.Millisecond)
			if l.acted.Load() != 0 {
				t.Error("it acts")
			}
			release()
			l.awaitActing()
			l.await("compares", l.k.MayRemove)
			l.stop()
		})
	}
}

// A mark that cannot be stored, as on a full disk, does not prevent removals that free space.
func TestRunContinuesWithoutSpaceForMark(t *testing.T) {
	t.Parallel()
	i := newInstallation(t)
	l := i.lead()
	l.awaitMoved()
	l.stop()
	var full atomic.Bool
	full.Store(true)
	i.fake.SetBefore(func(_ context.Context, op string, _ workspace.ID) error {
		if op == "SetMark" && full.Load() {
			return runtime.ErrNoSpace
		}
		return nil
	})
	l = i.lead()
	l.awaitActing()
	full.Store(false)
	l.awaitMoved()
	if l.stop(); l.acted.Load() != 1 {
		t.Errorf("it began to act %d times", l.acted.Load())
	}
}

// Docker has to answer first.
func TestRunWaitsForDocker(t *testing.T) {
	t.Parallel()
	i := newInstallation(t)
	i.fake.SetDown(true)
	l := i.lead()
	l.await("says so", func() bool { return l.k.Status().Docker != "" })
	if l.acted.Load() != 0 {
		t.Error("it acts")
	}
	i.fake.SetDown(false)
	l.awaitActing()
	if l.k.Status().Docker != "" {
		t.Errorf("%+v", l.k.Status())
	}
	l.stop()
}

// takenName refuses the first mark for good, as Docker does when a power cut
// has left a volume by its name without labels.
type takenName struct {
	mark.Runtime
	taken atomic.Pointer[string]
}

func (b *takenName) SetMark(ctx context.Context, m workspace.Mark) error {
	b.taken.CompareAndSwap(nil, &m.ID)
	if *b.taken.Load() == m.ID {
		return fmt.Errorf("volume: %w", runtime.ErrConflict)
	}
	return b.Runtime.SetMark(ctx, m)
}

func TestRunStoresAnotherMarkIfNameIsTaken(t *testing.T) {
	t.Parallel()
	i := newInstallation(t)
	i.backend = &takenName{Runtime: i.fake}
	l := i.lead()
	l.awaitMoved()
	l.awaitMoved()
	l.stop()
}

// The bucket does not respond while a database takes over. Its mark, of the
// previous leader, is no reason to hold once it does; the mark of one that takes
// over afterwards is.
func TestTakeOverWithoutBucket(t *testing.T) {
	t.Parallel()
	for name, ago := range map[string]string{"late write": "0 s", "long ago": "1 hour"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := newInstallation(t)
			l := i.lead()
			l.awaitMoved()
			restore := i.backup()
			l.awaitMoved()
			l.awaitMoved()
			l.stop()
			restore()
			i.fake.TakeMarks()
			i.check(os.Rename(i.bucket.Folder, i.bucket.Folder+".away"))
			i.Exec(`UPDATE gc_state SET take_over = true, taken_over_at = now() - $1::interval`, ago)
			l = i.lead()
			l.awaitActing()
			if l.k.MayRemove() {
				t.Error("something may be removed before the bucket was compared")
			}
			i.check(os.Rename(i.bucket.Folder+".away", i.bucket.Folder))
			l.await("compares", l.k.MayRemove)
			if l.acts.Load() != 1 {
				t.Error("it does not act any more")
			}
			l.awaitMoved()

			other := newInstallation(t)
			other.bucket = i.bucket
			other.marksOf(i)
			other.Exec(`UPDATE gc_state SET take_over = true, taken_over_at = now()`)
			o := other.lead()
			o.awaitActing()
			l.awaitHold()
			l.stop()
			o.stop()
		})
	}
}
