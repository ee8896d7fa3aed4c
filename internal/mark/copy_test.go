package mark_test

import (
	"codehub/internal/harness/fixture"
	"testing"
)

// A copy of the database sees that the original leads, and holds; the original
// goes on.
func TestRunHoldsInCopy(t *testing.T) {
	t.Parallel()
	original := newInstallation(t)
	l := original.lead()
	l.awaitActing()
	copied := newInstallation(t)
	copied.fake, copied.bucket, copied.files = original.fake, original.bucket, "1:2"
	copied.marksOf(original)
	c := copied.lead()
	c.awaitHold()
	l.awaitMoved()
	if c.acted.Load() != 0 || l.acts.Load() != 1 || l.acted.Load() != 1 {
		t.Errorf("the copy acted %d times, the original %d times", c.acted.Load(), l.acted.Load())
	}
	copied.takeOver()
	c.awaitActing()
	l.awaitHold()
	c.awaitMoved()
	// And back again.
	original.takeOver()
	l.awaitActing()
	c.awaitHold()
	l.stop()
	c.stop()
}

// Two servers with one bucket and different Docker daemons: the one that led
// before the other took over holds.
func TestRunHoldsWhenAnotherServerHasItsArchives(t *testing.T) {
	t.Parallel()
	original := newInstallation(t)
	l := original.lead()
	l.awaitMoved()
	copied := newInstallation(t)
	copied.bucket = original.bucket
	copied.marksOf(original)
	copied.Exec(`UPDATE gc_state SET take_over = true, taken_over_at = now()`)
	c := copied.lead()
	c.awaitActing()
	l.awaitHold()
	c.awaitMoved()
	if c.acts.Load() != 1 || l.k.MayRemove() {
		t.Errorf("the copy acts: %d; the original: %+v", c.acts.Load(), l.k.Status())
	}
	l.stop()
	c.stop()
}

// A copy that took over elsewhere is ahead of its original by many marks. It
// holds when it is started on the original's Docker.
func TestRunHoldsInCopyThatIsAhead(t *testing.T) {
	t.Parallel()
	original := newInstallation(t)
	l := original.lead()
	l.awaitMoved()
	copied := newInstallation(t)
	copied.marksOf(original)
	copied.Exec(`UPDATE gc_state SET take_over = true, taken_over_at = now() - interval '1 hour'`)
	c := copied.lead()
	c.await("has taken over", func() bool { return fixture.Query[bool](copied, `SELECT NOT take_over FROM gc_state`) })
	c.awaitActing()
	c.stop()
	copied.fake = original.fake
	acted := c.acted.Load()
	l.awaitMoved()
	c = copied.lead()
	c.awaitHold()
	l.awaitMoved()
	if acted == 0 || c.acted.Load() != 0 || l.acts.Load() != 1 {
		t.Errorf("acted elsewhere %d times, on the original's Docker %d times; the original acts: %d", acted, c.acted.Load(), l.acts.Load())
	}
	l.stop()
	c.stop()
}

// A database whose files were moved continues once no other server is seen to lead.
func TestRunContinuesOnMovedDatabase(t *testing.T) {
	t.Parallel()
	i := newInstallation(t)
	l := i.lead()
	l.awaitMoved()
	l.stop()
	i.files = "2:1"
	l = i.lead()
	l.await("watches", func() bool { return l.k.Status().Watching })
	if l.acted.Load() != 0 {
		t.Error("it acts already")
	}
	l.awaitActing()
	l.stop()
	l = i.lead()
	l.awaitActing()
	if l.stop(); i.restoredAt() {
		t.Error("the waits began anew")
	}
}
