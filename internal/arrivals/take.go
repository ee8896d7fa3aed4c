package arrivals

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"codehub/internal/archive"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
	"codehub/internal/workspace/imageref"
)

// workspace imports one workspace. Its error is why the workspace was left.
func (r *Import) workspace(ctx context.Context, f Found, w *Workspace) error {
	a, begun := r.begun[f.OldID]
	if a.Done {
		here, err := r.DB.Workspace(ctx, workspace.System, a.ID)
		switch {
		case err == nil && here.DeletedAt != nil:
			return errors.New("imported before, and deleted here since. Undelete it here, or run the import again with --workspace once it is removed completely")
		case err == nil:
			w.Result, w.ID = Already, string(a.ID)
			return f.Home.Again(ctx, a, here, w)
		case workspace.CodeOf(err) != workspace.CodeNotFound:
			return err
		case r.Selection.Workspace == "":
			return errors.New("imported before, and deleted here since. To import it again, run the import with --workspace")
		}
	}
	n, err := f.Home.Admit(ctx, w)
	if err != nil || n == nil {
		return err
	}
	if n.Source, n.OldID = r.source, f.OldID; begun {
		n.ID = a.ID
	}
	if n.ID == "" {
		made, err := uuid.NewV7()
		if err != nil {
			return err
		}
		n.ID = workspace.ID(made.String())
	}
	who := r.owners[f.OwnerID]
	if err := r.admit(ctx, n, who, w); err != nil {
		return err
	}
	w.ID, w.Name, w.DesiredState = string(n.ID), n.Name, string(n.Desired)
	if !r.DryRun {
		if err := r.take(ctx, f.Home, n, who, w); err != nil {
			w.ID, w.Name, w.DesiredState, w.Home = "", "", "", nil
			return err
		}
	}
	w.Result = Added
	if r.DryRun {
		return nil
	}
	return f.Home.Leave(ctx)
}

// admit returns why a workspace cannot be added here, before anything is changed, and sets what
// this installation decides: owner, image, storage, and a free name.
func (r *Import) admit(ctx context.Context, n *postgres.ArrivedWorkspace, who *owner, w *Workspace) error {
	switch {
	case who == nil:
		return errors.New("its owner is missing from the users of the source; run the import again")
	case who.result == Left:
		return fmt.Errorf("its owner was not imported: %s", who.reason)
	}
	if err := r.image(n, who.arrived.ID, w); err != nil {
		return err
	}
	n.Owner, n.StorageBackend = who.arrived, r.Storage
	if n.Force {
		name, err := r.DB.FreeName(ctx, who.arrived.ID, n.Name, who.names)
		if err != nil {
			return err
		}
		n.Name = name
	}
	c, err := r.DB.ArrivalConflicts(ctx, n.ID, who.arrived.ID, n.Name)
	if err != nil {
		return err
	}
	if r.DryRun {
		// Those that this run would have added before.
		c.Workspaces += who.workspaces
		c.NameTaken = c.NameTaken || who.names[n.Name]
		who.names[n.Name] = true
	}
	if err := conflict(c, n, who.arrived.Username); err != nil {
		return err
	}
	who.workspaces++
	if n.Name != w.OldName {
		w.Notes = append(w.Notes, fmt.Sprintf("renamed: %.100q was taken or is not valid", w.OldName))
	}
	return nil
}

// image decides the image of a workspace of this owner; empty: one who is not added yet.
func (r *Import) image(n *postgres.ArrivedWorkspace, owner string, w *Workspace) error {
	note := func(format string, args ...any) { w.Notes = append(w.Notes, fmt.Sprintf(format, args...)) }
	switch {
	case r.Image != "":
		n.ImageRef = r.Image
	case n.Force && !imageref.Valid(n.ImageRef):
		note("invalid image reference %.100q; using %s", n.ImageRef, r.DefaultImage)
		n.ImageRef = r.DefaultImage
	case !imageref.Valid(n.ImageRef):
		return fmt.Errorf("the image reference %.100q is not valid", n.ImageRef)
	}
	_, built := imageref.BuiltFor(n.ImageRef)
	switch {
	case r.Images.Allows(n.ImageRef, owner):
	case built:
		note("the image was built from a devcontainer.json for another user; using %s", r.DefaultImage)
		n.ImageRef = r.DefaultImage
	case n.Force:
		note("the image %.100q is not allowed; using %s", n.ImageRef, r.DefaultImage)
		n.ImageRef = r.DefaultImage
	default:
		return fmt.Errorf("the image %s is not allowed here: allow it with CODEHUB_ALLOWED_IMAGES, or change it at the source", n.ImageRef)
	}
	return nil
}

