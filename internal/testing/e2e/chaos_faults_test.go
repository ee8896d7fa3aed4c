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

	"codehub/internal/testing/e2e/proc"
)

// faultInjector injects faults into a cluster, up to two at a time.
type faultInjector struct {
	*cluster
	bucketLink *link

	group sync.WaitGroup
	stop  chan struct{} // closed: faults end and none begins

	mu     sync.Mutex
	faulty map[string]bool // targets that have a fault now
	tally  map[string]int
}

// clusterFault is a kind of fault. target names what it affects: a target has
// one fault at a time.
type clusterFault struct {
	name        string
	weight      int
	target      func(tr *faultInjector, m *member) (target string)
	begin       func(tr *faultInjector, m *member, rng *rand.Rand)
	minDuration time.Duration // a fault lasts from minDuration to maxDuration
	maxDuration time.Duration
	end         func(tr *faultInjector, m *member)
}

func serverTarget(_ *faultInjector, m *member) string   { return m.name }
func databaseTarget(_ *faultInjector, m *member) string { return "database of " + m.name }
func dockerTarget(_ *faultInjector, m *member) string   { return "Docker of " + m.name }
func sharedTarget(s string) func(*faultInjector, *member) string {
	return func(*faultInjector, *member) string { return s }
}

var clusterFaults = []clusterFault{
	{"kill -9", 6, serverTarget, func(tr *faultInjector, m *member, _ *rand.Rand) { m.Kill() }, 0, 3 * time.Second, (*faultInjector).revive},
	{"SIGSTOP, short", 3, serverTarget, func(_ *faultInjector, m *member, _ *rand.Rand) { m.stop() }, 0, 8 * time.Second, func(_ *faultInjector, m *member) { m.resume() }},
	{"SIGSTOP", 2, serverTarget, func(_ *faultInjector, m *member, _ *rand.Rand) { m.stop() }, 16 * time.Second, 20 * time.Second, func(_ *faultInjector, m *member) { m.resume() }},
	{"database cut", 3, databaseTarget, func(_ *faultInjector, m *member, _ *rand.Rand) { m.dbLink.cut() }, 0, 5 * time.Second, func(_ *faultInjector, m *member) { m.dbLink.heal() }},
	{"database frozen, short", 2, databaseTarget, func(_ *faultInjector, m *member, _ *rand.Rand) { m.dbLink.freeze() }, 0, 8 * time.Second, func(_ *faultInjector, m *member) { m.dbLink.heal() }},
	{"database frozen", 2, databaseTarget, func(_ *faultInjector, m *member, _ *rand.Rand) { m.dbLink.freeze() }, 16 * time.Second, 20 * time.Second, func(_ *faultInjector, m *member) { m.dbLink.heal() }},
	{"database slow", 2, databaseTarget, func(_ *faultInjector, m *member, rng *rand.Rand) {
		m.dbLink.slow(time.Duration(rng.IntN(100)) * time.Millisecond)
	}, time.Second, 6 * time.Second, func(_ *faultInjector, m *member) { m.dbLink.heal() }},
	{"Docker cut", 2, dockerTarget, func(_ *faultInjector, m *member, _ *rand.Rand) { m.dockerLink.cut() }, 0, 5 * time.Second, func(_ *faultInjector, m *member) { m.dockerLink.heal() }},
	{"Docker frozen", 2, dockerTarget, func(_ *faultInjector, m *member, _ *rand.Rand) { m.dockerLink.freeze() }, 0, 8 * time.Second, func(_ *faultInjector, m *member) { m.dockerLink.heal() }},
	{"Docker cut from all servers", 2, sharedTarget("Docker"), func(tr *faultInjector, _ *member, _ *rand.Rand) {
		for _, m := range tr.members {
			m.dockerLink.cut()
		}
	}, time.Second, 6 * time.Second, func(tr *faultInjector, _ *member) {
		for _, m := range tr.members {
			m.dockerLink.heal()
		}
	}},
	{"redis restarted", 2, sharedTarget("redis"), func(tr *faultInjector, _ *member, _ *rand.Rand) { tr.redis.kill() }, 0, 4 * time.Second, func(tr *faultInjector, _ *member) { tr.redis.start() }},
	{"redis flushed", 1, sharedTarget("redis"), func(tr *faultInjector, _ *member, _ *rand.Rand) { tr.redis.flush() }, 0, 0, func(*faultInjector, *member) {}},
	{"bucket unavailable", 3, sharedTarget("bucket"), func(tr *faultInjector, _ *member, _ *rand.Rand) { tr.bucketLink.cut() }, 0, 5 * time.Second, func(tr *faultInjector, _ *member) { tr.bucketLink.heal() }},
	{"container removed by hand", 6, sharedTarget("container"), func(tr *faultInjector, _ *member, rng *rand.Rand) { tr.removeSome(rng.Int()) }, 0, 0, func(*faultInjector, *member) {}},
	{"postgres restarted", 1, sharedTarget("postgres"), func(tr *faultInjector, _ *member, _ *rand.Rand) { tr.pg.Stop() }, 0, 2 * time.Second, func(tr *faultInjector, _ *member) { tr.pg.Start() }},
}

