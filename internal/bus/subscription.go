package bus

import (
	"context"
	"errors"
	"sync"
	"time"

	"codehub/internal/workspace"
)

// Kind is the kind of an Event.
type Kind int

const (
	// Resync: read everything again. It is the first event of every subscription,
	// and follows a gap.
	Resync Kind = iota
	// Updated: Workspace is the current row; DeletedAt may be set.
	Updated
	// Gone: the workspace does not exist any more.
	Gone
)

// Event is a change for a subscriber.
type Event struct {
	Kind      Kind
	ID        workspace.ID        // empty for Resync
	Workspace workspace.Workspace // for Updated
}

var (
	// ErrTooSlow ends a subscription whose reader was too slow.
	ErrTooSlow = errors.New("the subscriber was too slow")
	// ErrClosed ends a subscription that was closed.
	ErrClosed = errors.New("the subscription is closed")
	// ErrTooMany is returned for more subscriptions than MaxPerUser.
	ErrTooMany = errors.New("the user has too many subscriptions")
)

// retryLoad is the pause after a failed read from the database.
const retryLoad = time.Second

// Subscription delivers one user's events to one reader. It holds IDs, not rows, so
// that it stays small while events are unread, and delivers the current state.
type Subscription struct {
	hub    *Hub
	user   string
	detach func() bool // from its context

	ready chan struct{} // capacity 1: an event can be read
	done  chan struct{}

	mu    sync.Mutex
	err   error // why done is closed
	all   bool
	order []workspace.ID // dirty, oldest first, without duplicates
	dirty map[workspace.ID]struct{}
	since time.Time // the reader's last call, while events are unread
}

// Subscribe starts collecting a user's changes. The caller reads them with Next and
// must call Close; the subscription also closes when ctx ends.
func (h *Hub) Subscribe(ctx context.Context, user string) (*Subscription, error) {
	s := &Subscription{hub: h, user: user, ready: make(chan struct{}, 1), done: make(chan struct{}), dirty: map[workspace.ID]struct{}{}}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.subs[user]) >= MaxPerUser {
		return nil, ErrTooMany
	}
	if h.subs[user] == nil {
		h.subs[user] = map[*Subscription]struct{}{}
	}
	h.subs[user][s] = struct{}{}
	s.markAll(time.Now())
	s.detach = context.AfterFunc(ctx, s.Close)
	return s, nil
}

// Close ends the subscription; Next then returns ErrClosed.
func (s *Subscription) Close() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	s.end(ErrClosed)
}

// end requires the hub's lock.
func (s *Subscription) end(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.err = why
	s.order, s.dirty, s.all = nil, nil, false
	close(s.done)
	s.detach()
	subs := s.hub.subs[s.user]
	delete(subs, s)
	if len(subs) == 0 {
		delete(s.hub.subs, s.user)
	}
}

// Next waits for the next event. The events of a workspace are delivered in order,
// and unread ones are merged into its current state. While the database is not
// responding, Next waits. It returns ErrTooSlow, ErrClosed or ctx's error.
func (s *Subscription) Next(ctx context.Context) (Event, error) {
	for {
		ev, ok, err := s.take()
		switch {
		case err != nil:
			return Event{}, err
		case ok && ev.Kind == Resync:
			return ev, nil
		case ok:
			w, err := s.hub.cfg.Load(ctx, s.user, ev.ID)
			switch code := workspace.CodeOf(err); {
			case err == nil:
				return Event{Kind: Updated, ID: ev.ID, Workspace: w}, nil
			case code == workspace.CodeNotFound || code == workspace.CodeForbidden:
				return Event{Kind: Gone, ID: ev.ID}, nil
			}
			s.putBack(ev.ID)
			if ctx.Err() == nil {
				s.hub.cfg.Log.WarnContext(ctx, "read changed workspace failed", "workspace", ev.ID, "err", err)
			}
			if err := s.pause(ctx, retryLoad); err != nil {
				return Event{}, err
			}
		default:
			select {
			case <-s.ready:
			case <-s.done:
			case <-ctx.Done():
				return Event{}, ctx.Err()
			}
		}
	}
}

func (s *Subscription) pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// take selects the next event before the workspace is read, so that later changes
// cause another event.
func (s *Subscription) take() (ev Event, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return Event{}, false, s.err
	case s.all:
		s.all = false
		s.order = s.order[:0]
		clear(s.dirty)
		s.since = time.Time{}
		return Event{Kind: Resync}, true, nil
	case len(s.order) > 0:
		id := s.order[0]
		s.order = s.order[1:]
		delete(s.dirty, id)
		s.since = time.Time{}
		if len(s.order) > 0 {
			s.since = time.Now()
		}
		return Event{Kind: Updated, ID: id}, true, nil
	}
	return Event{}, false, nil
}

// mark and markAll require the hub's lock.
func (s *Subscription) mark(id workspace.ID, now time.Time) {
	if !s.keepsUp(now) {
		s.end(ErrTooSlow)
		return
	}
	s.add(id, now)
}

func (s *Subscription) markAll(now time.Time) {
	if !s.keepsUp(now) {
		s.end(ErrTooSlow)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = true
	if s.since.IsZero() {
		s.since = now
	}
	s.signal()
}

// keepsUp reports whether the reader is within its time limit.
func (s *Subscription) keepsUp(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since.IsZero() || now.Sub(s.since) <= s.hub.cfg.UnreadTimeout
}

func (s *Subscription) putBack(id workspace.ID) { s.add(id, time.Now()) }

func (s *Subscription) add(id workspace.ID, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	if _, ok := s.dirty[id]; !ok && !s.all {
		s.dirty[id] = struct{}{}
		s.order = append(s.order, id)
		if len(s.order) > maxDirty {
			s.all = true
			s.order = nil
			clear(s.dirty)
		}
	}
	if s.since.IsZero() {
		s.since = now
	}
	s.signal()
}

func (s *Subscription) signal() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}
