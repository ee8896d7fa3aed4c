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

// The leader is killed, stopped, cut off from the database and cut short; the
// database and Redis are restarted and Redis forgets; all while people start,
// stop and archive on every server. Another one leads, at every moment one at
// most, everything comes to where it is wanted, and no subscriber stays blind.
func TestAnotherServerLeadsAfterLoss(t *testing.T) {
	t.Parallel()
	rng := seeded(t, 31)
	c := startCluster(t, clusterOf{
		servers: 3, postgres: true, redis: true, bucket: s3Bucket(t),
		limits:   limits{perUser: 2, global: 100, observed: true},
		settings: []string{"CODEHUB_DELETE_GRACE=0s", "COORDINATOR_IDLE_INTERVAL=5s"},
	})
	var people []*person
	var subscribers [][]*subscriber
	var group sync.WaitGroup
	stop := make(chan struct{})
	for i := range 2 {
		who := c.newPerson(fmt.Sprint("person", i), rand.New(rand.NewPCG(rng.Uint64(), uint64(i))), ordinary)
		for _, desired := range []string{"RUNNING", "STANDBY", "ARCHIVED"} {
			if err := who.create(t.Context(), who.via[0], desired); err != nil {
				t.Fatal(err)
			}
		}
		people = append(people, who)
		subscribers = append(subscribers, c.subscribe(who.token))
		group.Go(func() { who.live(stop, 300*time.Millisecond) })
	}
	witness := c.members[0].createDesired("witness", "ARCHIVED")
	c.members[0].awaitPhase(witness, "ARCHIVED")

	for _, fault := range []struct {
		name       string
		lose, mend func(m *member)
	}{
		{"killed", func(m *member) { m.Kill() }, func(m *member) { m.again() }},
		{"stopped", func(m *member) { m.stop() }, func(m *member) { m.wake() }},
		{"cut off, in silence", func(m *member) { m.db.freeze() }, func(m *member) { m.db.heal() }},
		{"cut off", func(m *member) { m.db.cut() }, func(m *member) { m.db.heal() }},
	} {
		leader := c.leads()
		t.Logf("%s is %s", leader.name, fault.name)
		fault.lose(leader)
		next := c.leads(leader)
		c.works(c.other(leader), witness)
		fault.mend(leader)
		c.works(leader, witness)
		if now := c.leader(); now != next {
			t.Logf("another one leads than did at first")
		}
	}
	c.pg.Stop()
	c.pg.Start()
	t.Log("the database was restarted")
	c.leads()
	c.works(c.members[1], witness)
	c.redis.kill()
	c.works(c.members[2], witness)
	c.redis.start()
	c.redis.flush()
	c.works(c.members[0], witness)

	close(stop)
	group.Wait()
	c.calm(people, subscribers)
}

// works: what a server is asked for now comes to be.
func (c *cluster) works(m *member, id string) {
	c.Helper()
	on := m.within(time.Minute)
	deadline := time.Now().Add(patience)
	desired := ""
	for { // it may not have noticed yet that the database is back
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
			c.Fatalf("%s takes no wish: %v", m.name, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	on.awaitPhase(id, desired)
}

// A leader stands still right before it stores an archive, right before it
// removes the home that is archived or deleted, and with a storage job in the
// middle of its upload; another one takes over and finishes all of it. When the
// first goes on, where it stood, nothing of what it was about to do is done:
// the database refuses it and it asks the engine for nothing.
func TestFormerLeaderChangesNothing(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]struct {
		last         string // what it does when the last of them has come by
		halt, resume func(m *member)
	}{
		"stopped": {"pause", func(m *member) { m.fail.stopped(); m.stopped.Store(true) }, (*member).wake},
		"cut off": {"hold", func(m *member) { m.db.freeze() }, func(m *member) { m.db.heal() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, rng := s3Bucket(t), seeded(t, 32)
			p := newBucketProxy(t, b)
			c := startCluster(t, clusterOf{
				servers: 2, failpoints: true, bucket: b, endpoint: p.URL,
				settings: []string{"CODEHUB_DELETE_GRACE=0s", "MAX_RUNNING_PER_USER=0", "COORDINATOR_IDLE_INTERVAL=2s"},
			})
			old := c.leads()
			next := c.other(old)
			type about struct{ step, wish string }
			all := []about{{"archive.before-store", "ARCHIVED"}, {"delete.begin", "DELETED"}, {"archive.checked", "ARCHIVED"}}
			ids, homes := make([]string, len(all)), make([]homeState, len(all))
			for i, a := range all {
				ids[i], homes[i] = old.filled(a.step, rng)
			}
			uploads, uploaded := old.filled("uploads", rng)
			p.set(hangOnce(func(of string, r *http.Request) bool { return of == uploads && ofJob("archive", r) }))
			next.want(uploads, "ARCHIVED")
			p.hangs(uploads)
			for i, a := range all {
				ask, action := a.step+"@"+ids[i], "hold"
				if i == len(all)-1 {
					action = f.last
				}
				old.fail.arm(ask, action)
				if a.wish == "DELETED" {
					if _, err := next.api.Delete(t.Context(), ids[i], true); err != nil {
						t.Fatal(err)
					}
				} else {
					next.want(ids[i], a.wish)
				}
				if action == "hold" {
					old.fail.held(ask)
				}
			}

			f.halt(old)
			c.leads(old)
			p.letGo()
			next.archived(b, ids[0], homes[0])
			next.awaitGone(ids[1])
			next.archived(b, ids[2], homes[2])
			next.archived(b, uploads, uploaded)
			next.want(ids[2], "STANDBY") // there is something to remove again
			next.restored(ids[2], homes[2])
			old.calls()
			stoodBy := standsBy(old)
			old.fail.disarm()
			f.resume(old)
			deadline := time.Now().Add(patience)
			for standsBy(old) == stoodBy {
				if time.Now().After(deadline) {
					t.Fatalf("%s does not stand by", old.name)
				}
				time.Sleep(20 * time.Millisecond)
			}
			if calls := old.calls(); len(calls) > 0 {
				t.Errorf("a server that leads no more asked this of the engine:\n%s", strings.Join(calls, "\n"))
			}
			next.restored(ids[2], homes[2])
			if w, err := next.api.Get(t.Context(), ids[0]); err != nil || w.Phase != "ARCHIVED" {
				t.Errorf("%s is %s: %v", w.Name, w.Phase, err)
			}
			// It serves, and would lead again.
			next.Kill()
			c.leads(next)
			old.want(ids[0], "STANDBY")
			old.restored(ids[0], homes[0])
			old.await(ids[2], "there", func(w api.Workspace) bool { return w.Phase == "STANDBY" })
		})
	}
}

// standsBy is how often a server has said that another one leads.
func standsBy(m *member) int {
	return strings.Count(m.Log(), "another server leads; standing by")
}
