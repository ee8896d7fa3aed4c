package flow

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// A window that was skipped is full again until the late acknowledgements have come.
func TestWindowSkip(t *testing.T) {
	t.Parallel()
	now, cancel := context.WithCancel(t.Context())
	cancel()
	w := NewWindow(10)
	sends := func(n int, want bool) {
		t.Helper()
		if err := w.Send(now, n); (err == nil) != want {
			t.Errorf("send %d: %v", n, err)
		}
	}
	sends(12, true)
	sends(1, false)
	w.Skip()
	sends(10, true)
	sends(1, false)
	w.Ack(12) // late
	sends(1, false)
	w.Ack(1)
	sends(1, true)
	w.Ack(5)
	w.Skip() // not full
	sends(5, true)
	sends(1, false)
	w.Ack(1000) // more than was sent
	sends(10, true)
	sends(1, false)
}

// A queue keeps the order, holds no more than its size and one item, says while it is full that it
// is, and ends after its last item.
func TestQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const items, size = 20, 4
		q := NewQueue[int](size)
		stalled, put := 0, 0
		q.Stalled(time.Second, func() { stalled++ })
		go func() {
			for put < items {
				if err := q.Put(t.Context(), put, 1); err != nil {
					t.Error(err)
				}
				put++
			}
			q.End()
		}()
		time.Sleep(3500 * time.Millisecond)
		synctest.Wait()
		if put != size || stalled != 3 {
			t.Errorf("%d items wait, it stalled %d times", put, stalled)
		}
		for want := range items {
			if got, err := q.Get(t.Context()); err != nil || got != want {
				t.Fatalf("got %d, %v, want %d", got, err, want)
			}
		}
		if _, err := q.Get(t.Context()); !errors.Is(err, io.EOF) {
			t.Errorf("after the last: %v", err)
		}
	})
}
