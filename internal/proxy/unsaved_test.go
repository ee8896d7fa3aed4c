package proxy

import (
	"fmt"
	"testing"
	"time"
)

func TestUnsavedFiles(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	u := NewUnsaved(func() time.Time { return now })
	want := func(what string, n int) {
		t.Helper()
		if got := u.Files(wsA); got != n {
			t.Errorf("%s: %d unsaved files, want %d", what, got, n)
		}
	}
	want("nothing reported", 0)
	u.Report(wsA, "one", 2)
	u.Report(wsA, "two", 1)
	u.Report(wsB, "one", 7)
	want("two pages", 3)
	u.Report(wsA, "one", 0)
	want("one page saved", 1)
	now = now.Add(unsavedFor - time.Second)
	u.Report(wsA, "three", 4)
	want("before the oldest expires", 5)
	now = now.Add(time.Second)
	want("after it has expired", 4)
	u.Report(wsA, "three", -1)
	want("a negative number", 0)
	for i := range 10 * maxUnsavedPages {
		u.Report(wsA, fmt.Sprint(i), 1<<30)
	}
	want("too many pages and files", maxUnsavedPages*maxUnsavedFiles)
	now = now.Add(time.Hour)
	u.Forget()
	if len(u.by) != 0 {
		t.Errorf("after Forget %d workspaces are remembered", len(u.by))
	}
	var none *Unsaved
	none.Report(wsA, "one", 1)
	none.Forget()
	if n := none.Files(wsA); n != 0 {
		t.Errorf("a nil Unsaved has %d files", n)
	}
}
