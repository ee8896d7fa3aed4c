package server

import (
	"cmp"

	"codehub/api"
	"codehub/internal/breaker"
)

// backends are the circuit breakers of the backends, by name.
type backends map[string]*breaker.Breaker

// states returns the current state of each breaker.
func (b backends) states() map[string]api.Breaker {
	out := make(map[string]api.Breaker, len(b))
	for name, br := range b {
		out[name] = br.State()
	}
	return out
}

// metrics returns the metrics of all breakers.
func (b backends) metrics() breaker.Metrics {
	var all breaker.Metrics
	for _, br := range b {
		all = append(all, br)
	}
	return all
}

// reach returns why this server cannot reach a backend: the controller's error on
// the leader, otherwise the breaker's; empty if it can.
func (s *server) reach(backend, trouble string) string {
	if b := s.backends[backend]; trouble == "" && b != nil {
		if st := b.State(); st.State != api.BreakerClosed {
			trouble = st.Error
		}
	}
	return trouble
}

// trouble returns the problem that the dashboard shows to every user.
func (s *server) trouble() string {
	st := s.ctrl.Status()
	marks := s.marks.Status()
	switch {
	case marks.Hold != "" || s.onHold.Load() != nil:
		return "hold"
	case s.reach("engine", cmp.Or(marks.Docker, st.Runtime)) != "":
		return "backend"
	case st.Wall != "":
		return "wall"
	case st.Disk != "":
		return "disk"
	case s.reach("bucket", st.Bucket) != "":
		return "bucket"
	}
	return ""
}
