package e2e

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"codehub/internal/e2e/proc"
)

// People ask three servers for anything at random while servers crash and
// freeze, lose the database, the engine or the bucket, Redis forgets, and
// containers are removed by hand. What must never be never is (see audit), and
// once the faults are over everything comes to where it is wanted: no home has
// lost a byte, every subscriber knows, and nothing is left over.
// SOAK_CHAOS=1h has it go on for longer; SEED repeats the choices.
func TestChaos(t *testing.T) {
	t.Parallel()
	lasts := 60 * time.Second
	if v := os.Getenv("SOAK_CHAOS"); v != "" {
		var err error
		if lasts, err = time.ParseDuration(v); err != nil {
			t.Fatalf("SOAK_CHAOS: %v", err)
		}
	}
	rng := seeded(t, 30)
	b := s3Bucket(t)
	p := newBucketProxy(lane{t}, b)
	c := startCluster(t, clusterOf{
		servers: 3, postgres: true, redis: true, bucket: b, endpoint: p.URL,
		limits: limits{perUser: 2, global: 5, observed: true},
		settings: []string{
			"MAX_RUNNING_PER_USER=2", "MAX_RUNNING_GLOBAL=5", "CODEHUB_DELETE_GRACE=8s", "COORDINATOR_IDLE_INTERVAL=2s",
			"CODEHUB_ORPHAN_DELAY=10s", "TTL_STANDBY_SECONDS=30", "TTL_ARCHIVE_SECONDS=30",
		},
	})
	var people []*person
	var subscribers [][]*subscriber
	for i := range 4 {
		who := c.newPerson(fmt.Sprint("person", i), rand.New(rand.NewPCG(rng.Uint64(), uint64(i))), everything)
		people = append(people, who)
		subscribers = append(subscribers, c.subscribe(who.token))
	}
	before := c.atRest(people)

	stop := make(chan struct{})
	time.AfterFunc(lasts, func() { close(stop) })
	tr := newTrouble(c, p)
	var group sync.WaitGroup
	for _, who := range people {
		group.Go(func() { who.live(stop, 200*time.Millisecond) })
	}
	tr.make(rand.New(rand.NewPCG(rng.Uint64(), 99)), 1500*time.Millisecond, stop)
	group.Wait()
	t.Logf("what went wrong:%s", said(tr.tally))
	c.calm(people, subscribers)
	c.leftOver(people, before)
}

// calm: the faults are over, and everything comes to where it is wanted.
func (c *cluster) calm(people []*person, subscribers [][]*subscriber) {
	c.Helper()
	// What nobody uses stays where it is from now on.
	c.sql(`UPDATE workspaces SET standby_ttl_seconds = 0, archive_ttl_seconds = 0`)
	files, tally := 0, map[string]int{}
	for i, who := range people {
		all := who.arrives(who.via[0], 4*time.Minute)
		c.notBlind(subscribers[i], who.via[0])
		files += who.whole(all)
		for what, n := range who.tally {
			tally[what] += n
		}
	}
	led, letIn, everybody, mine := c.audit.counted()
	if led == 0 || letIn == 0 {
		c.Errorf("the audit has seen %d writes of leaders and %d takings of a slot: it watches nothing", led, letIn)
	}
	c.Logf("%d files are where they were written; %d writes by leaders, %d slots taken, at most %d at once and %d of one user; asked for:%s",
		files, led, letIn, everybody, mine, said(tally))
}

// resources is what the servers hold of what can leak.
type resources struct{ goroutines, descriptors int }

// atRest is the most that any server holds once it has done some of everything,
// with nothing under way.
func (c *cluster) atRest(people []*person) resources {
	c.Helper()
	// Pools are at their largest, and every part has been at work.
	var group sync.WaitGroup
	for _, who := range people {
		group.Go(func() {
			on := *who.via[1]
			on.test = test{lane{c.TB}}
			id := on.createDesired("first", "STANDBY")
			on.awaitPhase(id, "STANDBY")
			on.want(id, "ARCHIVED")
			on.awaitPhase(id, "ARCHIVED")
			if _, err := on.api.Delete(c.Context(), id, true); err != nil {
				on.Error(err)
			}
		})
		for _, on := range who.via {
			for range 8 {
				group.Go(func() { _, _ = on.api.List(c.Context(), clientFilter) })
			}
		}
	}
	group.Wait()
	if c.Failed() {
		c.FailNow()
	}
	var most resources
	for _, m := range c.members {
		r, err := m.holds()
		if err != nil {
			c.Fatal(err)
		}
		most = resources{max(most.goroutines, r.goroutines), max(most.descriptors, r.descriptors)}
	}
	return most
}

func (m *member) holds() (r resources, err error) {
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", m.Pid()))
	if err != nil {
		return r, err
	}
	r.descriptors = len(fds)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.URL+"/metrics", nil)
	if err != nil {
		return r, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if n, ok := strings.CutPrefix(lines.Text(), "go_goroutines "); ok {
			r.goroutines, err = strconv.Atoi(n)
			return r, err
		}
	}
	return r, fmt.Errorf("%s does not say how many goroutines it has", m.name)
}

// leftOver deletes everything, after which no server holds more than before,
// and the engine nothing.
func (c *cluster) leftOver(people []*person, before resources) {
	c.Helper()
	for _, who := range people {
		all, err := who.via[0].api.List(c.Context(), clientFilter)
		if err != nil {
			c.Fatal(err)
		}
		for _, w := range all {
			if _, err := who.via[0].api.Delete(c.Context(), w.ID, true); err != nil {
				c.Fatal(err)
			}
		}
	}
	http.DefaultClient.CloseIdleConnections()
	stays.CloseIdleConnections()
	// A server keeps an idle connection for two minutes, a pool some longer.
	const slack = 6
	deadline := time.Now().Add(patience)
	for {
		var left []string
		for _, m := range c.members {
			if r, err := m.holds(); err != nil || r.goroutines > before.goroutines+slack || r.descriptors > before.descriptors+slack {
				left = append(left, fmt.Sprintf("%s has %d goroutines and %d descriptors, and had at most %d and %d (%v)",
					m.name, r.goroutines, r.descriptors, before.goroutines, before.descriptors, err))
			}
		}
		left = append(left, c.onEngine()...)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			c.Fatalf("left over:\n%s", strings.Join(left, "\n"))
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// onEngine lists the containers and volumes there are of the installation; what
// it has once (the network, its wall, images) aside.
func (c *cluster) onEngine() (left []string) {
	c.Helper()
	mine := client.Filters{}.Add("label", proc.Label(c.members[0].Installation()))
	containers, err := env.docker.ContainerList(c.Context(), client.ContainerListOptions{All: true, Filters: mine})
	if err != nil {
		c.Fatal(err)
	}
	for _, k := range containers.Items {
		left = append(left, fmt.Sprintf("container %v (%s)", k.Names, k.Status))
	}
	volumes, err := env.docker.VolumeList(c.Context(), client.VolumeListOptions{Filters: mine})
	if err != nil {
		c.Fatal(err)
	}
	for _, v := range volumes.Items {
		if !strings.Contains(v.Name, "-mark-") { // of the installation, for as long as it lives
			left = append(left, "volume "+v.Name)
		}
	}
	return left
}
