package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"codehub/internal/e2e/proc"
)

// trouble is what goes wrong with a cluster, several things at once.
type trouble struct {
	*cluster
	bucketProxy *bucketProxy // nil: the bucket stays

	group sync.WaitGroup
	over  chan struct{} // faults end and none begins

	mu    sync.Mutex
	busy  map[string]bool // what something is wrong with
	tally map[string]int
}

// mishap is a kind of fault: of says with what it begins, which is left alone
// by others until it is over.
type mishap struct {
	name   string
	weight int
	of     func(tr *trouble, m *member) (target string)
	begin  func(tr *trouble, m *member, rng *rand.Rand)
	least  time.Duration // for how long, at most twice as long as most
	most   time.Duration
	end    func(tr *trouble, m *member)
}

func theMember(_ *trouble, m *member) string   { return m.name }
func theDatabase(_ *trouble, m *member) string { return "database of " + m.name }
func theEngine(_ *trouble, m *member) string   { return "engine of " + m.name }
func named(s string) func(*trouble, *member) string {
	return func(*trouble, *member) string { return s }
}

var mishaps = []mishap{
	{"kill -9", 6, theMember, func(tr *trouble, m *member, _ *rand.Rand) { m.Kill() }, 0, 3 * time.Second, (*trouble).revive},
	{"SIGSTOP, soon awake", 3, theMember, func(_ *trouble, m *member, _ *rand.Rand) { m.stop() }, 0, 8 * time.Second, func(_ *trouble, m *member) { m.wake() }},
	{"SIGSTOP", 2, theMember, func(_ *trouble, m *member, _ *rand.Rand) { m.stop() }, 16 * time.Second, 20 * time.Second, func(_ *trouble, m *member) { m.wake() }},
	{"database cut", 3, theDatabase, func(_ *trouble, m *member, _ *rand.Rand) { m.db.cut() }, 0, 5 * time.Second, func(_ *trouble, m *member) { m.db.heal() }},
	{"database silent, for a moment", 2, theDatabase, func(_ *trouble, m *member, _ *rand.Rand) { m.db.freeze() }, 0, 8 * time.Second, func(_ *trouble, m *member) { m.db.heal() }},
	{"database silent", 2, theDatabase, func(_ *trouble, m *member, _ *rand.Rand) { m.db.freeze() }, 16 * time.Second, 20 * time.Second, func(_ *trouble, m *member) { m.db.heal() }},
	{"database slow", 2, theDatabase, func(_ *trouble, m *member, rng *rand.Rand) {
		m.db.slow(time.Duration(rng.IntN(100)) * time.Millisecond)
	}, time.Second, 6 * time.Second, func(_ *trouble, m *member) { m.db.heal() }},
	{"engine cut", 2, theEngine, func(_ *trouble, m *member, _ *rand.Rand) { m.engine.cut() }, 0, 5 * time.Second, func(_ *trouble, m *member) { m.engine.heal() }},
	{"engine silent", 2, theEngine, func(_ *trouble, m *member, _ *rand.Rand) { m.engine.freeze() }, 0, 8 * time.Second, func(_ *trouble, m *member) { m.engine.heal() }},
	{"engine cut from all", 2, named("engine"), func(tr *trouble, _ *member, _ *rand.Rand) {
		for _, m := range tr.members {
			m.engine.cut()
		}
	}, time.Second, 6 * time.Second, func(tr *trouble, _ *member) {
		for _, m := range tr.members {
			m.engine.heal()
		}
	}},
	{"redis restarted", 2, named("redis"), func(tr *trouble, _ *member, _ *rand.Rand) { tr.redis.kill() }, 0, 4 * time.Second, func(tr *trouble, _ *member) { tr.redis.start() }},
	{"redis flushed", 1, named("redis"), func(tr *trouble, _ *member, _ *rand.Rand) { tr.redis.flush() }, 0, 0, func(*trouble, *member) {}},
	{"bucket away", 3, named("bucket"), func(tr *trouble, _ *member, _ *rand.Rand) { tr.bucketProxy.away() }, 0, 5 * time.Second, func(tr *trouble, _ *member) { tr.bucketProxy.back() }},
	{"container removed by hand", 6, named("container"), func(tr *trouble, _ *member, rng *rand.Rand) { tr.removeSome(rng.Int()) }, 0, 0, func(*trouble, *member) {}},
	{"postgres restarted", 1, named("postgres"), func(tr *trouble, _ *member, _ *rand.Rand) { tr.pg.Stop() }, 0, 2 * time.Second, func(tr *trouble, _ *member) { tr.pg.Start() }},
}

