package e2e

import (
	"runtime"
	"sync"
	"testing"
)

// parallelTB is the testing.TB of one goroutine of a test: Fatal ends that
// goroutine only. Tests use several workspaces of one server in parallel,
// because a server is slow to start.
type parallelTB struct{ testing.TB }

func (l parallelTB) FailNow() {
	l.Fail()
	runtime.Goexit()
}

func (l parallelTB) Fatal(args ...any) {
	l.Helper()
	l.Error(args...)
	runtime.Goexit()
}

func (l parallelTB) Fatalf(format string, args ...any) {
	l.Helper()
	l.Errorf(format, args...)
	runtime.Goexit()
}

// inParallel runs f n times in parallel and waits for all. on is the server for
// use in that goroutine.
func (s *server) inParallel(n int, f func(i int, on *server)) {
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			on := *s
			on.test = test{parallelTB{s.TB}}
			f(i, &on)
		})
	}
	group.Wait()
}
