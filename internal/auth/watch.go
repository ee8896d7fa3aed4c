package auth

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

// watchEvery is how often the sessions behind open connections are looked at,
// all together (design §8).
const watchEvery = 3 * time.Second

// ErrSessionEnded is the cause of a context from Watch that ended because its
// session or token did.
var ErrSessionEnded = errors.New("the session has ended")

type watches struct {
	poke chan struct{}
	mu   sync.Mutex
	by   map[string]map[*watch]struct{}
}

type watch struct{ cancel context.CancelCauseFunc }

func (w *watches) look() {
	select {
	case w.poke <- struct{}{}:
	default:
	}
}

// Watch returns a context that ends with ctx, or, with cause ErrSessionEnded,
// soon after the session or token (Caller.Session) holds no longer: logged
// out, expired, deleted, or its user disabled. For connections that stay
// open. The caller must call stop.
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

// Run looks after the watched sessions until ctx ends. While the database
// does not answer, nothing is known and nobody is cut off.
func (a *Auth) Run(ctx context.Context) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-a.watches.poke:
		}
		if err := a.revalidate(ctx); err != nil && ctx.Err() == nil {
			a.log.WarnContext(ctx, "re-validate open connections", "err", err)
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
