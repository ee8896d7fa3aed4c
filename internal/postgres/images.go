package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
	"codehub/internal/workspace/imageref"
	"codehub/internal/workspace/lifecycle"
)

// AuditImageReplaced is recorded when a workspace starts with another image than the
// pinned one, which is gone, or without the update that was asked for.
const AuditImageReplaced = "workspace.image_replaced"

// notAllowed returns CodeImageNotAllowed, with the patterns of the allowed images in the details, for
// an *imageref.NotAllowed.
func notAllowed(err error) error {
	var refused *imageref.NotAllowed
	if !errors.As(err, &refused) {
		return err
	}
	return &workspace.Error{
		Code: workspace.CodeImageNotAllowed, Message: refused.Error(),
		Details: map[string]any{"image_ref": refused.Image, "allowed_images": refused.Patterns},
	}
}

// startable is an intent that leads to a start, which is refused if the image is not
// allowed. Nothing changes then.
func (db *DB) startable(w workspace.Workspace, out lifecycle.Intent, err error) (lifecycle.Intent, error) {
	if err != nil || !out.Changed || out.AccessOnly {
		return out, err
	}
	return out, notAllowed(db.images.CheckStart(w.ImageRef))
}

// UpdateImage makes the next start use the newest image (lifecycle.UpdateImage).
// CodeImageNotAllowed.
func (db *DB) UpdateImage(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error) {
	w, _, err := db.apply(ctx, caller, id, "update an image", needsNoSlot, plain(func(w workspace.Workspace, _ time.Time) (lifecycle.Intent, error) {
		out, err := lifecycle.UpdateImage(w)
		return db.startable(w, out, err)
	}))
	return w, err
}

// UsedImage is an image reference that workspaces have been started with.
type UsedImage struct {
	Ref    string
	Remote bool // the image of at least one of them is from a registry
}

// maxUsedImages bounds UsedImages.
const maxUsedImages = 10000

// UsedImages lists the image references of workspaces that run or are stopped.
func (c *Controller) UsedImages(ctx context.Context) (list []UsedImage, err error) {
	err = c.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `
			SELECT image_ref, bool_or(image_pin ->> 'digest' IS NOT NULL) FROM workspaces
			WHERE phase IN ('RUNNING', 'STANDBY') AND deleted_at IS NULL AND image_pin ->> 'ref' = image_ref
			GROUP BY image_ref ORDER BY image_ref LIMIT $1`, maxUsedImages)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, pgx.RowToStructByPos[UsedImage])
		return err
	})
	return list, failed("list the images in use", err)
}

// RecordImage records that a workspace was started with this image, although another one
// was asked for (AuditImageReplaced).
func (c *Controller) RecordImage(ctx context.Context, id workspace.ID, pin workspace.ImagePin) error {
	err := c.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			return audit(ctx, tx, workspace.System, AuditImageReplaced, string(id),
				map[string]any{"image": pin.Ref, "id": pin.ID, "digest": pin.Digest, "reason": pin.Note})
		})
	})
	return failed("record a workspace's image", err)
}
