package importm1

import (
	"context"
	"errors"
	"fmt"

	"codehub/internal/archive"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
	"codehub/internal/workspace/imageref"
)

// statuses are the statuses of the first version.
var statuses = map[string]bool{
	"CREATED": true, "PROVISIONING": true, "RUNNING": true, "STOPPING": true,
	"STOPPED": true, "DELETING": true, "ERROR": true, "DELETED": true,
}

// workspace imports one workspace. Its error is why it was not imported.
func (r *run) workspace(ctx context.Context, m SourceWorkspace, who owner, begun map[string]postgres.Import, name string, w *Workspace) error {
	i, ok := begun[m.ID]
	if !ok {
		i = postgres.Import{OldID: m.ID, ID: workspace.ID(newID(r.Bucket.Installation, "workspace", m.ID, m.CreatedAt))}
	}
	switch {
	case i.Done:
		return r.already(ctx, m, i, w)
	case gone(m):
		return r.deleted(ctx, m, w)
	}
	if err := importable(m, who); err != nil {
		return err
	}
	old, err := r.engine.find(ctx, m, r.Homes)
	if err != nil {
		return err
	}
	home, err := r.home(m)
	if err != nil {
		return err
	}
	next := r.made(m, who, name, i, w)
	w.ID, w.Name, w.DesiredState = string(i.ID), name, string(next.Desired)
	if r.DryRun {
		w.Result = Imported
		return nil
	}
	if err := r.bring(ctx, m, who, old, home, &next, w); err != nil {
		w.ID, w.Name, w.DesiredState, w.Home = "", "", "", nil
		return err
	}
	w.Result = Imported
	if old == nil {
		return nil
	}
	if err := r.engine.remove(ctx, old); err != nil {
		w.Notes = append(w.Notes, err.Error()+"; the next import tries again")
		return nil
	}
	w.Container = "removed"
	return r.step("removed")
}

// importable returns why a workspace cannot be imported.
func importable(m SourceWorkspace, who owner) error {
	switch {
	case who.id == "":
		return errors.New("its owner was not imported")
	case len(m.ID) > maxOldID || m.ID == "":
		return errors.New("the id is empty or too long")
	case !statuses[m.Status]:
		return fmt.Errorf("unknown status %.50q", m.Status)
	case m.InstanceBackend != "local-docker":
		return fmt.Errorf("unknown instance_backend %.50q", m.InstanceBackend)
	case m.StorageBackend != "local-dir":
		return fmt.Errorf("unknown storage_backend %.50q", m.StorageBackend)
	}
	return nil
}

// home finds the home. Only a workspace that was never started may have none:
// an empty home in place of a missing one would be an unnoticed loss.
func (r *run) home(m SourceWorkspace) (string, error) {
	home, err := r.homes.find(m)
	if err == nil && home == "" && m.Status != "CREATED" {
		err = fmt.Errorf("its home is not at %s/%s: put it there, or create an empty folder there if the home is not needed", r.Homes, m.HomeStoreKey)
	}
	return home, err
}

// made returns the new workspace.
func (r *run) made(m SourceWorkspace, who owner, name string, i postgres.Import, w *Workspace) postgres.ImportedWorkspace {
	n := postgres.ImportedWorkspace{
		Import: i, OwnerID: who.id, CreatedAt: m.CreatedAt,
		NewWorkspace: postgres.NewWorkspace{
			Name: name, Description: m.Description, Memo: m.Memo, ImageRef: m.ImageRef,
			StorageBackend: r.Storage,
			Desired:        workspace.DesiredStandby,
		},
		Named: func(n int) string { return suffixed(name, n+1) },
	}
	if runs(m) {
		n.Desired = workspace.DesiredRunning
	}
	note := func(format string, args ...any) { w.Notes = append(w.Notes, fmt.Sprintf(format, args...)) }
	switch {
	case r.Image != "":
		n.ImageRef = r.Image
	case !imageref.Valid(m.ImageRef):
		n.ImageRef = r.DefaultImage
		note("invalid image reference %.100q; using %s", m.ImageRef, r.DefaultImage)
	}
	if !r.Images.Allows(n.ImageRef) {
		note("the image %.100q is not allowed; using %s", n.ImageRef, r.DefaultImage)
		n.ImageRef = r.DefaultImage
	}
	if name != m.Name {
		note("renamed: the name was taken or is not valid")
	}
	if _, ok := ulidTime(m.ID); !ok {
		note("the id is not a ULID")
	}
	if !addressable(m.ID) {
		note("the old address is not redirected")
	}
	switch m.Status {
	case "DELETING":
		note("its deletion was not finished; delete it again")
	case "ERROR":
		note("was in ERROR")
	}
	return n
}

