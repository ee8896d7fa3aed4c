package server

import (
	"context"
	"time"

	"codehub/internal/activity"
	"codehub/internal/config"
	"codehub/internal/ttl"
	"codehub/internal/workspace"
)

// idleness makes the parts that hand on what people do and end what nobody
// uses. The server's replica and its Redis are there by now.
func (s *server) idleness() {
	var bus activity.Bus
	if s.redis != nil {
		bus = s.redis
	}
	s.flush = activity.NewFlusher(activity.FlusherConfig{Memory: s.used, Store: s.db, Bus: bus, Replica: s.self.ID(), Interval: s.cfg.FlushInterval, Log: s.log})
	s.ttl = ttl.New(ttl.Config{TTL: serverTTL(s.cfg), Bus: bus, Interval: s.cfg.TTLInterval, Log: s.log, Flush: s.flush.Flush})
}

// serverTTL is what holds for workspaces without times of their own.
func serverTTL(cfg config.Config) workspace.TTL {
	return workspace.TTL{Standby: time.Duration(cfg.StandbyTTL) * time.Second, Archive: time.Duration(cfg.ArchiveTTL) * time.Second}
}

// lastUse is when this very server saw a workspace used last, by the
// database's clock, as all that is held against it.
func (s *server) lastUse(id workspace.ID) (at time.Time, kind string, ok bool) {
	a, ok := s.used.Last(id)
	return s.flush.DatabaseTime(a.At), string(a.Kind), ok
}

// lastWithin bounds the last flush, at shutdown.
const lastWithin = 5 * time.Second

// lastFlush hands on what people did until the proxy was drained. What is not
// handed on is as if the server had been killed: the leader takes the time
// since the flush before for unwatched.
func (s *server) lastFlush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWithin)
	defer cancel()
	if err := s.flush.Last(ctx); err != nil {
		s.owes = true
		s.log.Warn("what people did last is not handed on", "err", err)
	}
}

// leave takes this server off the list of servers, unless it still had to hand
// something on: then it is to be found dead there, as the clock of activity
// would otherwise go on over what nobody knows of.
func (s *server) leave(ctx context.Context) {
	if s.owes {
		s.log.Warn("this server stays on the list of servers for a minute, for what it did not hand on")
		return
	}
	if err := s.self.Leave(ctx); err != nil {
		s.log.Warn("this server stays on the list of servers for a minute", "err", err)
	}
}
