// Package bus carries what changed to who waits for it inside one process:
// workspaces to their owners' event streams, wakes to the controller, ended
// sessions to the caches (design §4). It is fed by the database's
// notifications, in every replica; whatever feeds it, an event only says that
// something changed, and what it is now is read from the database.
package bus

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"codehub/internal/workspace"
)

// Channels of the database's notifications (design §5).
const (
	ChannelEvents  = "ws_sse"
	ChannelWake    = "ws_wake"
	ChannelDeleted = "ws_deleted"
	ChannelAuth    = "auth_changed"
)

// Loader reads one workspace as its owner sees it, deleted ones that can
// still be restored included; workspace.CodeNotFound once it is gone.
type Loader func(ctx context.Context, owner string, id workspace.ID) (workspace.Workspace, error)

// Config configures New.
type Config struct {
	Load Loader
	// AuthChanged is told that a session ended (hex hash) or, with an empty
	// session, that a user changed. May be nil.
	AuthChanged func(user, session string)
	Log         *slog.Logger
	// CutAfter is how long a subscriber may leave events unread before it is
	// cut off; 0 is a minute.
	CutAfter time.Duration
}

// Limits of a Hub's memory.
const (
	// MaxPerUser bounds one user's subscriptions in this process.
	MaxPerUser = 64
	// maxDirty is how many changed workspaces a subscription remembers one by
	// one; beyond it, everything counts as changed.
	maxDirty = 1024
)

// Observer is told at once, in the goroutine that brings the news, so it must
// neither block nor call the Hub. Nil fields are not called.
type Observer struct {
	// Changed says that a workspace changed in some way.
	Changed func(owner string, id workspace.ID)
	// Gap says that events may have been missed.
	Gap func()
}

// Hub is the bus. It is safe for concurrent use.
type Hub struct {
	cfg  Config
	wake chan struct{}

	mu        sync.Mutex
	subs      map[string]map[*Subscription]struct{} // by user
	observers map[*Observer]struct{}
	said      recently
}

// New makes a Hub.
func New(cfg Config) *Hub {
	if cfg.CutAfter <= 0 {
		cfg.CutAfter = time.Minute
	}
	return &Hub{
		cfg:       cfg,
		wake:      make(chan struct{}, 1),
		subs:      map[string]map[*Subscription]struct{}{},
		observers: map[*Observer]struct{}{},
	}
}

// Handle takes one of the database's notifications. What it cannot read
// counts as a gap: something changed, and nobody knows what.
func (h *Hub) Handle(channel, payload string) {
	var p struct{ ID, Owner, User, Session string }
	if err := json.Unmarshal([]byte(payload), &p); err != nil {
		h.cfg.Log.Error("read a notification", "channel", channel, "err", err)
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
	case ChannelAuth:
		if h.cfg.AuthChanged != nil {
			h.cfg.AuthChanged(p.User, p.Session)
		}
	}
}

// Notify says that a workspace changed.
func (h *Hub) Notify(owner string, id workspace.ID) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.said.add(id, now)
	h.notify(owner, id, now)
}

// Echo says the same by a second way. What the first has said a moment ago is
// left out, as everything would be read twice. Should it have been another
// change of the workspace, the first way brings it, or a gap.
func (h *Hub) Echo(owner string, id workspace.ID) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.said.holds(id, now) {
		h.notify(owner, id, now)
	}
}

func (h *Hub) notify(owner string, id workspace.ID, now time.Time) {
	// Observers drop what they remember before anybody can come back for it.
	for o := range h.observers {
		if o.Changed != nil {
			o.Changed(owner, id)
		}
	}
	for s := range h.subs[owner] {
		s.mark(id, now)
	}
}

// NotifyDeleted says that a workspace was deleted. Subscribers read it like
// any other change, so that a deletion taken back meanwhile is none.
func (h *Hub) NotifyDeleted(owner string, id workspace.ID) { h.Notify(owner, id) }

// Gap says that events may have been missed: every subscriber reads
// everything afresh, and so does the controller.
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

// Wake asks the controller to look at once. Wakes that nobody has taken yet
// are one.
func (h *Hub) Wake() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// Wakes is where the controller takes them. It has one reader.
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
