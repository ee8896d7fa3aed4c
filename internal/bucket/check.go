package bucket

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"codehub/internal/archive/store"
)

// markerName is the object that says whose this part of the bucket is.
const markerName = "codehub.json"

func (b *Bucket) marker() string { return b.Installation + "/" + markerName }

// Check finds out whether the bucket can be worked with, by doing so, and marks
// it as this installation's; to be called before all else, when the server
// starts. used says that the database knows of archives: then a bucket that is
// not marked is not the one that they are in, and it is store.ErrUnavailable.
// The error says in one line what to do about it.
func (b *Bucket) Check(ctx context.Context, used bool) error {
	if used {
		// First, so that an empty folder where a disk should be stays as it is.
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
	if !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if used {
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
	_, err = b.Store.Put(ctx, b.marker(), bytes.NewReader(append(content, '\n')))
	return err
}

func (b *Bucket) wrong() error {
	return fmt.Errorf("%w: it is not the one that this installation's archives are in: %s is not there; set CODEHUB_ARCHIVE_URL to the bucket or folder of before (is its disk mounted?), or copy all that was there, this object too", store.ErrUnavailable, b.marker())
}

// right finds out whether the bucket is the one that this installation's
// archives are in. What is there counts for nothing elsewhere, and what is
// stored elsewhere is lost: an empty folder where a disk should be is one.
func (b *Bucket) right(ctx context.Context) error {
	_, err := b.Store.Stat(ctx, b.marker())
	if errors.Is(err, store.ErrNotFound) {
		return b.wrong()
	}
	return err
}

// confirm believes that something is absent only of the right bucket.
func (b *Bucket) confirm(ctx context.Context, err error) error {
	if err == nil || !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if wrong := b.right(ctx); wrong != nil {
		return wrong
	}
	return err
}