// bring stops the old container, copies the home and records the workspace.
func (r *run) bring(ctx context.Context, m SourceWorkspace, who owner, old *oldContainer, home string, n *postgres.ImportedWorkspace, w *Workspace) error {
	if old != nil && old.running {
		if err := r.engine.stop(ctx, old); err != nil {
			return err
		}
		w.Container = "stopped"
		if err := r.step("stopped"); err != nil {
			return err
		}
	}
	still, err := r.engine.find(ctx, m, r.Homes)
	if err != nil {
		return err
	}
	if still != nil && still.running {
		return errors.New("its old container is running again: stop the first version, then run the import again")
	}
	if home == "" {
		n.ArchiveOpID = ""
		if err := r.claim(ctx, n.Import); err != nil {
			return err
		}
	} else if n.Home, err = r.copy(ctx, &n.Import, home, archive.Meta{WorkspaceName: n.Name, Owner: who.username}, w); err != nil {
		return err
	}
	if after, err := r.engine.find(ctx, m, r.Homes); err != nil {
		return err
	} else if !same(still, after) {
		return errors.New("its old container started while the home was copied: stop the first version, then run the import again")
	}
	made, err := r.DB.FinishImport(ctx, *n)
	if err != nil {
		return err
	}
	if made.DesiredState != n.Desired {
		w.Notes = append(w.Notes, "stopped: it was running, and its owner's limit of bytes or the running limit is reached")
	}
	if made.Name != n.Name {
		w.Notes = append(w.Notes, "renamed: its owner already has a workspace with that name")
	}
	w.Name, w.DesiredState = made.Name, string(made.DesiredState)
	return r.step("finished")
}

// same reports whether a container was neither started nor created in the
// meantime.
func same(before, after *oldContainer) bool {
	if after == nil {
		return true
	}
	return before != nil && before.id == after.id && before.started == after.started && !after.running
}

// already checks a workspace that an earlier run imported. It changes only the
// first version's container.
func (r *run) already(ctx context.Context, m SourceWorkspace, i postgres.Import, w *Workspace) error {
	w.ID = string(i.ID)
	old, err := r.engine.find(ctx, m, r.Homes)
	switch {
	case err != nil:
		return err
	case old == nil:
	case old.running:
		return errors.New("already imported, and its old container is running again: " +
			"newer changes are only in the old home. Stop the first version and remove the container")
	case !r.DryRun:
		if err := r.engine.remove(ctx, old); err != nil {
			return err
		}
		w.Container = "removed"
	}
	w.Result = Already
	return nil
}

// deleted does not import a deleted workspace, whose home the first version
// keeps. It removes a leftover container, as the deletion should have.
func (r *run) deleted(ctx context.Context, m SourceWorkspace, w *Workspace) error {
	w.Result = Deleted
	if home, err := r.homes.find(m); err == nil && home != "" {
		w.Notes = append(w.Notes, "the home is still at "+home)
	}
	old, err := r.engine.find(ctx, m, r.Homes)
	if err != nil || old == nil || r.DryRun {
		return err
	}
	if old.running {
		if err := r.engine.stop(ctx, old); err != nil {
			return err
		}
	}
	if err := r.engine.remove(ctx, old); err != nil {
		return err
	}
	w.Container = "removed"
	return nil
}
