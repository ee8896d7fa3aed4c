package httpapi

import (
	"context"
	"time"

	"codehub/internal/workspace"
)

// whileAllowed returns a context that ends with ctx, or soon after allowed refuses the caller: a
// response that lasts must not outlast the right to it. While the database does not respond, it
// goes on. The caller must call stop.
func (s *server) whileAllowed(ctx context.Context, allowed func(context.Context) error) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		tick := time.NewTicker(s.cfg.CheckEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			asked, done := context.WithTimeout(ctx, s.cfg.ReadWithin)
			err := allowed(asked)
			done()
			if code := workspace.CodeOf(err); code == workspace.CodeForbidden || code == workspace.CodeNotFound {
				cancel()
			}
		}
	}()
	return ctx, cancel
}

// owns returns the check that the workspace of this id is the caller's.
func (s *server) owns(caller workspace.Caller, id workspace.ID) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := s.cfg.Store.Workspace(ctx, caller, id)
		return err
	}
}

// administers returns the check that the caller, an administrator, may see the workspace of this id.
func (s *server) administers(caller workspace.Caller, id workspace.ID) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := s.cfg.Store.AnyWorkspace(ctx, caller, id)
		return err
	}
}
