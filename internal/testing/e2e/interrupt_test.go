package e2e

import (
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
)

// interrupted has the functions to call when a signal ends the tests: t.Cleanup
// does not run then, and resources would be left in Docker.
var interrupted struct {
	mu   sync.Mutex
	next int
	all  map[int]func()
}

// cleanup is t.Cleanup whose function also runs on an interrupt, in parallel
// with those of other tests and while its own test runs.
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

// watchForInterrupts ends the tests on SIGTERM or an interrupt, after the
// functions of cleanup.
func watchForInterrupts() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	go func() {
		fmt.Fprintf(os.Stderr, "e2e: %v; cleaning up\n", <-signals)
		interrupted.mu.Lock() // not unlocked, so that no test registers another function
		var group sync.WaitGroup
		for _, f := range interrupted.all {
			group.Go(f)
		}
		group.Wait()
		os.RemoveAll(env.scratch)
		os.Exit(1)
	}()
}
