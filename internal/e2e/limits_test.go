package e2e

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"codehub/api"
	codehub "codehub/client"
)

// 1,000 starts at once, by making workspaces and by starting those that are
// there, of many users on three servers: each may have 2, and all of them 100.
// At no commit are there more, and none is refused that there is room for.
func TestLimitsAcrossServers(t *testing.T) {
	t.Parallel()
	const users, perUser, global, starts = 60, 2, 100, 1000
	c := startCluster(t, clusterOf{
		servers: 3, failpoints: true, bucket: folderBucket(t),
		limits:   limits{perUser: perUser, global: global},
		settings: []string{fmt.Sprint("MAX_RUNNING_PER_USER=", perUser), fmt.Sprint("MAX_RUNNING_GLOBAL=", global), "CODEHUB_DELETE_GRACE=0s"},
	})
	// What counts is what the database commits: nothing is made of it for now.
	for _, m := range c.members {
		m.engine.cut()
	}
	type user struct {
		via  []*server
		rest []string // workspaces that are there
	}
	all := make([]user, users)
	for i := range all {
		_, token := c.user(fmt.Sprint("user", i))
		for _, m := range c.members {
			all[i].via = append(all[i].via, m.as(c.test, token))
		}
	}
	spread := func(n int, f func(i int, u *user, on *server) error) (refused int) {
		var group sync.WaitGroup
		var mu sync.Mutex
		for i := range n {
			u := &all[i%users]
			on := u.via[(i/users+i)%len(u.via)]
			group.Go(func() {
				err := f(i, u, on)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case codehub.CodeOf(err) == "workspace_limit_exceeded":
					refused++
				case err != nil:
					on.Errorf("start %d: %v", i, err)
				}
			})
		}
		group.Wait()
		return refused
	}
	standby, running := "STANDBY", "RUNNING"
	var mu sync.Mutex
	const rounds = (starts + users - 1) / users
	spread((rounds+1)/2*users, func(i int, u *user, on *server) error {
		w, err := on.api.Create(t.Context(), api.CreateWorkspace{Name: fmt.Sprint("rest ", i), DesiredState: &standby})
		mu.Lock()
		defer mu.Unlock()
		u.rest = append(u.rest, w.ID)
		return err
	})
	if t.Failed() {
		t.FailNow()
	}
	refused := spread(starts, func(i int, u *user, on *server) error {
		if round := i / users; round%2 == 1 {
			_, err := on.api.Want(t.Context(), u.rest[round/2], running, i%4 < 2)
			return err
		}
		_, err := on.api.Create(t.Context(), api.CreateWorkspace{Name: fmt.Sprint("new ", i), DesiredState: &running})
		return err
	})
	_, letIn, everybody, mine := c.audit.counted()
	if everybody != global || mine != perUser || letIn != global || refused != starts-global {
		t.Errorf("%d of %d starts were let in, at most %d at once and %d of one user, and %d refused; want %d, %d and %d",
			letIn, starts, everybody, mine, refused, global, global, perUser)
	}

	// All but one user give up what they have, and the engine is back.
	spread(users, func(i int, u *user, on *server) error {
		list, err := on.api.List(t.Context(), codehub.Filter{})
		for _, w := range list {
			if err == nil {
				_, err = on.api.Delete(t.Context(), w.ID, true)
			}
		}
		return err
	})
	for _, m := range c.members {
		m.engine.heal()
	}
	c.queuedIsLetIn(all[0].via)
}

// queuedIsLetIn: a workspace that is wanted while something is under way waits
// for a slot, and gets the one that another gives up, whichever servers are
// asked.
func (c *cluster) queuedIsLetIn(via []*server) {
	c.Helper()
	first, second, third := via[0], via[1], via[2]
	waits := third.standby("waits")
	one := first.createDesired("one", "RUNNING")
	two := second.createDesired("two", "RUNNING")
	first.awaitPhase(one, "RUNNING")
	second.awaitPhase(two, "RUNNING")
	if _, err := third.api.Want(c.Context(), waits, "RUNNING", true); codehub.CodeOf(err) != "workspace_limit_exceeded" {
		c.Fatalf("a third one may run: %v", err)
	}
	ask := "archive.begin@" + waits
	for _, m := range c.members {
		m.fail.arm(ask, "hold")
	}
	third.want(waits, "ARCHIVED")
	third.await(waits, "being archived", func(w api.Workspace) bool { return w.Operation == "ARCHIVING" })
	second.want(waits, "RUNNING") // queued
	for _, m := range c.members {
		m.fail.disarm()
	}
	w := third.await(waits, "at rest, waiting for a slot", func(w api.Workspace) bool { return w.Operation == "NONE" })
	if w.Phase == "RUNNING" || str(w.NextDesiredState) != "RUNNING" {
		c.Errorf("%s is %s, wanted %s, then %q", w.Name, w.Phase, w.DesiredState, str(w.NextDesiredState))
	}
	second.want(one, "STANDBY")
	second.within(time.Minute).awaitPhase(waits, "RUNNING")
	first.awaitPhase(one, "STANDBY")
	if w, err := first.api.Get(c.Context(), two); err != nil || w.Phase != "RUNNING" {
		c.Errorf("the other one is %s: %v", w.Phase, err)
	}
}
