package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
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
	u.takeDue()
	for i := range 10 * maxUnsavedPages {
		u.Report(wsA, fmt.Sprint(i), 1<<30)
	}
	want("too many pages and files", maxUnsavedPages*maxUnsavedFiles)
	if due := u.takeDue(); len(due) != maxUnsavedPages {
		t.Errorf("%d announcements are due, want %d", len(due), maxUnsavedPages)
	}
	for _, payload := range []string{``, `{`, `{"id":"x","page":"p","files":1}`, `{"id":"` + string(wsA) + `","page":"p","files":-1}`} {
		u.Receive(payload)
	}
	want("after invalid announcements", maxUnsavedPages*maxUnsavedFiles)
	now = now.Add(time.Hour)
	u.Forget()
	if len(u.by) != 0 {
		t.Errorf("after Forget %d workspaces are remembered", len(u.by))
	}
	var none *Unsaved
	none.Report(wsA, "one", 1)
	none.Close(wsA)
	none.Forget()
	if n := none.Files(wsA); n != 0 {
		t.Errorf("a nil Unsaved has %d files", n)
	}
}

// Two servers know the same, whichever of them a page reports to. What one of them missed
// expires or is repeated, and one that has ended is forgotten.
func TestUnsavedFilesOfSeveralServers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		one, two := NewUnsaved(time.Now), NewUnsaved(time.Now)
		var down atomic.Bool
		var sent atomic.Int64
		run := func(u *Unsaved) (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				ended <- u.Run(ctx, slog.New(slog.DiscardHandler), func(_ context.Context, payloads []string) error {
					if down.Load() {
						return errors.New("down")
					}
					sent.Add(int64(len(payloads)))
					for _, p := range payloads {
						one.Receive(p)
						two.Receive(p)
					}
					return nil
				})
			}()
			return func() {
				cancel()
				if err := <-ended; err != nil {
					t.Errorf("Run: %v", err)
				}
			}
		}
		defer run(one)()
		stop := run(two)
		pass := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		want := func(what string, n int) {
			t.Helper()
			pass(2 * announcePause)
			if a, b := one.Files(wsA), two.Files(wsA); a != n || b != n {
				t.Errorf("%s: the servers know of %d and %d unsaved files, want %d", what, a, b, n)
			}
		}
		one.Report(wsA, "p", 2)
		want("reported to one server", 2)
		two.Report(wsA, "p", 1)
		want("then to the other one", 1)
		two.Report(wsA, "q", 1)
		want("a second page", 2)
		one.Report(wsA, "q", 0)
		want("saved", 1)
		one.Close(wsA)
		want("stopped", 0)
		if len(one.by)+len(two.by) != 0 {
			t.Errorf("pages without unsaved files are remembered: %v, %v", one.by, two.by)
		}

		sent.Store(0)
		for range 10 { // as often as pages do
			two.Report(wsA, "p", 1)
			pass(20 * time.Second)
		}
		want("repeated", 1)
		if n := sent.Load(); n < 4 || n > 6 {
			t.Errorf("in 200 s a page's reports were announced %d times", n)
		}
		for range 20 {
			two.Report(wsA, "p", 1)
		}
		if pass(announcePause); sent.Load() > 6 {
			t.Errorf("each report was announced")
		}

		down.Store(true)
		two.Report(wsA, "p", 3)
		pass(announcePause)
		if n := one.Files(wsA); n != 1 {
			t.Errorf("without a connection %d unsaved files, want those before", n)
		}
		down.Store(false)
		want("connected again", 3)
		stop()
		pass(unsavedFor)
		one.Forget()
		if n := one.Files(wsA); n != 0 || len(one.by) != 0 {
			t.Errorf("%d unsaved files after their server has ended", n)
		}
	})
}
