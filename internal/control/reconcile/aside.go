package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// orphanSetAside is the kind of volumes that were set aside, in the list of
// orphans.
const orphanSetAside = "set-aside"

// maxAsideCopies limits concurrent copies of volumes, each of which may fill a
// disk.
const maxAsideCopies = 2

// asidesInterval is the longest time between two listings of set-aside volumes.
const asidesInterval = time.Minute

// asides is this term's state of set-aside volumes.
type asides struct {
	attempts map[workspace.ID]attempt
	slots    chan struct{} // limits concurrent copies
	list     []runtime.Aside
	next     time.Time // when to list again
}

// attempt is the result of the last try to carry out a set-aside request.
type attempt struct {
	request time.Time
	failure *lifecycle.Failure
	retryAt time.Time // not tried again before
}

// asideFailure returns why the current set-aside request failed, or nil if it was
// not tried yet or is in progress.
func (t *term) asideFailure(row workspace.Workspace) *lifecycle.Failure {
	if row.RecoverRequestedAt == nil || row.RecoverAction != workspace.RecoverSetAside {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if a := t.asides.attempts[row.ID]; a.request.Equal(*row.RecoverRequestedAt) {
		return a.failure
	}
	return nil
}

// setAside renames the volume that blocks the workspace's home, outside the tick.
// Copying takes time proportional to its size and is aborted when it makes no
// progress. The next observation shows that the name is free. found is the claim of
// the blocking volume.
func (t *term) setAside(ctx context.Context, row workspace.Workspace, found string) {
	key := "set-aside/" + string(row.ID)
	if !t.mayFill() {
		return // the copy takes as much space as the volume
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	request := *row.RecoverRequestedAt
	if a := t.asides.attempts[row.ID]; t.busy[key] || a.request.Equal(request) && time.Now().Before(a.retryAt) {
		return
	}
	t.busy[key] = true
	t.group.Go(func() {
		name, err := t.moveAside(ctx, row, found)
		log := t.cfg.Log.With("workspace", row.ID)
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.busy, key)
		t.asides.next = time.Time{}
		if ctx.Err() != nil {
			return
		}
		if t.asides.attempts == nil {
			t.asides.attempts = map[workspace.ID]attempt{}
		}
		switch f := failure(err); {
		case f == nil:
			delete(t.asides.attempts, row.ID)
			log.Info("volume set aside", "name", name)
		case f.Outage:
			t.asides.attempts[row.ID] = attempt{request: request, retryAt: time.Now().Add(outageRetry)}
			log.Debug("set volume aside failed; retrying", "err", err)
		default:
			t.asides.attempts[row.ID] = attempt{request: request, failure: f}
			log.Warn("set volume aside failed", "err", err)
		}
		t.Wake()
	})
}

var errNoProgress = errors.New("the copy made no progress")

func (t *term) moveAside(ctx context.Context, row workspace.Workspace, found string) (string, error) {
	select {
	case t.asides.slots <- struct{}{}:
		defer func() { <-t.asides.slots }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	patience := t.cfg.Policy.NoProgress
	watchdog := time.AfterFunc(patience, func() { cancel(errNoProgress) })
	defer watchdog.Stop()
	var last runtime.Progress
	name, err := t.cfg.Runtime.SetAside(ctx, row.ID, row.Home.Claim, found, func(p runtime.Progress) {
		if p != last {
			last = p
			watchdog.Reset(patience)
		}
	})
	if errors.Is(context.Cause(ctx), errNoProgress) {
		return name, fmt.Errorf("%w for %s", errNoProgress, patience)
	}
	return name, err
}

// asideOrphans lists set-aside volumes for administrators. They are kept until an
// administrator removes them.
func (t *term) asideOrphans(ctx context.Context) []observedOrphan {
	t.mu.Lock()
	list, due := t.asides.list, !time.Now().Before(t.asides.next)
	t.mu.Unlock()
	if due {
		t.effect(ctx, "list-asides", nil, func(ctx context.Context) bool {
			t.mu.Lock()
			t.asides.next = time.Now().Add(asidesInterval)
			t.mu.Unlock()
			found, err := t.cfg.Runtime.Asides(ctx)
			t.mu.Lock()
			defer t.mu.Unlock()
			if err != nil {
				t.cfg.Log.Debug("list set-aside volumes failed", "err", err)
				return false
			}
			changed := len(found) != len(t.asides.list)
			t.asides.list = found
			return changed
		})
	}
	out := make([]observedOrphan, 0, len(list))
	for _, a := range list {
		out = append(out, observedOrphan{id: a.Workspace, Orphan: postgres.Orphan{
			Kind: orphanSetAside, Name: a.Name, WorkspaceID: string(a.Workspace), Detail: describeAside(a), Kept: true,
		}})
	}
	return out
}

func describeAside(a runtime.Aside) string {
	detail := a.Storage
	if !a.Since.IsZero() {
		detail += ", " + fmt.Sprintf(msgAsideSince, a.Since.UTC().Format(time.RFC3339))
	}
	if a.Entries > 0 {
		detail += ", " + fmt.Sprintf(msgAsideSize, a.Bytes, a.Entries)
	}
	if !a.Complete {
		return detail + "; " + msgAsidePartial
	}
	return detail + "; " + msgAsideKept
}
