package server

import (
	"context"
	"time"

	"codehub/internal/bus/activity"
	"codehub/internal/workspace"
)

// lastUse returns a function that returns the last activity of a workspace on this
// server, by the database's clock.
func lastUse(used *activity.Recorder, flush *activity.Flusher) func(workspace.ID) (at time.Time, kind string, ok bool) {
	return func(id workspace.ID) (time.Time, string, bool) {
		a, ok := used.Last(id)
		return flush.DatabaseTime(a.At), string(a.Kind), ok
	}
}

// lastWithin bounds the last flush, at shutdown.
const lastWithin = 5 * time.Second

// lastFlush flushes the activity that was recorded until the proxy was drained. If it
// fails, the leader treats the time since the previous flush as unwatched, as after a
// kill.
func (s *server) lastFlush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWithin)
	defer cancel()
	if err := s.flush.Last(ctx); err != nil {
		s.flushFailed = true
		s.log.Warn("last activity flush failed", "err", err)
	}
}

// leave removes this server from the list of servers. After a failed last flush the
// server stays on the list and counts as dead later: otherwise the clock of activity
// would advance over activity that is not recorded.
func (s *server) leave(ctx context.Context) {
	if s.flushFailed {
		s.log.Warn("activity not flushed; server counts as dead after a minute")
		return
	}
	if err := s.self.Leave(ctx); err != nil {
		s.log.Warn("unregister server failed", "err", err)
	}
}
