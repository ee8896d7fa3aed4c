package mark

import (
	"context"
	"errors"
	"time"

	"codehub/internal/postgres"
)

// lead runs act and stores marks meanwhile, until another database leads.
func (t *term) lead(ctx context.Context, act func(ctx context.Context) error) error {
	acting, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- act(acting) }()
	ticker := time.NewTicker(t.cfg.Check)
	defer ticker.Stop()
	for {
		due := false
		select {
		case err := <-ended:
			return err
		case <-ticker.C:
			due = true
		case <-t.wake:
		}
		if acting.Err() != nil {
			return <-ended
		}
		if err := t.check(ctx, due); err != nil && ctx.Err() == nil {
			var outside *outsideError
			if errors.As(err, &outside) {
				// The breaker and the controller report the outage, and nothing acts
				// during it.
				t.cfg.Log.Debug("read mark in runtime failed; retrying", "err", err)
				continue
			}
			stop()
			<-ended
			return err
		}
	}
}

// check compares Docker's mark again, and stores a new mark if one is due or wanted.
func (t *term) check(ctx context.Context, due bool) error {
	state, err := t.db.State(ctx)
	if err != nil {
		return err
	}
	if !due && !state.Wanted {
		return nil
	}
	docker, found, err := t.dockerMark(ctx)
	if err != nil {
		return &outsideError{err}
	}
	verdict, err := Compare(ctx, t.db, state, docker, found)
	if err != nil {
		return err
	}
	if verdict == Foreign {
		return &errForeign{foreignIn(reasonWorkspaces, docker)}
	}
	if t.compared && verdict != Missing && !state.Wanted && !t.pending && time.Since(t.storedAt).Abs() < t.cfg.Every {
		return nil
	}
	// Before every replacement of the bucket's mark: a server with another Docker
	// may use the same archives.
	if err := t.compareBucket(ctx, state); err != nil {
		return err
	}
	if !t.compared && verdict != Missing && !state.Wanted && time.Since(t.storedAt).Abs() < t.cfg.Every {
		return nil
	}
	if state.NextRun != "" && docker.ID == state.NextRun {
		if err := t.finish(ctx, docker); err != nil { // the previous write was interrupted
			return err
		}
	}
	return t.storeNew(ctx, 0)
}

// compareBucket compares the bucket's mark. While the bucket does not respond,
// nothing is removed and its mark is not replaced.
func (t *term) compareBucket(ctx context.Context, state postgres.MarkState) error {
	theirs, kept, err := t.bucketMark(ctx, t.cfg.Within)
	if err != nil {
		t.cfg.Log.Debug("read the bucket's mark failed; retrying", "err", err)
		t.compared = false
		t.update(func(s *Status) { s.MayRemove = false })
		return nil
	}
	verdict, err := Compare(ctx, t.db, state, theirs, kept)
	if err != nil {
		return err
	}
	switch {
	case verdict == Foreign && t.tookOver && theirs.Serial < unreadable:
		// The bucket did not respond when this database took over.
		if err := t.db.Supersede(ctx, theirs.ID); err != nil {
			return err
		}
		t.tookOver, t.compared = false, true
		t.update(func(s *Status) { s.MayRemove = true })
		return t.storeNew(ctx, theirs.Serial+999)
	case verdict == Foreign:
		return &errForeign{foreignIn(reasonArchives, theirs)}
	case verdict != Same && !(t.read && theirs.ID == t.stored):
		// After an outage of the bucket its mark is stale.
		t.cfg.Log.Warn("bucket's mark missing or stale; waits restarted", "bucket", verdict)
		if err := t.db.RestartWaits(ctx); err != nil {
			return err
		}
	}
	t.read, t.stored, t.tookOver = true, theirs.ID, false
	if !t.compared {
		t.compared = true
		t.update(func(s *Status) { s.MayRemove = true })
		t.cfg.Log.Info("bucket's mark compared; removals resumed")
	}
	return nil
}

// hold waits until an administrator decides that this database leads.
func (t *term) hold(ctx context.Context, why string) error {
	if err := t.db.Hold(ctx, why); err != nil {
		return err
	}
	t.onHold.Set(errors.New(why))
	t.update(func(s *Status) { s.MayRemove = false })
	for {
		state, err := t.db.State(ctx)
		if err != nil {
			return err
		}
		if state.Hold == "" {
			return nil
		}
		timer := time.NewTimer(t.cfg.Retry)
		select {
		case <-timer.C:
		case <-t.wake:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}
