package mark

import (
	"context"
	"errors"
	"fmt"
	"time"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// storeNew stores a new mark with a serial above floor: it is announced in the
// database, stored in Docker and the bucket, and then becomes the database's last
// one. A bucket that does not respond gets it later.
func (t *term) storeNew(ctx context.Context, floor int64) error {
	m, err := t.db.Announce(ctx, floor)
	if err != nil {
		return err
	}
	set := func() error {
		m.Identity = t.identity
		bounded, cancel := t.within(ctx)
		defer cancel()
		return t.cfg.Runtime.SetMark(bounded, m)
	}
	err = set()
	if errors.Is(err, runtime.ErrConflict) {
		// After a power cut something else may have the mark's name. The next mark
		// has another name.
		if m, err = t.db.Announce(ctx, m.Serial); err != nil {
			return err
		}
		err = set()
	}
	if err != nil {
		return &outsideError{fmt.Errorf("store mark in runtime: %w", err)}
	}
	t.storedAt = time.Now()
	return t.finish(ctx, m)
}

// finish stores the mark that Docker has in the bucket and the database.
func (t *term) finish(ctx context.Context, m workspace.Mark) error {
	t.pending = true
	if t.compared {
		bounded, cancel := t.within(ctx)
		err := Write(bounded, t.cfg.Bucket, m)
		cancel()
		if err != nil {
			t.cfg.Log.Debug("store the bucket's mark failed; retrying", "err", err)
		}
		if t.pending = err != nil; err == nil {
			t.read, t.stored = true, m.ID
		}
	}
	return t.db.Settle(ctx, m.ID)
}
