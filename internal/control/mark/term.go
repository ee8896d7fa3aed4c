package mark

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"codehub/internal/base/health"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// term is one term of leadership.
type term struct {
	*Keeper
	db       *postgres.Marks
	identity string
	storedAt time.Time // when the last mark was stored; by this process's clock
	pending  bool      // the bucket does not have the last mark yet
	compared bool      // the bucket
	read     bool      // stored is known
	stored   string    // id of the mark that the bucket had or should have last; empty: it had none
	tookOver bool      // by an administrator's decision, before the bucket responded
}

// update changes the state of the marks, unless a later term has begun: package lease abandons
// a term that does not return in time.
func (t *term) update(f func(*Status)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.latest == t {
		f(&t.status)
	}
}

func (t *term) reset() {
	t.update(func(s *Status) {
		*s = Status{}
		for _, c := range []*health.Condition{t.away, t.onHold, t.watching} {
			c.Reset()
		}
	})
}

func (t *term) identify(ctx context.Context) error {
	id, err := t.db.Identity(ctx)
	if err != nil {
		return err
	}
	if t.cfg.Files != nil {
		if files := t.cfg.Files(); files != "" {
			id += "/" + files
		}
	}
	t.identity = id
	return nil
}

// within bounds one response of Docker or the bucket.
func (t *term) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, t.cfg.Within)
}

func (t *term) dockerMark(ctx context.Context) (m workspace.Mark, found bool, err error) {
	bounded, cancel := t.within(ctx)
	defer cancel()
	m, found, err = t.cfg.Runtime.Mark(bounded)
	if err != nil {
		err = fmt.Errorf("read mark in runtime: %w", err)
	}
	return m, found, err
}

func (t *term) bucketMark(ctx context.Context, within time.Duration) (m workspace.Mark, found bool, err error) {
	bounded, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return Read(bounded, t.cfg.Bucket)
}

// untilDockerResponds calls f until Docker responds. Only the session's errors and a
// foreign mark end it.
func (t *term) untilDockerResponds(ctx context.Context, f func() error) error {
	for {
		err := f()
		var outside *outsideError
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.As(err, &outside):
			t.away.Set(nil)
			return err
		}
		t.away.Set(outside)
		if err := pause(ctx, t.cfg.Retry); err != nil {
			return err
		}
	}
}

// outsideError is an error of Docker rather than the database.
type outsideError struct{ error }

func (e *outsideError) Unwrap() error { return e.error }

// begin compares before the server acts, and stores the first mark of the term.
func (t *term) begin(ctx context.Context) error {
	t.compared, t.pending = false, false
	t.update(func(s *Status) { s.MayRemove = false })
	if err := t.untilDockerResponds(ctx, func() error { return t.compare(ctx) }); err != nil {
		return err
	}
	t.onHold.Set(nil)
	t.update(func(s *Status) { s.MayRemove = t.compared })
	return nil
}