// conflict returns why this installation cannot take a workspace of this owner.
func conflict(c postgres.ArrivalConflicts, n *postgres.ArrivedWorkspace, owner string) error {
	switch {
	case c.IsDeleted:
		return errors.New("this installation has the workspace, which is deleted. Wait until it is removed completely (CODEHUB_DELETE_GRACE and CODEHUB_GC_DELAY), and run the import again")
	case c.Exists:
		return errors.New("this installation already has the workspace, and not from this source: delete one of the two")
	case n.Force:
		return nil
	case c.NameTaken:
		return fmt.Errorf("%s already has a workspace named %q here: rename one of them", owner, n.Name)
	case c.Max > 0 && c.Workspaces >= c.Max:
		return fmt.Errorf("%s has %d workspaces here, and at most %d are allowed (CODEHUB_MAX_WORKSPACES_PER_USER)", owner, c.Workspaces, c.Max)
	case c.Max > 0 && c.Workspaces+c.Deleted >= 2*c.Max:
		return fmt.Errorf("%s has %d workspaces and %d deleted ones that are not removed yet here, and at most %d are allowed in all: "+
			"run the import again once they are removed, or raise CODEHUB_MAX_WORKSPACES_PER_USER", owner, c.Workspaces, c.Deleted, 2*c.Max)
	}
	return nil
}

// take stores the archive, reads it back and records the workspace. What an attempt that fails
// has stored is removed by sweep.
func (r *Import) take(ctx context.Context, h Candidate, n *postgres.ArrivedWorkspace, who *owner, w *Workspace) (err error) {
	if n.Source != "" {
		if n.Arrival, err = r.attempt(ctx, n.Arrival); err != nil {
			return err
		}
	}
	key := r.Bucket.Key(n.ID, n.ArchiveOpID)
	meta := &archive.Meta{
		Format: archive.Format, CodehubVersion: r.Bucket.Version, WorkspaceID: string(n.ID), WorkspaceName: n.Name, Owner: n.Owner.Username,
		// The time of the arrival: garbage collection compares it with times of this installation.
		ArchiveOpID: n.ArchiveOpID, CreatedAt: time.Now().UTC().Truncate(time.Second),
	}
	stored, err := h.Store(ctx, key, meta)
	if err != nil {
		return err
	}
	if stored {
		if err := r.Pass("stored"); err != nil {
			return err
		}
		stats := archive.Stats{Entries: meta.Entries, Bytes: meta.Bytes, Skipped: meta.Skipped, Size: meta.Size, SHA256: meta.SHA256}
		if _, err := r.Bucket.ReadBack(ctx, key, stats, nil); err != nil {
			return fmt.Errorf("read the copy back: %w", err)
		}
		n.Archives = []workspace.Archive{{
			Key: key, WorkspaceID: n.ID, OpID: n.ArchiveOpID, Digest: meta.SHA256, Size: meta.Size, Entries: meta.Entries, Skipped: meta.Skipped,
		}}
		w.Home = &Home{Entries: meta.Entries, Bytes: meta.Bytes, Skipped: meta.Skipped, Size: meta.Size, SHA256: meta.SHA256, Key: key}
		if err := r.Pass("verified"); err != nil {
			return err
		}
	}
	if err := h.Unchanged(ctx); err != nil {
		return err
	}
	if err := who.complete(ctx); err != nil {
		return err
	}
	n.Owner = who.arrived
	made, err := r.DB.FinishArrival(ctx, *n)
	if err != nil {
		return err
	}
	r.isHere(who, made.OwnerID)
	if made.DesiredState != n.Desired {
		w.Notes = append(w.Notes, "stopped: it was running, and its owner's limit of bytes or the running limit is reached")
	}
	w.Name, w.DesiredState = made.Name, string(made.DesiredState)
	return r.Pass("finished")
}

// attempt begins an attempt to store an archive. Each has a claim in the database, which is the
// archive_op_id of its objects, so a late attempt never completes a newer one. The objects of
// earlier attempts are removed: garbage collection never would, because none of them is recorded.
func (r *Import) attempt(ctx context.Context, a postgres.Arrival) (postgres.Arrival, error) {
	made, err := uuid.NewV7()
	if err != nil {
		return a, err
	}
	a.ArchiveOpID = made.String()
	abandoned, err := r.DB.ClaimArrival(ctx, a)
	if err == nil {
		err = errors.Join(r.Pass("claimed"), ctx.Err())
	}
	if err != nil || len(abandoned) == 0 {
		return a, err
	}
	for _, op := range abandoned {
		key := r.Bucket.Key(a.ID, op)
		err := r.Bucket.Delete(ctx, key)
		if err == nil {
			_, err = r.Bucket.Store.AbortIncomplete(ctx, key, 0, nil)
		}
		if err != nil {
			return a, fmt.Errorf("remove an unfinished copy: %w", err)
		}
	}
	if err := errors.Join(r.Pass("swept"), ctx.Err()); err != nil {
		return a, err
	}
	return a, r.DB.ForgetArrivals(ctx, a, abandoned)
}

// sweep removes the archives of interrupted imports. Their workspaces may never be imported
// again, and garbage collection does not remove them.
func (r *Import) sweep(ctx context.Context) error {
	if r.DryRun || ctx.Err() != nil {
		return nil
	}
	list, err := r.DB.UnfinishedArrivals(ctx)
	for _, a := range list {
		a, e := r.attempt(ctx, a)
		if e == nil {
			e = r.DB.DropArrival(ctx, a)
		}
		if e != nil && workspace.CodeOf(e) != workspace.CodeGone { // the workspace came another way since
			err = errors.Join(err, e)
		}
	}
	return err
}
