package e2e

import (
	"runtime"
	"sync"
	"testing"
)

// lane is a part of a test that runs beside others of it: what is fatal to it
// ends it alone. Servers have many workspaces and are slow to start, so that
// one server's workspaces are what runs side by side.
type lane struct{ testing.TB }

func (l lane) FailNow() {
	l.Fail()
	runtime.Goexit()
}

func (l lane) Fatal(args ...any) {
	l.Helper()
	l.Error(args...)
	runtime.Goexit()
}

func (l lane) Fatalf(format string, args ...any) {
	l.Helper()
	l.Errorf(format, args...)
	runtime.Goexit()
}

// abreast runs f n times at once and waits for all; on is the server as each
// lane has it.
func (s *server) abreast(n int, f func(i int, on *server)) {
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			on := *s
			on.test = test{lane{s.TB}}
			f(i, &on)
		})
	}
	group.Wait()
}

// sound ends a test whose lanes have failed.
func (s *server) sound() {
	s.Helper()
	if s.Failed() {
		s.Fatal("ends here: what follows builds on what failed above")
	}
}