func newTrouble(c *cluster, p *bucketProxy) *trouble {
	return &trouble{cluster: c, bucketProxy: p, over: make(chan struct{}), busy: map[string]bool{}, tally: map[string]int{}}
}

// make has something go wrong every pause or so, until the time is up, and
// returns once everything is as it should be again.
func (tr *trouble) make(rng *rand.Rand, pause time.Duration, until <-chan struct{}) {
	total := 0
	for _, m := range mishaps {
		total += m.weight
	}
	for {
		at, on, length := rng.IntN(total), tr.members[rng.IntN(len(tr.members))], rng.Int64()
		own := rand.New(rand.NewPCG(rng.Uint64(), 0))
		select {
		case <-until:
			close(tr.over)
			tr.group.Wait()
			return
		case <-time.After(pause/2 + time.Duration(rng.Int64N(int64(pause)))):
		}
		for _, m := range mishaps {
			if at -= m.weight; at >= 0 {
				continue
			}
			lasts := m.least
			if m.most > m.least {
				lasts += time.Duration(length % int64(m.most-m.least))
			}
			tr.happen(m, on, own, lasts)
			break
		}
	}
}

// happen begins a fault beside the others, if nothing is wrong with its target.
func (tr *trouble) happen(m mishap, on *member, rng *rand.Rand, lasts time.Duration) {
	target := m.of(tr, on)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	// What all share and what is one server's own are not touched at once, nor
	// more than two things.
	if tr.busy[target] || len(tr.busy) >= 2 || strings.HasPrefix(target, "engine") && slices.ContainsFunc(slices.Collect(maps.Keys(tr.busy)), func(b string) bool { return strings.HasPrefix(b, "engine") }) {
		return
	}
	tr.busy[target] = true
	tr.tally[m.name]++
	tr.group.Go(func() {
		tr.Logf("%s %s: %s, for %.1f s", time.Now().Format("15:04:05.000"), on.name, m.name, lasts.Seconds())
		m.begin(tr, on, rng)
		select {
		case <-time.After(lasts):
		case <-tr.over:
		}
		m.end(tr, on)
		tr.mu.Lock()
		defer tr.mu.Unlock()
		delete(tr.busy, target)
	})
}

// revive starts a server that was killed. Its start fails while what it needs
// is away: whoever runs it starts it again.
func (tr *trouble) revive(m *member) {
	deadline := time.Now().Add(90 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		err := m.Start(ctx)
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			tr.Errorf("%s does not come back: %v", m.name, err)
			return
		}
		m.Kill()
		time.Sleep(200 * time.Millisecond)
	}
}

// removeSome removes one of the installation's containers by hand: a
// workspace's, a storage job, or what holds a home.
func (tr *trouble) removeSome(which int) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	mine := client.Filters{}.Add("label", proc.Label(tr.members[0].Installation()))
	list, err := env.docker.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: mine})
	if err != nil || len(list.Items) == 0 {
		return
	}
	k := list.Items[which%len(list.Items)]
	_, err = env.docker.ContainerRemove(ctx, k.ID, client.ContainerRemoveOptions{Force: true})
	tr.Logf("removed %v (%s), %v", k.Names, k.State, err)
}

// said is what happened, how often each.
func said(tally map[string]int) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(tally)) {
		fmt.Fprintf(&b, "\n  %4d %s", tally[name], name)
	}
	return b.String()
}
