package server

import (
	"context"
	"time"

	"codehub/internal/activity"
	"codehub/internal/config"
	"codehub/internal/workspace"
)

// serverTTL is what holds for workspaces without times of their own.
func serverTTL(cfg config.Config) workspace.TTL {
	return workspace.TTL{Standby: time.Duration(cfg.StandbyTTL) * time.Second, Archive: time.Duration(cfg.ArchiveTTL) * time.Second}
}

// lastUse returns a function that tells when this server last saw a workspace used,
// by the database's clock.
func lastUse(used *activity.Recorder, flush *activity.Flusher) func(workspace.ID) (at time.Time, kind string, ok bool) {
	return func(id workspace.ID) (time.Time, string, bool) {
		a, ok := used.Last(id)
		return flush.DatabaseTime(a.At), string(a.Kind), ok
	}
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
		s.log.Warn("last activity flush failed", "err", err)
	}
}

// leave takes this server off the list of servers, unless it still had to hand
// something on: then it is to be found dead there, as the clock of activity
// would otherwise go on over what nobody knows of.
func (s *server) leave(ctx context.Context) {
	if s.owes {
		s.log.Warn("activity not flushed; server counts as dead after a minute")
		return
	}
	if err := s.self.Leave(ctx); err != nil {
		s.log.Warn("unregister server failed", "err", err)
	}
}
