package bucket

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"codehub/internal/storage/store"
)

// markerName is the object that names the installation of this part of the
// bucket.
const markerName = "codehub.json"

func (b *Bucket) marker() string { return b.Installation + "/" + markerName }

// Check tests the bucket by using it, and marks it as this installation's. The
// server calls it first. used means that the database has archives: then a
// bucket without the mark is the wrong one, and the error is
// store.ErrUnavailable. The error says in one line what to do.
func (b *Bucket) Check(ctx context.Context, used bool) error {
	if used {
		// This comes first, so that an empty mount point is not changed.
		_, err := b.Store.Stat(ctx, b.marker())
		if errors.Is(err, store.ErrNotFound) {
			return b.wrong()
		}
		if err != nil && b.presigner == nil {
			return fmt.Errorf("archives are in the folder %s, which cannot be read: mount its disk, or set CODEHUB_ARCHIVE_URL to where it is now: %w", b.Folder, err)
		}
	}
	if err := b.Store.Check(ctx); err != nil {
		return err
	}
	_, err := b.Store.Stat(ctx, b.marker())
	switch {
	case err == nil:
		return b.checkKeys(ctx)
	case !errors.Is(err, store.ErrNotFound):
		return err
	case used:
		return b.wrong()
	}
	content, err := json.MarshalIndent(map[string]any{
		"what":            "the archives of one installation of codehub",
		"installation":    b.Installation,
		"codehub_version": b.Version,
		"created_at":      time.Now().UTC().Truncate(time.Second),
	}, "", "  ")
	if err != nil {
		return err
	}
	if _, err = b.Store.Put(ctx, b.marker(), bytes.NewReader(append(content, '\n'))); err != nil {
		return err
	}
	return b.checkKeys(ctx)
}

func (b *Bucket) wrong() error {
	return fmt.Errorf("%w: it is not the one that this installation's archives are in: %s is not there; set CODEHUB_ARCHIVE_URL to the bucket or folder of before (is its disk mounted?), or copy all that was there, this object too", store.ErrUnavailable, b.marker())
}

// right checks that the bucket has this installation's mark. Without it, as in
// an empty mount point, nothing can be concluded from what is missing, and what
// is stored there would be lost.
func (b *Bucket) right(ctx context.Context) error {
	_, err := b.Store.Stat(ctx, b.marker())
	if errors.Is(err, store.ErrNotFound) {
		return b.wrong()
	}
	return err
}

// confirm accepts store.ErrNotFound only from the right bucket.
func (b *Bucket) confirm(ctx context.Context, err error) error {
	if err == nil || !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if wrong := b.right(ctx); wrong != nil {
		return wrong
	}
	return err
}
