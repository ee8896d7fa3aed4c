package inbound

import (
	"context"
	"sync"
	"time"
)

const (
	// firstAtOnce is how many first requests of connections have a turn at the same time.
	firstAtOnce = 32
	// turnTime is how long a turn lasts at most: the wait for a slow answer keeps nobody
	// out.
	turnTime = 10 * time.Millisecond
)

// turns are those of the first requests of new connections. If thousands of connections
// are opened at once, their goroutines would all be ready to run, and Go's scheduler
// would have everything else wait behind them, such as a keystroke of another user.
// Those without a turn are not ready to run.
type turns chan struct{}

func newTurns() turns { return make(turns, firstAtOnce) }

// begin waits for a turn. end may be called more than once.
func (t turns) begin(ctx context.Context) (end func()) {
	select {
	case t <- struct{}{}:
	case <-ctx.Done():
		return func() {}
	}
	free := sync.OnceFunc(func() { <-t })
	timer := time.AfterFunc(turnTime, free)
	return func() {
		timer.Stop()
		free()
	}
}
