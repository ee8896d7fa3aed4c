package move

import (
	"context"
	"errors"
	"fmt"
	"time"

	"codehub/api"
	"codehub/internal/workspace"
)

// logEvery is the pause between two log entries about the progress of one workspace.
const logEvery = 10 * time.Second

// archived has the source archive a workspace, waits until it has, and reads it.
func (r *run) archived(ctx context.Context, m api.MoveWorkspace) (record api.MoveRecord, err error) {
	if m.Version == nil {
		if m, err = limited(ctx, r, func(ctx context.Context) (api.MoveWorkspace, error) { return r.Source.ArchiveToMove(ctx, m.ID) }); err != nil {
			return record, fromSource(err)
		}
		if err := r.awaitArchived(ctx, m); err != nil {
			return record, err
		}
	}
	r.step(workspace.ID(m.ID), "archived")
	record, err = read(ctx, r, func(ctx context.Context) (api.MoveRecord, error) { return r.Source.ReadToMove(ctx, m.ID) })
	return record, fromSource(err)
}

// there reads a workspace of the source.
func (r *run) there(ctx context.Context, id string) (api.MoveWorkspace, error) {
	return read(ctx, r, func(ctx context.Context) (api.MoveWorkspace, error) { return r.Source.WorkspaceToMove(ctx, id) })
}

func (r *run) awaitArchived(ctx context.Context, m api.MoveWorkspace) (err error) {
	logged, progressed, last := time.Time{}, time.Now(), ""
	for m.Version == nil {
		if err := waiting(m); err != nil {
			return err
		}
		if now := fmt.Sprint(m.Phase, m.Operation, progressOf(m)); now != last {
			progressed, last = time.Now(), now
		}
		if time.Since(progressed) > r.Stalled {
			return fmt.Errorf("archiving has made no progress at the source for %s (state %s): check the workspace there, and run the move again", r.Stalled, m.State)
		}
		if time.Since(logged) > logEvery {
			logged = time.Now()
			r.Log.InfoContext(ctx, "waiting until the source has archived a workspace", progressOf(m)...)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(r.Poll):
		}
		if m, err = r.there(ctx, m.ID); err != nil {
			return fromSource(err)
		}
	}
	return nil
}

// waiting returns why a workspace whose archiving was requested will not be archived.
func waiting(m api.MoveWorkspace) error {
	const archived = string(workspace.DesiredArchived)
	idle := m.Operation == string(workspace.OpNone)
	switch {
	case m.Phase == string(workspace.PhaseError):
		return fmt.Errorf("archiving failed at the source (%s): %s", text(m.ErrorReason), text(m.ErrorMessage))
	case m.NextDesiredState != nil && *m.NextDesiredState != archived, m.NextDesiredState == nil && m.DesiredState != archived:
		return errors.New("started at the source before it was archived; run the move again")
	case idle && m.DesiredState == archived && text(m.ErrorReason) == string(workspace.ErrUnrestorable):
		return fmt.Errorf("its home cannot be archived: %s", text(m.ErrorMessage))
	}
	return nil
}

func progressOf(m api.MoveWorkspace) []any {
	attrs := []any{"workspace", m.ID, "state", m.State}
	if p := m.Progress; p != nil {
		attrs = append(attrs, "step", p.Step, "done", p.Done, "total", p.Total)
	}
	return attrs
}
