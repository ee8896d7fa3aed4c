package mark_test

import (
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
