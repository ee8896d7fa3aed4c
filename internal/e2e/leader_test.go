package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/api"
)

// The leader is killed, suspended and cut off from the database; the database
// and Redis are restarted, and Redis loses its data. Users start, stop and
// archive workspaces meanwhile. Another server takes over, at most one leads at
// a time, every workspace reaches its desired state, and every subscriber is up
// to date.
func TestAnotherServerLeadsAfterLoss(t *testing.T) {
	t.Parallel()
	rng := newRand(t, 31)
	c := startCluster(t, clusterOptions{
		servers: 3, postgres: true, redis: true, bucket: s3Bucket(t),
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

	for _, fault := range []struct {
		name       string
		begin, end func(m *member)
	}{
		{"killed", func(m *member) { m.Kill() }, func(m *member) { m.restart() }},
		{"suspended", func(m *member) { m.stop() }, func(m *member) { m.resume() }},
		{"cut off without an error", func(m *member) { m.dbLink.freeze() }, func(m *member) { m.dbLink.heal() }},
		{"cut off", func(m *member) { m.dbLink.cut() }, func(m *member) { m.dbLink.heal() }},
	} {
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
	c.pg.Stop()
	c.pg.Start()
	t.Log("the database was restarted")
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

// A leader is suspended or cut off right before it records an archive, right
// before it removes an archived and a deleted home, and during an upload.
// Another server takes over and finishes these operations. When the first
// server continues, the database refuses its writes, and it sends no request to
// Docker.
func TestFormerLeaderChangesNothing(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]struct {
		last         string // action at the last failpoint
		halt, resume func(m *member)
	}{
		"stopped": {"pause", func(m *member) { m.failpoints.awaitStopped(); m.stopped.Store(true) }, (*member).resume},
		"cut off": {"hold", func(m *member) { m.dbLink.freeze() }, func(m *member) { m.dbLink.heal() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, rng := s3Bucket(t), newRand(t, 32)
			p := newBucketProxy(t, b)
			c := startCluster(t, clusterOptions{
				servers: 2, failpoints: true, bucket: b, endpoint: p.URL,
				settings: []string{"CODEHUB_DELETE_GRACE=0s", "MAX_RUNNING_PER_USER=0", "COORDINATOR_IDLE_INTERVAL=2s"},
			})
			old := c.awaitLeader()
			next := c.otherThan(old)
			type handover struct{ step, desired string }
			all := []handover{{"archive.before-store", "ARCHIVED"}, {"delete.begin", "DELETED"}, {"archive.checked", "ARCHIVED"}}
			ids, homes := make([]string, len(all)), make([]homeState, len(all))
			for i, a := range all {
				ids[i], homes[i] = old.createFilled(a.step, rng)
			}
			uploads, uploaded := old.createFilled("uploads", rng)
			p.setFault(hangOnce(func(of string, r *http.Request) bool { return of == uploads && isJobRequest("archive", r) }))
			next.setDesired(uploads, "ARCHIVED")
			p.awaitHanging(uploads)
			for i, a := range all {
				point, action := a.step+"@"+ids[i], "hold"
				if i == len(all)-1 {
					action = f.last
				}
				old.failpoints.arm(point, action)
				if a.desired == "DELETED" {
					if _, err := next.api.Delete(t.Context(), ids[i], true); err != nil {
						t.Fatal(err)
					}
				} else {
					next.setDesired(ids[i], a.desired)
				}
				if action == "hold" {
					old.failpoints.awaitHeld(point)
				}
			}

			f.halt(old)
			c.awaitLeader(old)
			p.release()
			next.awaitArchived(b, ids[0], homes[0])
			next.awaitGone(ids[1])
			next.awaitArchived(b, ids[2], homes[2])
			next.awaitArchived(b, uploads, uploaded)
			next.setDesired(ids[2], "STANDBY") // the home exists again, which the old leader was about to remove
			next.awaitRestored(ids[2], homes[2])
			old.dockerCalls()
			standbys := standbyCount(old)
			old.failpoints.disarm()
			f.resume(old)
			deadline := time.Now().Add(patience)
			for standbyCount(old) == standbys {
				if time.Now().After(deadline) {
					t.Fatalf("%s is not on standby", old.name)
				}
				time.Sleep(20 * time.Millisecond)
			}
			if calls := old.dockerCalls(); len(calls) > 0 {
				t.Errorf("the former leader sent requests to Docker:\n%s", strings.Join(calls, "\n"))
			}
			next.awaitRestored(ids[2], homes[2])
			if w, err := next.api.Get(t.Context(), ids[0]); err != nil || w.Phase != "ARCHIVED" {
				t.Errorf("%s is %s: %v", w.Name, w.Phase, err)
			}
			// The former leader serves, and can become the leader again.
			next.Kill()
			c.awaitLeader(next)
			old.setDesired(ids[0], "STANDBY")
			old.awaitRestored(ids[0], homes[0])
			old.await(ids[2], "STANDBY", func(w api.Workspace) bool { return w.Phase == "STANDBY" })
		})
	}
}

// standbyCount returns how many times a server has logged that another one
// leads.
func standbyCount(m *member) int {
	return strings.Count(m.Log(), "another server leads; standing by")
}
