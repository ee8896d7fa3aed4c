package move

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"

	"codehub/api"
	"codehub/client"
	"codehub/internal/archive"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// workspace moves one workspace. Its error is why the workspace was left.
func (r *run) workspace(ctx context.Context, m api.MoveWorkspace, w *Workspace) error {
	id := workspace.ID(m.ID)
	if mv := r.begun[id]; mv.Done {
		here, err := r.DB.Workspace(ctx, workspace.System, id)
		if err == nil {
			return r.already(ctx, mv, here, w)
		}
		if workspace.CodeOf(err) != workspace.CodeNotFound {
			return err
		}
		if r.Selection.Workspace == "" {
			return errors.New("moved before, and deleted here since. To move it again, run the move with --workspace")
		}
	}
	who := r.owners[m.OwnerID]
	if err := r.admit(ctx, m, who); err != nil {
		return err
	}
	if r.DryRun {
		w.Result = Moved
		if m.Version == nil {
			w.Notes = append(w.Notes, "would be archived at the source first")
		}
		return nil
	}
	record, err := r.archived(ctx, m)
	if err != nil {
		return err
	}
	if err := checkRecord(record, m); err != nil {
		return err
	}
	if w.Home, err = r.bring(ctx, record, who); err != nil {
		w.Home = nil
		return err
	}
	w.Result = Moved
	return r.leave(ctx, id, record.Version, w)
}

// already treats a workspace that an earlier run moved. It changes nothing here.
func (r *run) already(ctx context.Context, mv postgres.Move, here workspace.Workspace, w *Workspace) error {
	if here.DeletedAt != nil {
		return errors.New("moved before, and deleted here since. Undelete it here, or run the move again with --workspace once it is removed completely")
	}
	if r.Remove {
		if err := r.intact(ctx, here); err != nil {
			return err
		}
	}
	w.Result = Already
	return r.leave(ctx, mv.ID, mv.Version, w)
}

// intact returns an error if the workspace here has lost what was moved, so that the source
// must keep its copy. Its archive was read back before it was recorded.
func (r *run) intact(ctx context.Context, here workspace.Workspace) error {
	if here.Phase == workspace.PhaseError {
		return fmt.Errorf("moved before, and in an error state here (%s): not removed from the source", here.ErrorReason)
	}
	if here.Home.State == workspace.HomeLive && here.Conditions.Is(workspace.VolumeReady) {
		return nil // restored since; until then the archive is the only complete copy
	}
	state, err := r.Bucket.State(ctx, here)
	if err != nil {
		return fmt.Errorf("look for its archive here: %w", err)
	}
	if state != lifecycle.ArchivePresent {
		return errors.New("moved before, and its archive here is missing or damaged since: not removed from the source")
	}
	return nil
}

// leave removes a moved workspace from the source if requested, and reports what the source
// has. If the workspace is no longer what was moved, it stays, and that is an error.
func (r *run) leave(ctx context.Context, id workspace.ID, version string, w *Workspace) error {
	if r.Remove && !r.DryRun {
		_, err := limited(ctx, r, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, r.Source.DeleteMoved(ctx, string(id), version)
		})
		switch client.CodeOf(err) {
		case "not_found": // its owner, or an interrupted run
		case "operation_in_progress":
			return errChanged
		default:
			if err != nil {
				return fmt.Errorf("moved, and not removed from the source yet; run the move again: %w", fromSource(err))
			}
		}
		w.Source = Removed
		r.step(id, "removed")
		return nil
	}
	there, err := r.there(ctx, string(id))
	switch {
	case client.CodeOf(err) == "not_found":
		w.Source = Removed
	case err != nil:
		return fromSource(err)
	case !hasVersion(there, version):
		return errChanged
	default:
		w.Source = StillArchived
	}
	return nil
}

var errChanged = errors.New("moved, and changed at the source since: both installations have it, and nothing was removed. Decide which one counts: " +
	"delete the one at the source, or delete the one here and run the move again with --workspace once it is removed completely")

func hasVersion(m api.MoveWorkspace, version string) bool {
	return m.Version != nil && *m.Version == version
}

// bring copies the archive, reads it back and records the workspace.
func (r *run) bring(ctx context.Context, record api.MoveRecord, who *owner) (*Home, error) {
	mv, err := r.attempt(ctx, postgres.Move{Source: r.source, ID: workspace.ID(record.ID), Version: record.Version})
	if err != nil {
		return nil, err
	}
	home, err := r.copy(ctx, mv, record, who)
	if err == nil {
		err = r.record(ctx, mv, record, who, home)
	}
	if err != nil {
		// Another attempt removes the copy, unless the workspace was recorded after all. If
		// that fails, the next run does so.
		_, _ = r.attempt(ctx, mv)
		return nil, err
	}
	r.step(mv.ID, "finished")
	return &Home{Entries: home.Entries, Skipped: home.Skipped, Size: home.Size, SHA256: home.Digest, Key: home.Key}, nil
}

