package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"codehub/api"
	codehub "codehub/client"
)

// subscriber reads the event stream of one server, reconnects when it breaks,
// and keeps the workspaces that the events describe.
type subscriber struct {
	serverName string

	mu         sync.Mutex
	workspaces map[string]api.Workspace // from the last event of each
	err        error                    // why the stream ended
}

// subscribe opens a user's event stream on every server.
func (c *cluster) subscribe(token string) []*subscriber {
	c.Helper()
	var all []*subscriber
	ctx, stop := context.WithCancel(context.Background())
	var group sync.WaitGroup
	for _, m := range c.members {
		s := &subscriber{serverName: m.name, workspaces: map[string]api.Workspace{}}
		events := m.asUser(c.test, token).api
		group.Go(func() {
			err := events.Events(ctx, s.handle)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.err = err
		})
		all = append(all, s)
	}
	c.Cleanup(func() { stop(); group.Wait() })
	return all
}

func (s *subscriber) handle(e codehub.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e.Name {
	case api.EventUpdated:
		s.workspaces[e.ID] = e.Workspace
	case api.EventDeleted:
		delete(s.workspaces, e.ID)
	}
	return nil
}

// outOfSync returns an error that lists the differences between the
// subscriber's workspaces and all.
func (s *subscriber) outOfSync(all []api.Workspace) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return fmt.Errorf("the events of %s ended: %w", s.serverName, s.err)
	}
	var errs []error
	for _, w := range all {
		seen, ok := s.workspaces[w.ID]
		if was, is := state(seen), state(w); !ok || was != is {
			errs = append(errs, fmt.Errorf("on %s: %s (%s) is %s; the last event has %s", s.serverName, w.Name, w.ID, is, was))
		}
	}
	for id, seen := range s.workspaces {
		if !slices.ContainsFunc(all, func(w api.Workspace) bool { return w.ID == id }) {
			errs = append(errs, fmt.Errorf("on %s: %s (%s) does not exist; the last event has %s", s.serverName, seen.Name, id, state(seen)))
		}
	}
	return errors.Join(errs...)
}

func state(w api.Workspace) string {
	return fmt.Sprint(w.Phase, " ", w.Operation, " desired ", w.DesiredState, " queued ", str(w.NextDesiredState), " ", str(w.ErrorReason), " ", str(w.ArchiveKey))
}

// awaitInSync waits until every subscriber has the workspaces that the API of
// on lists. A subscriber reopens a broken stream within 15 s and a silent one
// within 75 s.
func (c *cluster) awaitInSync(all []*subscriber, on *server) {
	c.Helper()
	deadline := time.Now().Add(90 * time.Second)
	for {
		is, err := on.api.List(c.Context(), codehub.Filter{})
		for _, s := range all {
			if err == nil {
				err = s.outOfSync(is)
			}
		}
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			c.Fatalf("a subscriber is out of sync: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
