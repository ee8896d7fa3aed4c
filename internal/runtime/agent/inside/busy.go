package inside

import "codehub/internal/runtime/agent/busy"

// holdAwake serves the socket of package busy, until stop. Without it the agent
// works all the same.
func (s *Server) holdAwake() (stop func()) {
	if s.cfg.BusySocket == "" {
		return func() {}
	}
	l, err := busy.Listen(s.cfg.BusySocket)
	if err != nil {
		s.cfg.Log.Warn("listen for commands that hold the workspace awake failed", "err", err)
		return func() {}
	}
	go func() { _ = s.holders.Serve(l, s.cfg.Log) }()
	return func() { l.Close() }
}
