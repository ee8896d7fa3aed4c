package move

import (
	"context"
	"errors"
	"fmt"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
	"codehub/internal/workspace/environ"
	"codehub/internal/workspace/imageref"
)

// admit returns why a workspace cannot be moved here, before anything is changed.
func (r *run) admit(ctx context.Context, m api.MoveWorkspace, who *owner) error {
	if err := movable(m, who, r.Images); err != nil {
		return err
	}
	c, err := r.DB.MoveConflicts(ctx, workspace.ID(m.ID), who.here, m.Name)
	if err != nil {
		return err
	}
	if r.DryRun {
		// Those that this run would have moved before.
		c.Workspaces += who.planned
		c.NameTaken = c.NameTaken || who.names[m.Name]
	}
	if err := conflict(c, m, who.old.Username); err != nil {
		return err
	}
	who.planned++
	who.names[m.Name] = true
	return nil
}

// movable returns why a workspace cannot be moved, as far as the source's answer and the
// allowed images decide it.
func movable(m api.MoveWorkspace, who *owner, images imageref.Allowed) error {
	switch {
	case !workspace.ValidID(m.ID):
		return errors.New("the id is not valid")
	case who == nil:
		return errors.New("its owner is missing from the users that the source listed; run the move again")
	case who.result == Left:
		return fmt.Errorf("its owner was not moved: %s", who.reason)
	case m.Phase == string(workspace.PhaseError):
		return fmt.Errorf("in an error state at the source (%s): recover it there first", text(m.ErrorReason))
	case !imageref.Valid(m.ImageRef):
		return fmt.Errorf("the image reference %.100q is not valid", m.ImageRef)
	case !images.Allows(m.ImageRef):
		return fmt.Errorf("the image %s is not allowed here: allow it with CODEHUB_ALLOWED_IMAGES, or change it at the source", m.ImageRef)
	}
	return nil
}

// conflict returns why this installation cannot take a workspace of this owner.
func conflict(c postgres.MoveConflicts, m api.MoveWorkspace, owner string) error {
	switch {
	case c.IsDeleted:
		return errors.New("this installation has the workspace, which is deleted. Wait until it is removed completely (CODEHUB_DELETE_GRACE and CODEHUB_GC_DELAY), and run the move again")
	case c.Exists:
		return errors.New("this installation already has the workspace, and not from this source: delete one of the two")
	case c.NameTaken:
		return fmt.Errorf("%s already has a workspace named %q here: rename one of them", owner, m.Name)
	case c.Max > 0 && c.Workspaces >= c.Max:
		return fmt.Errorf("%s has %d workspaces here, and at most %d are allowed (CODEHUB_MAX_WORKSPACES_PER_USER)", owner, c.Workspaces, c.Max)
	case c.Max > 0 && c.Workspaces+c.Deleted >= 2*c.Max:
		return fmt.Errorf("%s has %d workspaces and %d deleted ones that are not removed yet here, and at most %d are allowed in all: "+
			"run the move again once they are removed, or raise CODEHUB_MAX_WORKSPACES_PER_USER", owner, c.Workspaces, c.Deleted, 2*c.Max)
	}
	return nil
}

// checkRecord returns why what the source sent cannot be stored. The source applies the same
// rules, unless it is of another version.
func checkRecord(r api.MoveRecord, m api.MoveWorkspace) error {
	if r.ID != m.ID || r.OwnerID != m.OwnerID || r.Version == "" {
		return errors.New("the source sent the record of another workspace; run the move again")
	}
	if r.ImageRef != m.ImageRef || r.Name != m.Name {
		return errors.New("changed at the source while it was archived; run the move again")
	}
	if err := environ.Check(r.Env); err != nil {
		return fmt.Errorf("the environment variables are not valid here: %w", err)
	}
	return nil
}
