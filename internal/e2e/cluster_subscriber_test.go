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

// subscriber is somebody who has a server's events open, over all that
// happens to it, and believes what they say.
type subscriber struct {
	on string

	mu  sync.Mutex
	is  map[string]api.Workspace // as last heard
	err error                    // why it hears no more
}

// subscribe opens a user's events on every server.
func (c *cluster) subscribe(token string) []*subscriber {
	c.Helper()
	var all []*subscriber
	ctx, stop := context.WithCancel(context.Background())
	var group sync.WaitGroup
	for _, m := range c.members {
		s := &subscriber{on: m.name, is: map[string]api.Workspace{}}
		events := m.as(c.test, token).api
		group.Go(func() {
			err := events.Events(ctx, s.hear)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.err = err
		})
		all = append(all, s)
	}
	c.Cleanup(func() { stop(); group.Wait() })
	return all
}

func (s *subscriber) hear(e codehub.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e.Name {
	case api.EventUpdated:
		s.is[e.ID] = e.Workspace
	case api.EventDeleted:
		delete(s.is, e.ID)
	}
	return nil
}

// blind says what a subscriber does not know of workspaces as they are.
func (s *subscriber) blind(all []api.Workspace) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return fmt.Errorf("the events of %s ended: %w", s.on, s.err)
	}
	var errs []error
	for _, w := range all {
		heard, ok := s.is[w.ID]
		if was, is := state(heard), state(w); !ok || was != is {
			errs = append(errs, fmt.Errorf("on %s %s (%s) is %s, and was last said to be %s", s.on, w.Name, w.ID, is, was))
		}
	}
	for id, heard := range s.is {
		if !slices.ContainsFunc(all, func(w api.Workspace) bool { return w.ID == id }) {
			errs = append(errs, fmt.Errorf("on %s %s (%s) is gone, and was last said to be %s", s.on, heard.Name, id, state(heard)))
		}
	}
	return errors.Join(errs...)
}

func state(w api.Workspace) string {
	return fmt.Sprint(w.Phase, " ", w.Operation, " wanted ", w.DesiredState, " then ", str(w.NextDesiredState), " ", str(w.ErrorReason), " ", str(w.ArchiveKey))
}

// notBlind waits until every subscriber knows what on says of everything. A
// stream that broke is made anew within 15 s, one that fell silent within 75.
func (c *cluster) notBlind(all []*subscriber, on *server) {
	c.Helper()
	deadline := time.Now().Add(90 * time.Second)
	for {
		is, err := on.api.List(c.Context(), codehub.Filter{})
		for _, s := range all {
			if err == nil {
				err = s.blind(is)
			}
		}
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			c.Fatalf("a subscriber is blind: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
