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
	wake   func()
	detach func() bool // from its context

	mu    sync.Mutex
	err   error // why it has ended
	all   bool
	other bool           // something else has changed; see Hub.Nudge
	order []workspace.ID // dirty, oldest first, without duplicates
	dirty map[workspace.ID]struct{}
	since time.Time // the reader's last call, while events are unread
	retry time.Time // no events before, because a read has failed
}

// Subscribe starts collecting a user's changes. wake is called whenever Next may have
// an event or the subscription has ended; it must neither block nor call the Hub. The
// caller must call Close; the subscription also closes when ctx ends.
func (h *Hub) Subscribe(ctx context.Context, user string, wake func()) (*Subscription, error) {
	s := &Subscription{hub: h, user: user, wake: wake}
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

// SubscribeAll is Subscribe, and changes of the workspaces of other users nudge the
// subscription. It is for administrators.
func (h *Hub) SubscribeAll(ctx context.Context, user string, wake func()) (*Subscription, error) {
	s, err := h.Subscribe(ctx, user, wake)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		h.all[s] = struct{}{}
	}
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
	s.detach()
	s.wake()
	subs := s.hub.subs[s.user]
	delete(subs, s)
	delete(s.hub.all, s)
	if len(subs) == 0 {
		delete(s.hub.subs, s.user)
	}
}

// Next returns the next event, or ok false if there is none; it does not wait for one.
// The events of a workspace are delivered in order, and unread ones are merged into its
// current state. While the database is not responding there is no event; the reader is
// woken to try again. Next returns ErrTooSlow, ErrClosed or ctx's error.
func (s *Subscription) Next(ctx context.Context) (ev Event, ok bool, err error) {
	if ev, ok, err = s.take(); err != nil || !ok || ev.Kind == Resync {
		return ev, ok, err
	}
	w, err := s.hub.cfg.Load(ctx, s.user, ev.ID)
	switch code := workspace.CodeOf(err); {
	case err == nil:
		return Event{Kind: Updated, ID: ev.ID, Workspace: w}, true, nil
	case code == workspace.CodeNotFound || code == workspace.CodeForbidden:
		return Event{Kind: Gone, ID: ev.ID}, true, nil
	}
	s.putBack(ev.ID)
	if ctx.Err() != nil {
		return Event{}, false, ctx.Err()
	}
	s.hub.cfg.Log.WarnContext(ctx, "read changed workspace failed", "workspace", ev.ID, "err", err)
	return Event{}, false, nil
}

// Skip discards all unread events, and reports whether there were any, or a nudge. It
// returns ErrTooSlow or ErrClosed.
func (s *Subscription) Skip() (skipped bool, err error) {
	s.mu.Lock()
	skipped, s.other = s.other, false
	s.mu.Unlock()
	for {
		_, ok, err := s.take()
		if err != nil || !ok {
			return skipped, err
		}
		skipped = true
	}
}

// take selects the next event before the workspace is read, so that later changes
// cause another event.
func (s *Subscription) take() (ev Event, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return Event{}, false, s.err
	case time.Now().Before(s.retry):
		return Event{}, false, nil
	case s.all:
		s.all, s.order, s.dirty = false, nil, nil
		s.since = time.Time{}
		return Event{Kind: Resync}, true, nil
	case len(s.order) > 0:
		id := s.order[0]
		s.order = s.order[1:]
		delete(s.dirty, id)
		if s.since = time.Now(); len(s.order) == 0 {
			s.order, s.dirty, s.since = nil, nil, time.Time{}
		}
		return Event{Kind: Updated, ID: id}, true, nil
	}
	return Event{}, false, nil
}

// nudge wakes the reader; Next has no event for it.
func (s *Subscription) nudge() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil && !s.other {
		s.other = true
		s.wake()
	}
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
	s.wake()
}

// keepsUp reports whether the reader is within its time limit.
func (s *Subscription) keepsUp(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since.IsZero() || now.Sub(s.since) <= s.hub.cfg.UnreadTimeout
}

// putBack keeps the event of a workspace that could not be read, until retryLoad later.
func (s *Subscription) putBack(id workspace.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.retry = now.Add(retryLoad)
	s.addLocked(id, now)
	time.AfterFunc(retryLoad, s.wake)
}

func (s *Subscription) add(id workspace.ID, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.addLocked(id, now) {
		s.wake()
	}
}

func (s *Subscription) addLocked(id workspace.ID, now time.Time) (open bool) {
	if s.err != nil {
		return false
	}
	if _, ok := s.dirty[id]; !ok && !s.all {
		if s.dirty == nil {
			s.dirty = map[workspace.ID]struct{}{}
		}
		s.dirty[id] = struct{}{}
		if s.order = append(s.order, id); len(s.order) > maxDirty {
			s.all, s.order, s.dirty = true, nil, nil
		}
	}
	if s.since.IsZero() {
		s.since = now
	}
	return true
}
