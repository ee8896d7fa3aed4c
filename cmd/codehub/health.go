package main

import (
	"codehub/api"
	"codehub/internal/breaker"
)

// backends are the circuit breakers of what a server works with, by name.
type backends map[string]*breaker.Breaker

// states is how they are now.
func (b backends) states() map[string]api.Breaker {
	out := make(map[string]api.Breaker, len(b))
	for name, br := range b {
		out[name] = br.State()
	}
	return out
}

// metrics is their figures.
func (b backends) metrics() breaker.Metrics {
	var all breaker.Metrics
	for _, br := range b {
		all = append(all, br)
	}
	return all
}

// reach is what keeps this server from a backend: in the controller's words,
// if it leads, else in those of the breaker.
func (s *server) reach(backend, trouble string) string {
	if b := s.backends[backend]; trouble == "" && b != nil {
		if st := b.State(); st.State != api.BreakerClosed {
			trouble = st.Error
		}
	}
	return trouble
}

// trouble is what the dashboard tells everybody.
func (s *server) trouble() string {
	st := s.ctrl.Status()
	switch {
	case s.reach("engine", st.Backend) != "":
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
