package engine

import (
	"context"
	"fmt"
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

// A start takes one share of Engine.turns, a stop all of them. A start has a part of
// Engine.starts before, as startsAtOnce says.
const (
	toStart   = 1
	allShares = 1 << 30
	toStop    = allShares
)

// turn waits for the caller's turn to start or to stop a container, and returns the
// function that ends it. With newer versions of Docker it returns at once.
func (e *Engine) turn(ctx context.Context, shares int64) (end func(), err error) {
	if e.Features(ctx).leavesAtOnce {
		return func() {}, nil
	}
	return take(ctx, e.turns, shares)
}

// startsAtOnce is how many containers of workspaces this server lets Docker create and start
// at once. A start keeps a processor busy: more at once take longer together than one after
// the other, because they wait for the kernel's locks, and all of them are late. Two are the
// least, so that one that waits for a disk leaves the processors to another.
func startsAtOnce(processors int) int64 { return max(2, int64(processors)) }

// StartsTurn waits until a container of a workspace may be created and started, and returns the
// function that ends this. One that takes longer than maxTurn does not delay the others.
func (e *Engine) StartsTurn(ctx context.Context) (end func(), err error) {
	return take(ctx, e.starts, allShares/startsAtOnce(e.Features(ctx).processors))
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

// StopTurn waits for the caller's turn to stop a container.
func (e *Engine) StopTurn(ctx context.Context) (end func(), err error) { return e.turn(ctx, toStop) }

// StartInTurn starts a container of a workspace.
func (e *Engine) StartInTurn(ctx context.Context, id string) error {
	end, err := e.turn(ctx, toStart)
	if err != nil {
		return err
	}
	defer end()
	_, err = e.API.ContainerStart(ctx, id, client.ContainerStartOptions{})
	return err
}

// Features is what a version of Docker and the kernel of its host can do.
type Features struct {
	Known      bool // Docker has responded
	processors int  // of its machine
	// Pending signals and timers are memory of their container: since Linux 5.15.
	CountsSignals bool
	// A container may leave a network while others join or leave it: since Docker 23.0.
	leavesAtOnce bool
	// The uids in containers are those of the host: neither userns-remap nor rootless.
	KeepsUsers bool
	// Containers may read the files of the host that are mounted into them: KeepsUsers, and no
	// SELinux, which asks for labels of them.
	MountsFiles bool
}

// Features asks Docker until it responds once, and keeps the answer. Until then it returns
// the zero value, which is safe with every version; the call that follows reports the
// failure.
func (e *Engine) Features(ctx context.Context) Features {
	if known, ok := e.known.Load().(Features); ok {
		return known
	}
	ctx, cancel := context.WithTimeout(ctx, AskTimeout)
	defer cancel()
	res, err := e.API.Info(ctx, client.InfoOptions{})
	if err != nil {
		return Features{}
	}
	f := Features{Known: true, processors: res.Info.NCPU, CountsSignals: atLeast(res.Info.KernelVersion, 5, 15), leavesAtOnce: atLeast(res.Info.ServerVersion, 23, 0), KeepsUsers: !hasOption(res.Info.SecurityOptions, "userns", "rootless")}
	f.MountsFiles = f.KeepsUsers && !hasOption(res.Info.SecurityOptions, "selinux")
	e.known.Store(f)
	return f
}

// hasOption reports whether Docker has one of the security options with these names.
func hasOption(security []string, names ...string) bool {
	return slices.ContainsFunc(security, func(option string) bool {
		name, _, _ := strings.Cut(strings.TrimPrefix(option, "name="), ",")
		return slices.Contains(names, name)
	})
}

func atLeast(version string, major, minor int) bool {
	var a, b int
	if _, err := fmt.Sscanf(version, "%d.%d", &a, &b); err != nil {
		return false
	}
	return a > major || a == major && b >= minor
}
