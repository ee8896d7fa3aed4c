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
func (h *home) archived(ctx context.Context) (record api.MoveRecord, err error) {
	if h.there.Version == nil {
		m, err := h.archive(ctx)
		if err != nil {
			return record, err
		}
		if err := h.awaitArchived(ctx, m); err != nil {
			return record, err
		}
	}
	if err := h.run.Pass("archived"); err != nil {
		return record, err
	}
	record, err = read(ctx, h.source, func(ctx context.Context) (api.MoveRecord, error) { return h.Client.ReadToMove(ctx, h.there.ID) })
	return record, fromSource(err)
}

// archive has the source archive the workspace, or unpack a home that is only in a backup.
func (h *home) archive(ctx context.Context) (api.MoveWorkspace, error) {
	m, err := limited(ctx, h.source, func(ctx context.Context) (api.MoveWorkspace, error) { return h.Client.ArchiveToMove(ctx, h.there.ID) })
	return m, fromSource(err)
}

// now reads the workspace at the source.
func (h *home) now(ctx context.Context) (api.MoveWorkspace, error) {
	return read(ctx, h.source, func(ctx context.Context) (api.MoveWorkspace, error) { return h.Client.WorkspaceToMove(ctx, h.there.ID) })
}

func (h *home) awaitArchived(ctx context.Context, m api.MoveWorkspace) (err error) {
	logged, progressed, last := time.Time{}, time.Now(), ""
	for m.Version == nil {
		if err := waiting(m); err != nil {
			return err
		}
		if now := fmt.Sprint(m.Phase, m.Operation, progressOf(m)); now != last {
			progressed, last = time.Now(), now
		}
		if time.Since(progressed) > h.Stalled {
			return fmt.Errorf("archiving has made no progress at the source for %s (state %s): check the workspace there, and run the import again", h.Stalled, m.State)
		}
		if time.Since(logged) > logEvery {
			logged = time.Now()
			h.run.Log.InfoContext(ctx, "waiting until the source has archived a workspace", progressOf(m)...)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(h.Poll):
		}
		unpacking := m.InBackup
		if m, err = h.now(ctx); err != nil {
			return fromSource(err)
		}
		if unpacking && !m.InBackup {
			if m, err = h.archive(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// waiting returns why a workspace whose archiving was requested will not be archived.
func waiting(m api.MoveWorkspace) error {
	want := string(workspace.DesiredArchived)
	if m.InBackup {
		want = string(workspace.DesiredStandby)
	}
	idle := m.Operation == string(workspace.OpNone)
	switch {
	case m.Phase == string(workspace.PhaseError):
		return fmt.Errorf("archiving failed at the source (%s): %s", text(m.ErrorReason), text(m.ErrorMessage))
	case m.NextDesiredState != nil && *m.NextDesiredState != want, m.NextDesiredState == nil && m.DesiredState != want:
		return errors.New("started at the source before it was archived; run the import again")
	case idle && m.DesiredState == want && text(m.ErrorReason) == string(workspace.ErrUnrestorable):
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