// attempt begins an attempt to copy an archive. The copies of earlier attempts are removed.
func (r *run) attempt(ctx context.Context, mv postgres.Move) (postgres.Move, error) {
	made, err := uuid.NewV7()
	if err != nil {
		return mv, err
	}
	mv.ArchiveOpID = made.String()
	return mv, r.Bucket.Attempt(ctx, mv.ID, mv.ArchiveOpID, claims{r.DB, mv}, func(step string) error {
		r.step(mv.ID, step)
		return ctx.Err()
	})
}

// sweep removes the copies of interrupted moves. Their workspaces may never be moved again,
// and garbage collection does not remove them.
func (r *run) sweep(ctx context.Context) error {
	if r.DryRun || ctx.Err() != nil {
		return nil
	}
	moves, err := r.DB.UnfinishedMoves(ctx)
	for _, mv := range moves {
		mv, e := r.attempt(ctx, mv)
		if e == nil {
			e = r.DB.DropMove(ctx, mv)
		}
		if e != nil && workspace.CodeOf(e) != workspace.CodeGone { // the workspace came another way since
			err = errors.Join(err, e)
		}
	}
	return err
}

// copy copies the archive of the record under the claim of mv, and reads it back.
func (r *run) copy(ctx context.Context, mv postgres.Move, record api.MoveRecord, who *owner) (workspace.Archive, error) {
	a, key := record.Archive, r.Bucket.Key(mv.ID, mv.ArchiveOpID)
	// The time of the arrival: garbage collection compares it with times of this installation.
	now := time.Now().UTC().Truncate(time.Second)
	meta := &archive.Meta{
		Format: a.Format, CodehubVersion: a.CodehubVersion, WorkspaceID: record.ID, WorkspaceName: record.Name, Owner: who.old.Username,
		ArchiveOpID: mv.ArchiveOpID, CreatedAt: now, Entries: a.Entries, Bytes: a.Bytes, Skipped: a.Skipped, Size: a.Size, SHA256: a.Digest,
	}
	in := r.fetch(ctx, record, func() { r.step(mv.ID, "fetching") })
	defer in.Close()
	// A source that sends more than it recorded is noticed at the first byte too many.
	if err := r.Bucket.Receive(ctx, key, meta, io.LimitReader(in, a.Size+1)); err != nil {
		if in.err != nil {
			err = in.err
		}
		return workspace.Archive{}, fmt.Errorf("copy the archive: %w", err)
	}
	r.step(mv.ID, "stored")
	stats := archive.Stats{Entries: a.Entries, Bytes: a.Bytes, Skipped: a.Skipped, Size: a.Size, SHA256: a.Digest}
	if _, err := r.Bucket.ReadBack(ctx, key, stats, nil); err != nil {
		return workspace.Archive{}, fmt.Errorf("read the copy back: %w", err)
	}
	r.step(mv.ID, "verified")
	return workspace.Archive{
		Key: key, WorkspaceID: mv.ID, OpID: mv.ArchiveOpID, Digest: a.Digest, Size: a.Size, Entries: a.Entries, Skipped: a.Skipped,
	}, nil
}

// record adds the workspace here, unless it has changed at the source meanwhile.
func (r *run) record(ctx context.Context, mv postgres.Move, record api.MoveRecord, who *owner, home workspace.Archive) error {
	there, err := r.there(ctx, record.ID)
	if err != nil {
		return fromSource(err)
	}
	if !hasVersion(there, record.Version) {
		return errors.New("started or changed at the source while it was copied; run the move again")
	}
	if err := r.identities(ctx, who); err != nil {
		return err
	}
	made, err := r.DB.FinishMove(ctx, postgres.MovedWorkspace{
		Move: mv, Owner: who.moved(r.source), Home: home,
		NewWorkspace: postgres.NewWorkspace{
			Name: record.Name, Description: record.Description, Memo: record.Memo, ImageRef: record.ImageRef, Size: workspace.SizeNamed(record.Size), StorageBackend: r.Storage,
			Desired: workspace.DesiredArchived, StandbyTTL: record.StandbyTTLSeconds, ArchiveTTL: record.ArchiveTTLSeconds,
			Env: record.Env, TimeZone: text(record.TimeZone),
		},
		AwakeWhileWorking: record.AwakeWhileWorking, LastAccessAt: record.LastAccessAt, LastAccess: text(record.LastAccessKind), CreatedAt: record.CreatedAt,
	})
	if err != nil {
		return err
	}
	who.here, who.recorded = made.OwnerID, true
	return nil
}

func text(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}

// claims implements bucket.Claims.
type claims struct {
	db *postgres.DB
	m  postgres.Move
}

func (c claims) Claim(ctx context.Context, opID string) (abandoned []string, err error) {
	c.m.ArchiveOpID = opID
	return c.db.ClaimMove(ctx, c.m)
}

func (c claims) Forget(ctx context.Context, abandoned []string) error {
	return c.db.ForgetMoves(ctx, c.m, abandoned)
}
