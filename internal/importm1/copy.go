package importm1

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"

	"codehub/internal/archive"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// claim starts an attempt to copy a home, and removes the objects of earlier
// attempts that were not recorded, which garbage collection would never remove.
func (r *run) claim(ctx context.Context, i postgres.Import) error {
	abandoned, err := r.DB.ClaimImport(ctx, i)
	if err != nil {
		return err
	}
	if err := r.step("claimed"); err != nil {
		return err
	}
	if len(abandoned) == 0 {
		return nil
	}
	for _, try := range abandoned {
		if err := r.sweep(ctx, r.Bucket.Key(i.ID, try)); err != nil {
			return fmt.Errorf("remove an unfinished copy: %w", err)
		}
	}
	if err := r.step("swept"); err != nil {
		return err
	}
	return r.DB.ForgetAbandoned(ctx, i.OldID, abandoned)
}

func (r *run) sweep(ctx context.Context, key string) error {
	if err := r.Bucket.Delete(ctx, key); err != nil {
		return err
	}
	_, err := r.Bucket.Store.AbortIncomplete(ctx, key, 0, nil)
	return err
}

// copy packs a home into the bucket under its own claim and reads it back, in
// the same order as ARCHIVING up to the record.
func (r *run) copy(ctx context.Context, i *postgres.Import, home string, meta archive.Meta, w *Workspace) (*workspace.Archive, error) {
	i.ArchiveOpID = uuid.NewString()
	if err := r.claim(ctx, *i); err != nil {
		return nil, err
	}
	key := r.Bucket.Key(i.ID, i.ArchiveOpID)
	stats, err := r.pack(ctx, home, key)
	if err != nil {
		return nil, fmt.Errorf("pack its home: %w", err)
	}
	if err := r.step("packed"); err != nil {
		return nil, err
	}
	meta.Format, meta.CodehubVersion, meta.CreatedAt = archive.Format, r.Bucket.Version, time.Now().UTC().Truncate(time.Second)
	meta.WorkspaceID, meta.ArchiveOpID = string(i.ID), i.ArchiveOpID
	meta.Describe(stats)
	encoded, err := meta.Encode()
	if err != nil {
		return nil, fmt.Errorf("describe the copy: %w", err)
	}
	if _, err := r.Bucket.Store.Put(ctx, archive.MetaKey(key), bytes.NewReader(encoded)); err != nil {
		return nil, fmt.Errorf("describe the copy: %w", err)
	}
	if err := r.step("described"); err != nil {
		return nil, err
	}
	if _, err := r.Bucket.ReadBack(ctx, key, stats, nil); err != nil {
		return nil, fmt.Errorf("read the copy back: %w", err)
	}
	if err := r.step("verified"); err != nil {
		return nil, err
	}
	w.Home = &Home{Entries: stats.Entries, Bytes: stats.Bytes, Skipped: stats.Skipped, Size: stats.Size, SHA256: stats.SHA256, Key: key}
	return &workspace.Archive{
		Key: key, WorkspaceID: i.ID, OpID: i.ArchiveOpID,
		Digest: stats.SHA256, Size: stats.Size, Entries: stats.Entries, Skipped: stats.Skipped, CreatedAt: meta.CreatedAt,
	}, nil
}

// pack packs a home. It passes one step in the middle, for tests.
func (r *run) pack(ctx context.Context, home, key string) (archive.Stats, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	seen, reportedAt := false, time.Now()
	stats, err := archive.PackTo(ctx, home, archive.PackOptions{Progress: func(n, entries int64) {
		if !seen {
			seen = true
			if err := r.step("packing"); err != nil {
				cancel(err)
			}
		}
		if time.Since(reportedAt) > 10*time.Second {
			reportedAt = time.Now()
			r.Log.InfoContext(ctx, "copying a home", "home", home, "bytes", n, "entries", entries)
		}
	}}, func(ctx context.Context, from io.Reader) (int64, error) { return r.Bucket.Store.Put(ctx, key, from) })
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return stats, err
}
