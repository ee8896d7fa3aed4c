// Package bus distributes changes within one process: changed workspaces to their
// owners' event streams, wakes to the controller, ended sessions to the caches. In
// every replica it is fed by the database's notifications. An event only says that
// something has changed; the current state is read from the database.
package bus

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"codehub/internal/workspace"
)

// Channels of the database's notifications; see docs/database.md.
const (
	ChannelEvents  = "ws_sse"
	ChannelWake    = "ws_wake"
	ChannelDeleted = "ws_deleted"
	ChannelAuth    = "auth_changed"
	ChannelNotices = "notices_changed"
)

// Loader reads one workspace as its owner sees it, including deleted ones that can
// still be restored. It returns workspace.CodeNotFound if there is none.
type Loader func(ctx context.Context, owner string, id workspace.ID) (workspace.Workspace, error)

// Config configures New.
type Config struct {
	Load Loader
	// AuthChanged is called when a session has ended (with its hex hash), or with
	// an empty session when a user has changed. Optional.
	AuthChanged func(user, session string)
	Log         *slog.Logger
	// UnreadTimeout is how long a subscriber may leave events unread before its
	// subscription ends; 0: one minute.
	UnreadTimeout time.Duration
}

// Limits of a Hub's memory.
const (
	// MaxPerUser limits one user's subscriptions in this process.
	MaxPerUser = 64
	// maxDirty is how many changed workspaces a subscription remembers. Beyond that
	// all count as changed.
	maxDirty = 1024
)

// Observer is called synchronously for every event, so it must neither block nor
// call the Hub. Nil fields are ignored.
type Observer struct {
	// Changed reports that a workspace has changed.
	Changed func(owner string, id workspace.ID)
	// Gap reports that events may have been lost.
	Gap func()
}

// Hub is the bus. It is safe for concurrent use.
type Hub struct {
	cfg  Config
	wake chan struct{}

	mu        sync.Mutex
	subs      map[string]map[*Subscription]struct{} // by user
	all       map[*Subscription]struct{}            // those of SubscribeAll
	observers map[*Observer]struct{}
	recent    recentIDs
}

// New returns a Hub.
func New(cfg Config) *Hub {
	if cfg.UnreadTimeout <= 0 {
		cfg.UnreadTimeout = time.Minute
	}
	return &Hub{
		cfg:       cfg,
		wake:      make(chan struct{}, 1),
		subs:      map[string]map[*Subscription]struct{}{},
		all:       map[*Subscription]struct{}{},
		observers: map[*Observer]struct{}{},
	}
}

// Handle processes a notification from the database. An invalid one counts as a
// gap, because it is not known what has changed.
func (h *Hub) Handle(channel, payload string) {
	var p struct{ ID, Owner, User, Session string }
	if err := json.Unmarshal([]byte(payload), &p); err != nil {
		h.cfg.Log.Error("parse notification failed", "channel", channel, "err", err)
		h.Gap()
		return
	}
	switch channel {
	case ChannelEvents:
		h.Notify(p.Owner, workspace.ID(p.ID))
	case ChannelDeleted:
		h.NotifyDeleted(p.Owner, workspace.ID(p.ID))
	case ChannelWake:
		h.Wake()
	case ChannelNotices:
		h.Nudge(p.User)
	case ChannelAuth:
		if h.cfg.AuthChanged != nil {
			h.cfg.AuthChanged(p.User, p.Session)
		}
	}
}

// Notify reports that a workspace has changed.
func (h *Hub) Notify(owner string, id workspace.ID) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.recent.add(id, now)
	h.notify(owner, id, now)
}

// Echo reports a change through a second channel. It is ignored if the first one
// has reported the workspace within echoWindow, to avoid reading it twice. If it
// was another change, the first channel will report it, or a gap.
func (h *Hub) Echo(owner string, id workspace.ID) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.recent.has(id, now) {
		h.notify(owner, id, now)
	}
}

func (h *Hub) notify(owner string, id workspace.ID, now time.Time) {
	// Observers drop their caches before clients can ask again.
	for o := range h.observers {
		if o.Changed != nil {
			o.Changed(owner, id)
		}
	}
	for s := range h.subs[owner] {
		s.mark(id, now)
	}
	for s := range h.all {
		if s.user != owner {
			s.nudge()
		}
	}
}

// Nudge reports to the subscriptions of a user, or of all users if user is empty, that
// something other than a workspace has changed.
func (h *Hub) Nudge(user string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if user != "" {
		for s := range h.subs[user] {
			s.nudge()
		}
		return
	}
	for _, subs := range h.subs {
		for s := range subs {
			s.nudge()
		}
	}
}

// NotifyDeleted reports that a workspace was deleted. Subscribers handle it like
// any other change, because the deletion may already be undone.
func (h *Hub) NotifyDeleted(owner string, id workspace.ID) { h.Notify(owner, id) }

// Gap reports that events may have been lost: subscribers and the controller read
// everything again.
func (h *Hub) Gap() {
	now := time.Now()
	h.mu.Lock()
	for o := range h.observers {
		if o.Gap != nil {
			o.Gap()
		}
	}
	for _, subs := range h.subs {
		for s := range subs {
			s.markAll(now)
		}
	}
	h.mu.Unlock()
	h.Wake()
}

// Wake requests a tick of the controller. Pending wakes are merged.
func (h *Hub) Wake() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// Wakes returns the channel that the controller receives from. It has one reader.
func (h *Hub) Wakes() <-chan struct{} { return h.wake }

// Observe adds an observer until remove is called.
func (h *Hub) Observe(o Observer) (remove func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.observers[&o] = struct{}{}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.observers, &o)
	}
}
