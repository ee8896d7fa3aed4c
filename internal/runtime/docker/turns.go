package docker

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sync/semaphore"
)

// Docker before 23.0 can deadlock if a container leaves a network while another one joins
// or leaves it (moby/moby#42545): it never again answers a call that concerns containers.
// With these versions this server stops a container of a workspace while it starts and
// stops no other one. These turns let starts go on at the same time. That does not exclude the
// deadlock: a container leaves its network also if its process ends, if its start fails,
// or after its turn, if it does not end within maxTurn.

// maxTurn bounds a turn, so that a container which is slow to start or to stop does not
// delay the others for long. code-server stops in 0.1 s.
const maxTurn = 2 * time.Second

// A start takes one share of Runtime.turns, a stop all of them. A start has a part of
// Runtime.starts before, as startsAtOnce says.
const (
	toStart   = 1
	allShares = 1 << 30
	toStop    = allShares
)

// turn waits for the caller's turn to start or to stop a container, and returns the
// function that ends it. With newer versions of Docker it returns at once.
func (r *Runtime) turn(ctx context.Context, shares int64) (end func(), err error) {
	if r.engine(ctx).leavesAtOnce {
		return func() {}, nil
	}
	return take(ctx, r.turns, shares)
}

// startsAtOnce is how many containers of workspaces this server lets Docker create and start
// at once. A start keeps a processor busy: more at once take longer together than one after
// the other, because they wait for the kernel's locks, and all of them are late. Two are the
// least, so that one that waits for a disk leaves the processors to another.
func startsAtOnce(processors int) int64 { return max(2, int64(processors)) }

// startsTurn waits until a container of a workspace may be created and started, and returns the
// function that ends this. One that takes longer than maxTurn does not delay the others.
func (r *Runtime) startsTurn(ctx context.Context) (end func(), err error) {
	return take(ctx, r.starts, allShares/startsAtOnce(r.engine(ctx).processors))
}

// take takes shares for maxTurn at most, and returns the function that returns them.
func take(ctx context.Context, of *semaphore.Weighted, shares int64) (end func(), err error) {
	if err := of.Acquire(ctx, shares); err != nil {
		return nil, err
	}
	once := sync.OnceFunc(func() { of.Release(shares) })
	late := time.AfterFunc(maxTurn, once)
	return func() { late.Stop(); once() }, nil
}

// startInTurn starts a container of a workspace.
func (r *Runtime) startInTurn(ctx context.Context, id string) error {
	end, err := r.turn(ctx, toStart)
	if err != nil {
		return err
	}
	defer end()
	_, err = r.api.ContainerStart(ctx, id, client.ContainerStartOptions{})
	return err
}

// engine is what a version of Docker and the kernel of its host can do.
type engine struct {
	known      bool // Docker has responded
	processors int  // of its machine
	// Pending signals and timers are memory of their container: since Linux 5.15.
	countsSignals bool
	// A container may leave a network while others join or leave it: since Docker 23.0.
	leavesAtOnce bool
	// The uids in containers are those of the host: neither userns-remap nor rootless.
	keepsUsers bool
}

// engine asks Docker until it responds once, and keeps the answer. Until then it returns
// the zero value, which is safe with every version; the call that follows reports the
// failure.
func (r *Runtime) engine(ctx context.Context) engine {
	if known, ok := r.known.Load().(engine); ok {
		return known
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	res, err := r.api.Info(ctx, client.InfoOptions{})
	if err != nil {
		return engine{}
	}
	e := engine{known: true, processors: res.Info.NCPU, countsSignals: atLeast(res.Info.KernelVersion, 5, 15), leavesAtOnce: atLeast(res.Info.ServerVersion, 23, 0), keepsUsers: keepsUsers(res.Info.SecurityOptions)}
	r.known.Store(e)
	return e
}

func keepsUsers(security []string) bool {
	return !slices.ContainsFunc(security, func(option string) bool {
		name, _, _ := strings.Cut(strings.TrimPrefix(option, "name="), ",")
		return name == "userns" || name == "rootless"
	})
}
