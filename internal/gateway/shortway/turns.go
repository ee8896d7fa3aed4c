package shortway

import (
	"context"
	"runtime"
	"sync"
	"time"
)

const (
	// turnsPerProcessor is how many first requests have a turn at the same time for each
	// processor that Go uses.
	turnsPerProcessor = 4
	// turnTime is the longest turn. A request that takes longer continues without one: it waits
	// for its container, most likely. So each processor begins at least 1,600 first requests per
	// second, also where a proxy in front opens a connection for each request.
	turnTime = 2500 * time.Microsecond
	// turnWait is the longest wait for a turn. Then a request is served without one.
	turnWait = 2 * time.Second
)

// turns are those of the first requests of new connections. If thousands of connections
// are opened at once, their goroutines would all be ready to run, and Go's scheduler
// would have everything else wait behind them, such as a keystroke of another user.
// Those without a turn are not ready to run.
type turns chan struct{}

func newTurns() turns { return make(turns, turnsPerProcessor*runtime.GOMAXPROCS(0)) }

// begin waits for a turn, until turnWait has passed or ctx ends. end may be called more than
// once.
func (t turns) begin(ctx context.Context) (end func()) {
	select {
	case t <- struct{}{}:
	default:
		late := time.NewTimer(turnWait)
		defer late.Stop()
		select {
		case t <- struct{}{}:
		case <-late.C:
			return func() {}
		case <-ctx.Done():
			return func() {}
		}
	}
	free := sync.OnceFunc(func() { <-t })
	timer := time.AfterFunc(turnTime, free)
	return func() {
		timer.Stop()
		free()
	}
}
