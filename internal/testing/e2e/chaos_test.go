package e2e

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
)

// Users send random requests to three servers while servers crash and freeze,
// lose the database, Docker or the bucket, Redis loses its data, and containers
// are removed. The audit finds no violation. After the faults every workspace
// reaches its desired state, no home has lost a byte, every subscriber is up to
// date, and no resource leaks. SOAK_CHAOS=1h sets the duration; SEED repeats
// the choices.
func TestChaos(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	duration := 60 * time.Second
	if v := os.Getenv("SOAK_CHAOS"); v != "" {
		var err error
		if duration, err = time.ParseDuration(v); err != nil {
			t.Fatalf("SOAK_CHAOS: %v", err)
		}
	}
	rng := newRand(t, 30)
	b := s3Bucket(t)
	p := newLink(t, "tcp", "127.0.0.1:0", func() (net.Conn, error) { return net.Dial("tcp", strings.TrimPrefix(b.s3.Endpoint, "http://")) })
	c := startCluster(t, clusterOptions{
		servers: 3, postgres: true, redis: true, bucket: b, endpoint: "http://" + p.address,
		limits: limits{perUser: 2, global: 5, observed: true},
		settings: []string{
			"MAX_RUNNING_PER_USER=2", "MAX_RUNNING_GLOBAL=5", "CODEHUB_DELETE_GRACE=8s", "COORDINATOR_IDLE_INTERVAL=2s",
			"CODEHUB_ORPHAN_DELAY=10s", "TTL_STANDBY_SECONDS=30", "TTL_ARCHIVE_SECONDS=30",
		},
	})
	var users []*chaosUser
	var subscribers [][]*subscriber
	for i := range 4 {
		u := c.newUser(fmt.Sprint("user", i), rand.New(rand.NewPCG(rng.Uint64(), uint64(i))), allActions)
		users = append(users, u)
		subscribers = append(subscribers, c.subscribe(u.token))
	}
	before := c.baseline(users)

	stop := make(chan struct{})
	time.AfterFunc(duration, func() { close(stop) })
	tr := newFaultInjector(c, p)
	var group sync.WaitGroup
	for _, u := range users {
		group.Go(func() { u.live(stop, 200*time.Millisecond) })
	}
	tr.run(rand.New(rand.NewPCG(rng.Uint64(), 99)), 1500*time.Millisecond, stop)
	group.Wait()
	t.Logf("injected faults:%s", formatTally(tr.tally))
	c.expectConverged(users, subscribers)
	c.expectNoLeaks(users, before)
}

// expectConverged checks, after the faults, that workspaces reach their desired
// states, subscribers are up to date and no file is lost.
func (c *cluster) expectConverged(users []*chaosUser, subscribers [][]*subscriber) {
	c.Helper()
	// Idle workspaces are not stopped or archived from here on.
	c.sql(`UPDATE workspaces SET standby_ttl_seconds = 0, archive_ttl_seconds = 0`)
	files, tally := 0, map[string]int{}
	for i, u := range users {
		all := u.awaitSettled(u.servers[0], 4*time.Minute)
		c.awaitInSync(subscribers[i], u.servers[0])
		files += u.expectFiles(all)
		for what, n := range u.tally {
			tally[what] += n
		}
	}
	leaderWrites, slotsTaken, total, perUser := c.audit.counted()
	if leaderWrites == 0 || slotsTaken == 0 {
		c.Errorf("the audit counted %d writes of leaders and %d slots taken: its triggers do not work", leaderWrites, slotsTaken)
	}
	c.Logf("%d files compared; %d writes by leaders, %d slots taken, at most %d in use and %d by one user; actions:%s",
		files, leaderWrites, slotsTaken, total, perUser, formatTally(tally))
}

// resources are the resources of a server process that can leak.
type resources struct{ goroutines, descriptors int }

// baseline uses every part of the servers and returns the most resources that a
// server then has while idle.
func (c *cluster) baseline(users []*chaosUser) resources {
	c.Helper()
	// Connection pools grow to their maximum here.
	var group sync.WaitGroup
	for _, u := range users {
		group.Go(func() {
			on := *u.servers[1]
			on.test = test{parallelTB{c.TB}}
			id := on.createDesired("first", "STANDBY")
			on.awaitPhase(id, "STANDBY")
			on.setDesired(id, "ARCHIVED")
			on.awaitPhase(id, "ARCHIVED")
			if _, err := on.api.Delete(c.Context(), id, true); err != nil {
				on.Error(err)
			}
		})
		for _, on := range u.servers {
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
		r, err := m.resources()
		if err != nil {
			c.Fatal(err)
		}
		most = resources{max(most.goroutines, r.goroutines), max(most.descriptors, r.descriptors)}
	}
	return most
}

func (m *member) resources() (r resources, err error) {
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
	return r, fmt.Errorf("/metrics of %s has no go_goroutines", m.name)
}

// expectNoLeaks deletes all workspaces and waits until no server has more
// resources than before, and Docker has no containers and volumes.
func (c *cluster) expectNoLeaks(users []*chaosUser, before resources) {
	c.Helper()
	for _, u := range users {
		all, err := u.servers[0].api.List(c.Context(), clientFilter)
		if err != nil {
			c.Fatal(err)
		}
		for _, w := range all {
			if _, err := u.servers[0].api.Delete(c.Context(), w.ID, true); err != nil {
				c.Fatal(err)
			}
		}
	}
	http.DefaultClient.CloseIdleConnections()
	noRedirects.CloseIdleConnections()
	// Idle connections are closed after two minutes or later.
	const slack = 6
	deadline := time.Now().Add(patience)
	for {
		var left []string
		for _, m := range c.members {
			if r, err := m.resources(); err != nil || r.goroutines > before.goroutines+slack || r.descriptors > before.descriptors+slack {
				left = append(left, fmt.Sprintf("%s has %d goroutines and %d descriptors, and had at most %d and %d (%v)",
					m.name, r.goroutines, r.descriptors, before.goroutines, before.descriptors, err))
			}
		}
		left = append(left, c.dockerLeftovers()...)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			c.Fatalf("leaked:\n%s", strings.Join(left, "\n"))
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// dockerLeftovers lists the installation's containers and volumes, without
// those that it has once (network, wall, images).
func (c *cluster) dockerLeftovers() (left []string) {
	c.Helper()
	mine := client.Filters{}.Add("label", proc.Label(c.members[0].Installation()))
	containers, err := env.docker.ContainerList(c.Context(), client.ContainerListOptions{All: true, Filters: mine})
	if err != nil {
		c.Fatal(err)
	}
	for _, k := range containers.Items {
		if !endedHelper(k) {
			left = append(left, fmt.Sprintf("container %v (%s)", k.Names, k.Status))
		}
	}
	volumes, err := env.docker.VolumeList(c.Context(), client.VolumeListOptions{Filters: mine})
	if err != nil {
		c.Fatal(err)
	}
	for _, v := range volumes.Items {
		if !ofInstallation(v.Labels) {
			left = append(left, "volume "+v.Name)
		}
	}
	return left
}