func newFaultInjector(c *cluster, p *link) *faultInjector {
	return &faultInjector{cluster: c, bucketLink: p, stop: make(chan struct{}), faulty: map[string]bool{}, tally: map[string]int{}}
}

// run begins a fault about once every pause, until the channel is closed. It
// returns after all faults have ended.
func (tr *faultInjector) run(rng *rand.Rand, pause time.Duration, until <-chan struct{}) {
	total := 0
	for _, m := range clusterFaults {
		total += m.weight
	}
	for {
		at, on, length := rng.IntN(total), tr.members[rng.IntN(len(tr.members))], rng.Int64()
		own := rand.New(rand.NewPCG(rng.Uint64(), 0))
		select {
		case <-until:
			close(tr.stop)
			tr.group.Wait()
			return
		case <-time.After(pause/2 + time.Duration(rng.Int64N(int64(pause)))):
		}
		for _, m := range clusterFaults {
			if at -= m.weight; at >= 0 {
				continue
			}
			duration := m.minDuration
			if m.maxDuration > m.minDuration {
				duration += time.Duration(length % int64(m.maxDuration-m.minDuration))
			}
			tr.inject(m, on, own, duration)
			break
		}
	}
}

// inject begins a fault in a goroutine, unless its target has a fault or two
// other faults are active.
func (tr *faultInjector) inject(m clusterFault, on *member, rng *rand.Rand, duration time.Duration) {
	target := m.target(tr, on)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	// The links to Docker have one fault at a time: one link, or all of them.
	if tr.faulty[target] || len(tr.faulty) >= 2 || strings.HasPrefix(target, "Docker") && slices.ContainsFunc(slices.Collect(maps.Keys(tr.faulty)), func(b string) bool { return strings.HasPrefix(b, "Docker") }) {
		return
	}
	tr.faulty[target] = true
	tr.tally[m.name]++
	tr.group.Go(func() {
		tr.Logf("%s %s: %s, for %.1f s", time.Now().Format("15:04:05.000"), on.name, m.name, duration.Seconds())
		m.begin(tr, on, rng)
		select {
		case <-time.After(duration):
		case <-tr.stop:
		}
		m.end(tr, on)
		tr.mu.Lock()
		defer tr.mu.Unlock()
		delete(tr.faulty, target)
	})
}

// revive restarts a killed server. It retries, because a start fails while the
// database or Docker is unavailable.
func (tr *faultInjector) revive(m *member) {
	deadline := time.Now().Add(90 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		err := m.Start(ctx)
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			tr.Errorf("%s does not restart: %v", m.name, err)
			return
		}
		m.Kill()
		time.Sleep(200 * time.Millisecond)
	}
}

// removeSome removes one of the installation's containers: a workspace's, a
// storage job's, or the holder of a home.
func (tr *faultInjector) removeSome(which int) {
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

// formatTally formats one line for each name and its count.
func formatTally(tally map[string]int) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(tally)) {
		fmt.Fprintf(&b, "\n  %4d %s", tally[name], name)
	}
	return b.String()
}
