package activity

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/workspace"
)

const (
	wsA = workspace.ID("0198c0de-0000-7000-8000-00000000000a")
	wsB = workspace.ID("0198c0de-0000-7000-8000-00000000000b")
)

func TestRecorder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := New()
		start := time.Now()
		a, b := r.Mark(wsA), r.Mark(wsB)
		if seen := r.Since(time.Time{}); len(seen) != 0 {
			t.Errorf("used without any activity: %v", seen)
		}
		time.Sleep(time.Second)
		a.Touch(Open)
		time.Sleep(time.Second)
		b.Touch(Typing)
		if got, ok := r.Last(wsA); !ok || !got.At.Equal(start.Add(time.Second)) || got.Kind != Open {
			t.Errorf("a was last used %v, %v", got, ok)
		}
		if got := r.Since(time.Time{}); len(got) != 2 {
			t.Errorf("everything is %v", got)
		}
		want := []Access{{ID: wsB, At: start.Add(2 * time.Second), Kind: Typing}}
		if diff := cmp.Diff(want, r.Since(start.Add(2*time.Second))); diff != "" {
			t.Error("since a time, itself included:", diff)
		}
		if got := r.Since(start.Add(2*time.Second + 1)); len(got) != 0 {
			t.Errorf("later than all: %v", got)
		}
		a.Touch(Output)
		if got, _ := r.Last(wsA); got.Kind != Output || !got.At.Equal(start.Add(2*time.Second)) {
			t.Errorf("a was used again, and last %v", got)
		}
	})
}

// Every kind is kept, and an unknown one counts as Client.
func TestKinds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := New()
		m := r.Mark(wsA)
		for _, kind := range []Kind{Open, Presence, Typing, Output, Client, Stay, "new"} {
			time.Sleep(time.Nanosecond)
			m.Touch(kind)
			want := kind
			if kind == "new" {
				want = Client
			}
			if got, _ := r.Last(wsA); got.Kind != want {
				t.Errorf("%s is kept as %s", kind, got.Kind)
			}
		}
	})
}

// Flushed activity is dropped unless the workspace has connections.
func TestForget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := New()
		a, again, b, unused := r.Mark(wsA), r.Mark(wsA), r.Mark(wsB), r.Mark("unused")
		a.Touch(Typing)
		b.Touch(Typing)
		time.Sleep(time.Second)
		a.Release()
		a.Release() // the second call has no effect
		b.Release()
		unused.Release()
		if len(r.entries) != 2 {
			t.Errorf("%d in memory although one was never used", len(r.entries))
		}
		r.Forget(time.Now().Add(-time.Second))
		if len(r.entries) != 2 {
			t.Errorf("%d in memory before the flush", len(r.entries))
		}
		r.Forget(time.Now())
		if _, ok := r.Last(wsB); ok || len(r.entries) != 1 {
			t.Errorf("%d in memory after the flush", len(r.entries))
		}
		again.Touch(Output)
		if got, ok := r.Last(wsA); !ok || got.Kind != Output {
			t.Errorf("a connection that is still there records %v, %v", got, ok)
		}
		again.Release()
		time.Sleep(time.Nanosecond)
		r.Forget(time.Now())
		if len(r.entries) != 0 {
			t.Errorf("%d in memory at the end", len(r.entries))
		}
	})
}

// A use that Since has not returned is dated after the call, so the next call
// returns it.
func TestSinceMissesNoUse(t *testing.T) {
	t.Parallel()
	r := New()
	for round := range 20_000 {
		m := r.Mark(wsA)
		var user sync.WaitGroup
		user.Go(func() { m.Touch(Typing) })
		asked := time.Now()
		first := r.Since(time.Time{})
		user.Wait()
		if second := r.Since(asked); len(first)+len(second) == 0 {
			last, _ := r.Last(wsA)
			t.Fatalf("round %d: used %v before the call of Since, which did not return it", round, asked.Sub(last.At))
		}
		m.Release()
		r.Forget(time.Now().Add(time.Hour))
	}
}

func TestNilRecorder(t *testing.T) {
	t.Parallel()
	var r *Recorder
	m := r.Mark(wsA)
	m.Touch(Open)
	m.Release()
	r.Forget(time.Now())
	if _, ok := r.Last(wsA); ok || len(r.Since(time.Time{})) != 0 {
		t.Error("no recorder has recorded something")
	}
}

func TestTouchDoesNotAllocate(t *testing.T) { // not in parallel with tests that allocate
	m := New().Mark(wsA)
	if n := testing.AllocsPerRun(1000, func() { m.Touch(Typing) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkTouch records on many connections at once.
func BenchmarkTouch(b *testing.B) {
	for _, connections := range []int{1, 1000} {
		b.Run(fmt.Sprintf("connections=%d", connections), func(b *testing.B) {
			r := New()
			marks := make([]*Mark, connections)
			for i := range marks {
				marks[i] = r.Mark(workspace.ID(fmt.Sprint(i)))
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					marks[i%len(marks)].Touch(Typing)
				}
			})
		})
	}
}
