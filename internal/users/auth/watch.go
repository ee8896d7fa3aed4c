package auth

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

// watchInterval is the interval at which the sessions of open connections are
// revalidated, with one query.
const watchInterval = 3 * time.Second

// ErrSessionEnded is the cause of a context from Watch whose session or token has
// ended.
var ErrSessionEnded = errors.New("the session has ended")

type watches struct {
	poke chan struct{}
	mu   sync.Mutex
	by   map[string]map[*watch]struct{}
}

type watch struct{ cancel context.CancelCauseFunc }

func (w *watches) revalidateSoon() {
	select {
	case w.poke <- struct{}{}:
	default:
	}
}

// Watch returns a context that ends with ctx or, with cause ErrSessionEnded, soon
// after the session or token (Caller.Session) has ended: logged out, expired,
// deleted, or its user disabled. It is for long-lived connections. The caller must
// call stop.
func (a *Auth) Watch(ctx context.Context, session string) (watched context.Context, stop context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	me := &watch{cancel: cancel}
	w := &a.watches
	w.mu.Lock()
	if w.by[session] == nil {
		w.by[session] = map[*watch]struct{}{}
	}
	w.by[session][me] = struct{}{}
	w.mu.Unlock()
	return ctx, func() {
		w.mu.Lock()
		delete(w.by[session], me)
		if len(w.by[session]) == 0 {
			delete(w.by, session)
		}
		w.mu.Unlock()
		cancel(nil)
	}
}

// Run revalidates the watched sessions until ctx ends. While the database is not
// responding, no session ends.
func (a *Auth) Run(ctx context.Context) error {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-a.watches.poke:
		}
		if err := a.revalidate(ctx); ctx.Err() == nil {
			a.checks.Set(err)
		}
	}
}

func (a *Auth) revalidate(ctx context.Context) error {
	w := &a.watches
	w.mu.Lock()
	sessions := slices.Collect(maps.Keys(w.by))
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	valid, err := a.Valid(ctx, sessions)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range sessions {
		if !valid[s] {
			for me := range w.by[s] {
				me.cancel(ErrSessionEnded)
			}
		}
	}
	return nil
}
