package e2e

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"codehub/api"
	codehub "codehub/client"
)

// 1,000 starts at the same time by 60 users on three servers, of new and of
// existing workspaces. Each user may run 2, all users together 100. No commit
// exceeds the limits, and no start is refused while a slot is free.
func TestLimitsAcrossServers(t *testing.T) {
	t.Parallel()
	const users, perUser, global, starts = 60, 2, 100, 1000
	c := startCluster(t, clusterOptions{
		servers: 3, failpoints: true, bucket: folderBucket(t),
		limits: limits{perUser: perUser, global: global},
		settings: []string{fmt.Sprint("MAX_RUNNING_PER_USER=", perUser), fmt.Sprint("MAX_RUNNING_GLOBAL=", global), "CODEHUB_DELETE_GRACE=0s",
			"CODEHUB_REQUEST_TIMEOUT=10m"}, // on a busy machine some wait long for the lock of the limits
	})
	// The test is about the commits in the database, so the servers cannot
	// reach Docker for now.
	for _, m := range c.members {
		m.dockerLink.cut()
	}
	type user struct {
		via  []*server
		rest []string // existing workspaces
	}
	all := make([]user, users)
	for i := range all {
		_, token := c.user(fmt.Sprint("user", i))
		for _, m := range c.members {
			all[i].via = append(all[i].via, m.asUser(c.test, token))
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
				for retries := 0; codehub.CodeOf(err) == "unavailable" && retries < 10; retries++ {
					err = f(i, u, on) // the lock of the limits was not free in time, and nothing was changed
				}
				mu.Lock()
				defer mu.Unlock()
				switch {
				case codehub.CodeOf(err) == "workspace_limit_exceeded":
					refused++
				case err != nil:
					on.Errorf("request %d: %v", i, err)
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
		if err == nil {
			u.rest = append(u.rest, w.ID)
		}
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
	_, slotsTaken, maxTotal, maxPerUser := c.audit.counted()
	if maxTotal != global || maxPerUser != perUser || slotsTaken != global || refused != starts-global {
		t.Errorf("%d of %d starts were accepted, with at most %d in all and %d of one user, and %d were refused; want %d accepted, at most %d in all and %d of one user",
			slotsTaken, starts, maxTotal, maxPerUser, refused, global, global, perUser)
	}

	// The users delete their workspaces, and Docker is available again.
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
		m.dockerLink.heal()
	}
	c.expectQueuedStart(all[0].via)
}

// expectQueuedStart checks that a start which is queued during an operation
// waits for a slot, and gets the slot that another workspace frees, on
// whichever server.
func (c *cluster) expectQueuedStart(via []*server) {
	c.Helper()
	first, second, third := via[0], via[1], via[2]
	waits := third.createStandby("waits")
	one := first.createDesired("one", "RUNNING")
	two := second.createDesired("two", "RUNNING")
	first.awaitPhase(one, "RUNNING")
	second.awaitPhase(two, "RUNNING")
	if _, err := third.api.Want(c.Context(), waits, "RUNNING", true); codehub.CodeOf(err) != "workspace_limit_exceeded" {
		c.Fatalf("a third workspace was accepted: %v", err)
	}
	point := "archive.begin@" + waits
	for _, m := range c.members {
		m.failpoints.arm(point, "hold")
	}
	third.setDesired(waits, "ARCHIVED")
	third.await(waits, "ARCHIVING", func(w api.Workspace) bool { return w.Operation == "ARCHIVING" })
	second.setDesired(waits, "RUNNING") // queued
	for _, m := range c.members {
		m.failpoints.disarm()
	}
	w := third.await(waits, "queued for a slot without an operation", func(w api.Workspace) bool { return w.Operation == "NONE" })
	if w.Phase == "RUNNING" || str(w.NextDesiredState) != "RUNNING" {
		c.Errorf("%s is %s, desired %s, queued %q", w.Name, w.Phase, w.DesiredState, str(w.NextDesiredState))
	}
	second.setDesired(one, "STANDBY")
	second.withPatience(time.Minute).awaitPhase(waits, "RUNNING")
	first.awaitPhase(one, "STANDBY")
	if w, err := first.api.Get(c.Context(), two); err != nil || w.Phase != "RUNNING" {
		c.Errorf("the second workspace is %s: %v", w.Phase, err)
	}
}
