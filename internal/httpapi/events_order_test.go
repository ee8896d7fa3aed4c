package httpapi

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// told reads an event stream to its end or until stop returns true, and calls saw
// with each event.
func (s *events) told(saw func(ev string) (stop bool)) {
	s.t.Helper()
	for {
		ev := s.next()
		if ev == "" {
			s.t.Fatal("the stream ended")
		}
		if saw(ev) {
			return
		}
	}
}

// With concurrent changes, and with events that are repeated, late or from both the
// database and Redis, a reader never receives an earlier state after a later one, never
// the same one twice, and receives the last one.
func TestEventsKeepOrder(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	const workspaces, changes, readers = 4, 60, 3
	list := make([]workspace.Workspace, workspaces)
	for i := range list {
		list[i] = e.workspace(e.ann, fmt.Sprintf("w%d.0", i))
	}
	var read, write sync.WaitGroup
	for range readers {
		s := e.events(as(e.ann))
		read.Go(func() {
			last := map[string]int{}
			left := workspaces
			s.told(func(ev string) bool {
				f := strings.Fields(ev)
				if f[0] != "updated" {
					return false
				}
				name, number, _ := strings.Cut(f[1], ".")
				n, err := strconv.Atoi(number)
				if was, known := last[name]; err != nil || known && n <= was {
					t.Errorf("%s after %d", ev, last[name])
				}
				last[name] = n
				if n == changes {
					left--
				}
				return left == 0
			})
		})
	}
	done := make(chan struct{})
	var noise sync.WaitGroup
	noise.Go(func() { // events as from Redis, late and early, and gaps
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			w := list[i%workspaces]
			e.Hub.Notify(w.OwnerID, w.ID)
			e.Hub.Echo(w.OwnerID, w.ID)
			if i%50 == 0 {
				e.Hub.Gap()
			}
		}
	})
	for i, w := range list {
		write.Go(func() {
			for n := 1; n <= changes; n++ {
				name := fmt.Sprintf("w%d.%d", i, n)
				if _, err := e.DB.PatchWorkspace(t.Context(), e.ann.Caller, w.ID, postgres.Patch{Edit: workspace.Edit{Name: &name}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	write.Wait()
	read.Wait()
	close(done)
	noise.Wait()
}

// Repeated events, and workspaces that were read again and have not changed, are not
// sent.
func TestEventsSendNoDuplicates(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	a := e.workspace(e.ann, "a")
	s := e.events(as(e.ann))
	s.until("heartbeat")
	for range 20 {
		e.Hub.Notify(a.OwnerID, a.ID)
		e.Hub.Gap()
	}
	e.Change(`UPDATE workspaces SET phase = 'STANDBY' WHERE id = $1`, a.ID)
	for _, ev := range s.until("updated a STANDBY") {
		if ev != "heartbeat" {
			t.Errorf("sent again: %s", ev)
		}
	}
	e.Change(`UPDATE workspaces SET deleted_at = now(), phase = 'DELETED' WHERE id = $1`, a.ID)
	s.until("deleted " + string(a.ID))
	for range 20 {
		e.Hub.Notify(a.OwnerID, a.ID)
		e.Hub.Gap()
	}
	e.workspace(e.ann, "b")
	for _, ev := range s.until("updated b PENDING") {
		if ev != "heartbeat" {
			t.Errorf("sent again: %s", ev)
		}
	}
}

// A reader that reconnects receives the deletions that it missed, also of workspaces
// that no longer exist in the database, and none of another user.
func TestEventsAfterReconnectSendDeletions(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	a, b, c := e.workspace(e.ann, "a"), e.workspace(e.ann, "b"), e.workspace(e.ann, "c")
	hers := e.workspace(e.eve, "hers")
	first := e.events(as(e.ann))
	first.until("heartbeat")
	first.end()
	e.Change(`UPDATE workspaces SET deleted_at = now(), phase = 'DELETED' WHERE id = $1`, a.ID)
	e.Change(`UPDATE workspaces SET deleted_at = now(), phase = 'DELETED' WHERE id = $1`, hers.ID)
	e.Change(`UPDATE workspaces SET deleted_at = now() - interval '9 days', phase = 'DELETING', home_ctx = '{"state":"deleting"}' WHERE id = $1`, b.ID)
	e.Change(`UPDATE workspaces SET deleted_at = now() - interval '9 days', phase = 'DELETED' WHERE id = $1`, c.ID)
	got := map[string]bool{}
	for _, ev := range e.events(as(e.ann)).until("heartbeat") {
		got[ev] = true
	}
	if len(got) != 2 || !got["deleted "+string(a.ID)] || !got["deleted "+string(b.ID)] {
		t.Errorf("on coming back: %v", got)
	}
}

// A deletion that is undone between the two lists is not sent.
func TestEventsUndeleteDuringResync(t *testing.T) {
	t.Parallel()
	store := &forgetful{}
	e := newEnv(t, func(c *Config) { store.Store, c.Store = c.Store, store })
	a := e.workspace(e.ann, "a")
	s := e.events(as(e.ann))
	s.until("updated a PENDING")
	s.until("heartbeat")
	store.hide.Store(true)
	e.Hub.Gap()
	for store.hide.Load() {
		<-time.After(time.Millisecond)
	}
	e.workspace(e.ann, "b")
	for _, ev := range s.until("updated b PENDING") {
		if ev == "deleted "+string(a.ID) {
			t.Error("it is told to be gone")
		}
	}
}

// forgetful is a store whose next list can be made empty.
type forgetful struct {
	Store
	hide atomic.Bool
}

func (f *forgetful) ListWorkspaces(ctx context.Context, c workspace.Caller, filter postgres.Filter) ([]workspace.Workspace, string, error) {
	if f.hide.CompareAndSwap(true, false) {
		return nil, "", nil
	}
	return f.Store.ListWorkspaces(ctx, c, filter)
}
