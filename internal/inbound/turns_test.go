package inbound

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns()
		var ends []func()
		for range firstAtOnce {
			ends = append(ends, turns.begin(t.Context()))
		}
		begun := time.Now()
		begin := func(ctx context.Context) (got chan time.Duration) {
			got = make(chan time.Duration, 1)
			go func() {
				turns.begin(ctx)
				got <- time.Since(begun)
			}()
			synctest.Wait()
			return got
		}
		first := begin(t.Context())
		left, leave := context.WithCancel(t.Context())
		gone := begin(left)
		second := begin(t.Context())

		time.Sleep(time.Millisecond)
		leave()
		synctest.Wait()
		ends[0]()
		ends[0]() // has no effect
		synctest.Wait()
		if d := <-first; d != time.Millisecond {
			t.Errorf("the first that waits has its turn after %v", d)
		}
		if d := <-gone; d != time.Millisecond {
			t.Errorf("a connection that has ended waits for %v", d)
		}
		if d := <-second; d != turnTime {
			t.Errorf("the second that waits has its turn after %v, want %v: a slow answer keeps nobody out", d, turnTime)
		}
		for _, end := range ends {
			end()
		}
		time.Sleep(turnTime)
		synctest.Wait()
		if len(turns) != 0 {
			t.Errorf("%d turns never end", len(turns))
		}
	})
}
