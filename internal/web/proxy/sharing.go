package proxy

import (
	"context"
	"time"

	"codehub/internal/workspace"
)

// share is what is in effect of a workspace.PortShare.
type share struct {
	public bool
	until  time.Time // zero: it does not end
}

// effective returns the shares that the settings allow, by port.
func effective(list []workspace.PortShare, most workspace.Visibility) map[int]share {
	var by map[int]share
	for _, s := range list {
		with := s.With.AtMost(most)
		if with == workspace.VisibleOwner || workspace.ReservedPort(s.Port) {
			continue
		}
		if by == nil {
			by = map[int]share{}
		}
		of := share{public: with == workspace.VisiblePublic}
		if s.ExpiresAt != nil {
			of.until = *s.ExpiresAt
		}
		by[s.Port] = of
	}
	return by
}

// enters reports whether a caller may open all of the workspace: its owner, or a guest who may
// use it.
func (r *route) enters(caller workspace.Caller) bool {
	return r.guests.Enters(caller, r.workspace.OwnerID, r.workspace.ID)
}

// admits reports whether a caller may open a port of the workspace at this time, and
// until when; zero: without an end. Only here and in enters does a visitor who does not
// own a workspace get access. The zero Caller is a visitor without a session.
func (r *route) admits(caller workspace.Caller, port int, now time.Time) (until time.Time, ok bool) {
	if r.enters(caller) {
		return time.Time{}, true
	}
	s, shared := r.shares[port]
	if port == 0 || !shared || !s.until.IsZero() && !now.Before(s.until) {
		return time.Time{}, false
	}
	return s.until, s.public || caller.UserID != "" && caller.Only == ""
}

// stillAdmitted reports whether the share by which c was admitted still is in effect. It
// is asked once c is tracked, so that a share that ends from then on closes c.
func (p *Proxy) stillAdmitted(ctx context.Context, c *connection) bool {
	known := c.until.Load()
	r, err := p.routes.get(ctx, c.id, p.routes.maxAge)
	if err != nil {
		return false
	}
	until, ok := r.admits(c.caller, c.port, time.Now())
	// The share may have changed since the request was admitted. What a newer route has set
	// meanwhile stays.
	c.until.CompareAndSwap(known, stamp(until))
	return ok
}

// stamp is a time for connection.until.
func stamp(at time.Time) int64 {
	if at.IsZero() {
		return 0
	}
	return at.UnixNano()
}
