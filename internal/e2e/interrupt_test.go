package e2e

import (
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
)

// interrupted is what is to be done should the tests be told to end in the
// middle: their own cleanups do not run then, and what they made in Docker
// outlives them.
var interrupted struct {
	mu   sync.Mutex
	next int
	all  map[int]func()
}

// cleanup is t.Cleanup that an interrupt does not skip. An interrupt runs f
// beside all others, and while the test goes on.
func cleanup(t *testing.T, f func()) {
	t.Helper()
	once := sync.OnceFunc(f)
	interrupted.mu.Lock()
	defer interrupted.mu.Unlock()
	n := interrupted.next
	interrupted.next++
	if interrupted.all == nil {
		interrupted.all = map[int]func(){}
	}
	interrupted.all[n] = once
	t.Cleanup(func() {
		once()
		interrupted.mu.Lock()
		defer interrupted.mu.Unlock()
		delete(interrupted.all, n)
	})
}

// watchForInterrupts ends the tests when they are told to, with nothing left
// behind.
func watchForInterrupts() {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM, os.Interrupt)
	go func() {
		fmt.Fprintf(os.Stderr, "e2e: %v; cleaning up\n", <-told)
		interrupted.mu.Lock() // for good: nobody begins anything any more
		var group sync.WaitGroup
		for _, f := range interrupted.all {
			group.Go(f)
		}
		group.Wait()
		os.RemoveAll(env.scratch)
		os.Exit(1)
	}()
}
