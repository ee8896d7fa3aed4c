package move

import (
	"context"
	"errors"
	"fmt"
	"io"

	"codehub/api"
	"codehub/client"
	"codehub/internal/archive"
	"codehub/internal/arrivals"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
	"codehub/internal/workspace/environ"
	"codehub/internal/workspace/lifecycle"
)

// home is a workspace of the source. It keeps its id here.
type home struct {
	*source
	there api.MoveWorkspace
	line  *arrivals.Workspace
	here  *postgres.ArrivedWorkspace
}

// Again implements arrivals.Candidate.
func (h *home) Again(ctx context.Context, a postgres.Arrival, here workspace.Workspace, line *arrivals.Workspace) error {
	if h.line = line; h.Remove {
		if err := h.intact(ctx, here); err != nil {
			return err
		}
	}
	return h.leave(ctx, a.Version)
}

// intact returns an error if the workspace here has lost what was imported, so that the source
// must keep its copy. Its archive was read back before it was recorded.
func (h *home) intact(ctx context.Context, here workspace.Workspace) error {
	if here.Phase == workspace.PhaseError {
		return fmt.Errorf("imported before, and in an error state here (%s): not removed from the source", here.ErrorReason)
	}
	if here.Home.State == workspace.HomeLive && here.Conditions.Is(workspace.VolumeReady) {
		return nil // restored since; until then the archive is the only complete copy
	}
	state, err := h.run.Bucket.State(ctx, here)
	if err != nil {
		return fmt.Errorf("look for its archive here: %w", err)
	}
	if state != lifecycle.ArchivePresent {
		return errors.New("imported before, and its archive here is missing or damaged since: not removed from the source")
	}
	return nil
}

// Admit implements arrivals.Candidate.
func (h *home) Admit(_ context.Context, line *arrivals.Workspace) (*postgres.ArrivedWorkspace, error) {
	switch h.line = line; {
	case !workspace.ValidID(h.there.ID):
		return nil, errors.New("the id is not valid")
	case h.there.Phase == string(workspace.PhaseError):
		return nil, fmt.Errorf("in an error state at the source (%s): recover it there first", text(h.there.ErrorReason))
	case h.run.DryRun && h.there.Version == nil:
		line.Notes = append(line.Notes, "would be archived at the source first")
	}
	h.here = &postgres.ArrivedWorkspace{Arrival: postgres.Arrival{ID: workspace.ID(h.there.ID)}}
	h.here.Name, h.here.ImageRef, h.here.Desired = h.there.Name, h.there.ImageRef, workspace.DesiredArchived
	return h.here, nil
}

// Store implements arrivals.Candidate. The source archives the workspace first.
func (h *home) Store(ctx context.Context, key string, meta *archive.Meta) (bool, error) {
	r, err := h.archived(ctx)
	if err != nil {
		return false, err
	}
	if err := h.check(r); err != nil {
		return false, err
	}
	n := h.here
	n.Version, n.Description, n.Memo, n.Size = r.Version, r.Description, r.Memo, workspace.SizeNamed(r.Size)
	n.StandbyTTL, n.ArchiveTTL, n.Env, n.TimeZone = r.StandbyTTLSeconds, r.ArchiveTTLSeconds, r.Env, text(r.TimeZone)
	n.AwakeWhileWorking, n.LastAccessAt, n.LastAccess, n.CreatedAt = r.AwakeWhileWorking, r.LastAccessAt, text(r.LastAccessKind), r.CreatedAt
	a := r.Archive
	meta.Format, meta.CodehubVersion = a.Format, a.CodehubVersion
	meta.Entries, meta.Bytes, meta.Skipped, meta.Size, meta.SHA256 = a.Entries, a.Bytes, a.Skipped, a.Size, a.Digest
	in := h.fetch(ctx, r)
	defer in.Close()
	// A source that sends more than it recorded is noticed at the first byte too many.
	if err := h.run.Bucket.Receive(ctx, key, meta, io.LimitReader(in, a.Size+1)); err != nil {
		if in.err != nil {
			err = in.err
		}
		return false, fmt.Errorf("copy the archive: %w", err)
	}
	return true, nil
}

// check returns why what the source sent cannot be stored. The source applies the same
// rules, unless it is of another version.
func (h *home) check(r api.MoveRecord) error {
	if r.ID != h.there.ID || r.OwnerID != h.there.OwnerID || r.Version == "" {
		return errors.New("the source sent the record of another workspace; run the import again")
	}
	if r.ImageRef != h.there.ImageRef || r.Name != h.there.Name {
		return errors.New("changed at the source while it was archived; run the import again")
	}
	if err := environ.Check(r.Env); err != nil {
		return fmt.Errorf("the environment variables are not valid here: %w", err)
	}
	return nil
}

// Unchanged implements arrivals.Candidate.
func (h *home) Unchanged(ctx context.Context) error {
	there, err := h.now(ctx)
	if err != nil {
		return fromSource(err)
	}
	if !hasVersion(there, h.here.Version) {
		return errors.New("started or changed at the source while it was copied; run the import again")
	}
	return nil
}

// Leave implements arrivals.Candidate.
func (h *home) Leave(ctx context.Context) error { return h.leave(ctx, h.here.Version) }

// leave removes an imported workspace from the source if requested, and reports what the source
// has. If the workspace is no longer what was imported, it stays, and that is an error.
func (h *home) leave(ctx context.Context, version string) error {
	if h.Remove && !h.run.DryRun {
		_, err := limited(ctx, h.source, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, h.Client.DeleteMoved(ctx, h.there.ID, version)
		})
		switch client.CodeOf(err) {
		case "not_found": // its owner, or an interrupted run
		case "operation_in_progress":
			return errChanged
		default:
			if err != nil {
				return fmt.Errorf("imported, and not removed from the source yet; run the import again: %w", fromSource(err))
			}
		}
		h.line.Source = arrivals.Removed
		return h.run.Pass("removed")
	}
	there, err := h.now(ctx)
	switch {
	case client.CodeOf(err) == "not_found":
		h.line.Source = arrivals.Removed
	case err != nil:
		return fromSource(err)
	case !hasVersion(there, version):
		return errChanged
	default:
		h.line.Source = arrivals.StillArchived
	}
	return nil
}

var errChanged = errors.New("imported, and changed at the source since: both installations have it, and nothing was removed. Decide which one counts: " +
	"delete the one at the source, or delete the one here and run the import again with --workspace once it is removed completely")

func hasVersion(m api.MoveWorkspace, version string) bool {
	return m.Version != nil && *m.Version == version
}

func text(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}
