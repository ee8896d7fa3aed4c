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

// claim begins an attempt to copy a home, and removes the objects of earlier
// attempts.
func (r *run) claim(ctx context.Context, i postgres.Import) error {
	return r.Bucket.Attempt(ctx, i.ID, i.ArchiveOpID, claims{r.DB, i}, r.step)
}

// claims implements bucket.Claims.
type claims struct {
	db *postgres.DB
	i  postgres.Import
}

func (c claims) Claim(ctx context.Context, opID string) (abandoned []string, err error) {
	c.i.ArchiveOpID = opID
	return c.db.ClaimImport(ctx, c.i)
}

func (c claims) Forget(ctx context.Context, abandoned []string) error {
	return c.db.ForgetAbandoned(ctx, c.i.OldID, abandoned)
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
