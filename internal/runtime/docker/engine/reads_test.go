package engine

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// Callers get the result of a read that began after they asked, and share it.
func TestReadsAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r Reads[string, int64]
		var begun atomic.Int64
		goOn := make(chan struct{})
		read := func(context.Context) (int64, error) {
			n := begun.Add(1)
			<-goOn
			return n, nil
		}
		results := make([]int64, 10)
		var g sync.WaitGroup
		ask := func(i int) {
			g.Go(func() { results[i], _ = r.Do(t.Context(), "a", read) })
		}
		ask(0)
		synctest.Wait()
		for i := 1; i < len(results); i++ {
			ask(i)
		}
		synctest.Wait()
		if n := begun.Load(); n != 1 {
			t.Fatalf("%d reads began while the first one ran, want 1", n)
		}
		close(goOn)
		g.Wait()
		if results[0] != 1 {
			t.Errorf("the first caller got read %d", results[0])
		}
		for i, n := range results[1:] {
			if n != 2 {
				t.Errorf("caller %d got read %d, which began before it asked or was not shared", i+1, n)
			}
		}
		synctest.Wait()
		if len(r.keys) != 0 {
			t.Errorf("%d keys are kept after the last read", len(r.keys))
		}
	})
}

// A caller that goes leaves the read to the others; the last one ends it.
func TestReadsOfCallersThatLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r Reads[string, int]
		read := func(ctx context.Context) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}
		run := func() (leave context.CancelFunc, ended chan error) {
			ctx, cancel := context.WithCancel(t.Context())
			ended = make(chan error, 1)
			go func() {
				_, err := r.Do(ctx, "a", read)
				ended <- err
			}()
			synctest.Wait()
			return cancel, ended
		}
		leaveFirst, first := run()
		leaveSecond, second := run()
		leaveThird, third := run()

		leaveSecond()
		if err := <-second; !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that left got %v", err)
		}
		leaveFirst() // its read ends, and that of the third begins
		<-first
		synctest.Wait()
		select {
		case err := <-third:
			t.Fatalf("the third caller got the result of a read that others left: %v", err)
		default:
		}
		leaveThird()
		<-third
		synctest.Wait()
		if len(r.keys) != 0 {
			t.Errorf("%d keys are kept after the last read", len(r.keys))
		}
	})
}