// compare compares both marks with the database once and stores the mark that
// follows.
func (t *term) compare(ctx context.Context) error {
	state, err := t.db.State(ctx)
	if err != nil {
		return err
	}
	docker, found, err := t.dockerMark(ctx)
	if err != nil {
		return &outsideError{err}
	}
	inDocker, err := Compare(ctx, t.db, state, docker, found)
	if err != nil {
		return err
	}
	// Nothing suggests that another database leads, so only removals wait for the bucket.
	usual := inDocker == Same && docker.Identity == t.identity && state.Hold == "" && !state.TakeOver
	within := t.cfg.Within
	if usual {
		within = min(within, t.cfg.First)
	}
	theirs, kept, unread := t.bucketMark(ctx, within)
	if unread != nil {
		t.cfg.Log.Warn("read the bucket's mark failed; removals paused", "err", unread)
	}
	if t.compared = unread == nil; t.compared {
		t.read, t.stored = true, theirs.ID
	} else if usual && state.Run != "" {
		t.read, t.stored = true, state.Run // with this mark it would have been the same now
	}
	if state.TakeOver {
		floor := max(state.Serial, docker.Serial)
		if theirs.Serial < unreadable {
			floor = max(floor, theirs.Serial)
		}
		t.cfg.Log.Warn("taking over")
		if err := t.db.Supersede(ctx, docker.ID, theirs.ID); err != nil {
			return err
		}
		t.tookOver = unread != nil
		// Far above the serials that a server adds until it notices the takeover.
		return t.storeNew(ctx, floor+999)
	}
	inBucket, err := Compare(ctx, t.db, state, theirs, kept)
	if err != nil {
		return err
	}
	checked := unread == nil
	switch {
	case inDocker == Foreign:
		return &errForeign{foreignIn(reasonWorkspaces, docker)}
	case checked && inBucket == Foreign:
		return &errForeign{foreignIn(reasonArchives, theirs)}
	case state.Hold != "" && (inDocker != Same || unread != nil || inBucket != Same):
		return &errForeign{state.Hold}
	}
	if err := t.watch(ctx, state, docker, inDocker, theirs, checked && inBucket == Same); err != nil {
		return err
	}
	if state.Hold != "" {
		if err := t.db.Release(ctx); err != nil {
			return err
		}
	}
	lost := state.Serial > 0 && (inDocker != Same || checked && inBucket != Same) || state.Run != "" && checked && inBucket != Same
	if lost {
		t.cfg.Log.Warn("marks missing or stale; waits restarted", "docker", inDocker, "bucket", inBucket)
		if err := t.db.RestartWaits(ctx); err != nil {
			return err
		}
	}
	if state.NextRun != "" && docker.ID == state.NextRun {
		if err := t.finish(ctx, docker); err != nil { // the previous write was interrupted
			return err
		}
	}
	err = t.storeNew(ctx, 0)
	if inDocker == Same && docker.Identity == t.identity && refused(err) {
		// The disk may be full, and what frees space must not wait for a new mark.
		t.cfg.Log.Warn("store mark in runtime failed; retrying", "err", err)
		return nil
	}
	return err
}

// refused reports whether Docker responded and did not store a mark.
func refused(err error) bool {
	var outside *outsideError
	return errors.As(err, &outside) && !errors.Is(err, runtime.ErrUnreachable)
}

func foreignIn(reason string, m workspace.Mark) string {
	at := ""
	if !m.At.IsZero() {
		at = fmt.Sprintf(reasonAt, m.At.UTC().Format("2006-01-02 15:04:05 UTC"))
	}
	return reason + at
}

// watch checks whether another server leads on the database of which this one may
// be a copy: that server would replace its mark in the meantime.
func (t *term) watch(ctx context.Context, state postgres.MarkState, docker workspace.Mark, in Verdict, theirs workspace.Mark, kept bool) error {
	last := theirs
	switch {
	case in == Same:
		last = docker
	case !kept:
		return nil
	}
	if last.Identity == "" || last.Identity == t.identity {
		return nil
	}
	t.watching.Set(errWatching, "for", t.cfg.Watch)
	defer t.watching.Reset()
	for end := time.Now().Add(t.cfg.Watch); time.Now().Before(end); {
		if err := pause(ctx, min(t.cfg.Retry, t.cfg.Watch)); err != nil {
			return err
		}
		now, found, err := t.dockerMark(ctx)
		if err != nil {
			return &outsideError{err}
		}
		// An announced mark may arrive late. An original stores further ones.
		if found && now.ID != docker.ID && now.ID != state.NextRun {
			return &errForeign{reasonOriginal}
		}
		if !kept {
			continue
		}
		if now, found, err := t.bucketMark(ctx, t.cfg.Within); err == nil && found && !slices.Contains([]string{theirs.ID, docker.ID, state.NextRun}, now.ID) {
			return &errForeign{reasonOriginalArchives}
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
