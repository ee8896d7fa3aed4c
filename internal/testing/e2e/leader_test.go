package e2e

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"codehub/internal/testing/harness"
)

// The leader is killed, suspended and cut off from the database; the database
// and Redis are restarted, and Redis loses its data. Users start, stop and
// archive workspaces meanwhile. Another server takes over, at most one leads at
// a time, every workspace reaches its desired state, and every subscriber is up
// to date. In make test the leader is killed and suspended only, which takes a minute
// because a suspended leader is replaced only once its heartbeat is old.
func TestAnotherServerLeadsAfterLoss(t *testing.T) {
	t.Parallel()
	rng := newRand(t, 31)
	c := startCluster(t, clusterOptions{
		servers: 3, postgres: harness.Verifying(), redis: true, bucket: s3Bucket(t),
		limits:   limits{perUser: 2, global: 100, observed: true},
		settings: []string{"CODEHUB_DELETE_GRACE=0s", "COORDINATOR_IDLE_INTERVAL=5s"},
	})
	var users []*chaosUser
	var subscribers [][]*subscriber
	var group sync.WaitGroup
	stop := make(chan struct{})
	for i := range 2 {
		u := c.newUser(fmt.Sprint("user", i), rand.New(rand.NewPCG(rng.Uint64(), uint64(i))), harmlessActions)
		for _, desired := range []string{"RUNNING", "STANDBY", "ARCHIVED"} {
			if err := u.create(t.Context(), u.servers[0], desired); err != nil {
				t.Fatal(err)
			}
		}
		users = append(users, u)
		subscribers = append(subscribers, c.subscribe(u.token))
		group.Go(func() { u.live(stop, 300*time.Millisecond) })
	}
	workspace := c.members[0].createDesired("witness", "ARCHIVED")
	c.members[0].awaitPhase(workspace, "ARCHIVED")

	faults := []struct {
		name       string
		begin, end func(m *member)
	}{
		{"killed", func(m *member) { m.Kill() }, func(m *member) { m.restart() }},
		{"suspended", func(m *member) { m.stop() }, func(m *member) { m.resume() }},
		{"cut off without an error", func(m *member) { m.dbLink.freeze() }, func(m *member) { m.dbLink.heal() }},
		{"cut off", func(m *member) { m.dbLink.cut() }, func(m *member) { m.dbLink.heal() }},
	}
	if !harness.Verifying() {
		faults = faults[:2]
	}
	for _, fault := range faults {
		leader := c.awaitLeader()
		t.Logf("%s is %s", leader.name, fault.name)
		fault.begin(leader)
		next := c.awaitLeader(leader)
		c.expectReconciled(c.otherThan(leader), workspace)
		fault.end(leader)
		c.expectReconciled(leader, workspace)
		if now := c.leader(); now != next {
			t.Logf("the leader has changed again")
		}
	}
	if c.pg != nil {
		c.pg.Stop()
		c.pg.Start()
		t.Log("the database was restarted")
	}
	c.awaitLeader()
	c.expectReconciled(c.members[1], workspace)
	c.redis.kill()
	c.expectReconciled(c.members[2], workspace)
	c.redis.start()
	c.redis.flush()
	c.expectReconciled(c.members[0], workspace)

	close(stop)
	group.Wait()
	c.expectConverged(users, subscribers)
}

// expectReconciled sets a workspace's desired state through a server and waits
// for it.
func (c *cluster) expectReconciled(m *member, id string) {
	c.Helper()
	on := m.withPatience(3 * time.Minute)
	deadline := time.Now().Add(patience)
	desired := ""
	for { // the server may not have reconnected to the database yet
		w, err := on.api.Get(c.Context(), id)
		if err == nil {
			if desired = "STANDBY"; w.DesiredState == desired {
				desired = "ARCHIVED"
			}
			if _, err = on.api.Want(c.Context(), id, desired, true); err == nil {
				break
			}
		}
		if time.Now().After(deadline) {
			c.Fatalf("%s did not accept a desired state: %v", m.name, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	on.awaitPhase(id, desired)
}
