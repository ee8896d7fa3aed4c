package adopt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"codehub/internal/archive"
	"codehub/internal/storage/bucket"
	"codehub/internal/storage/encryption"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
)

// Archive is a complete archive with the workspace's data from its .meta.
type Archive struct {
	workspace.Archive
	Owner, Name string
	meta        *archive.Meta
}

// Home is a workspace with its complete archives in the bucket.
type Home struct {
	ID       workspace.ID
	Archives []Archive // newest first
}

// skipped is an archive that is incomplete or does not match its .meta.
type skipped struct{ key, why string }

// Survey lists the complete archives of the installation in its bucket.
func Survey(ctx context.Context, b *bucket.Bucket) ([]Home, error) {
	homes, _, err := survey(ctx, b, b.Installation)
	return homes, err
}

// survey lists the archives of an installation in the bucket.
func survey(ctx context.Context, b *bucket.Bucket, installation string) (homes []Home, unusable []skipped, err error) {
	objects, err := b.ListOf(ctx, installation)
	if err != nil {
		return nil, nil, fmt.Errorf("list the bucket: %w", err)
	}
	sizes, metas := map[string]int64{}, map[string]bool{}
	for _, o := range objects {
		switch o.Parsed.Kind {
		case bucket.Home:
			sizes[o.Key] = o.Size
		case bucket.Meta:
			metas[o.Parsed.Archive()] = true
			if _, there := sizes[o.Parsed.Archive()]; !there {
				sizes[o.Parsed.Archive()] = -1
			}
		}
	}
	byID := map[workspace.ID][]Archive{}
	for _, key := range slices.Sorted(maps.Keys(sizes)) {
		a, why, err := read(ctx, b, key, sizes[key], metas[key])
		if err != nil {
			return nil, nil, fmt.Errorf("read %s: %w", archive.MetaKey(key), err)
		}
		if why != "" {
			unusable = append(unusable, skipped{key, why})
			continue
		}
		byID[a.WorkspaceID] = append(byID[a.WorkspaceID], a)
	}
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		h := Home{ID: id, Archives: byID[id]}
		// Within a second the ids decide, which contain the time.
		slices.SortStableFunc(h.Archives, func(a, b Archive) int {
			return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(b.OpID, a.OpID))
		})
		homes = append(homes, h)
	}
	return homes, unusable, nil
}

// read reads the .meta of an archive; why is why it cannot be used.
func read(ctx context.Context, b *bucket.Bucket, key string, size int64, hasMeta bool) (a Archive, why string, err error) {
	switch {
	case !hasMeta:
		return a, "unfinished upload without .meta", nil
	case size < 0:
		return a, ".meta without an archive", nil
	}
	r, err := b.Store.Get(ctx, archive.MetaKey(key), 0)
	if errors.Is(err, store.ErrNotFound) {
		return a, ".meta was removed", nil
	}
	if err != nil {
		return a, "", err
	}
	defer r.Close()
	meta, err := archive.ReadMeta(r)
	if errors.Is(err, archive.ErrCorrupted) {
		return a, err.Error(), nil
	}
	if err != nil {
		return a, "", err
	}
	k := bucket.ParseKey(key)
	switch {
	case meta.WorkspaceID != k.Workspace || meta.ArchiveOpID != k.OpID:
		return a, ".meta describes another archive", nil
	case !encryption.Fits(size, meta.Size):
		return a, fmt.Sprintf("%d bytes, but .meta says %d", size, meta.Size), nil
	}
	return Archive{meta: meta, Owner: meta.Owner, Name: meta.WorkspaceName, Archive: workspace.Archive{
		Key: key, WorkspaceID: workspace.ID(k.Workspace), OpID: k.OpID,
		Digest: meta.SHA256, Size: meta.Size, Entries: meta.Entries, Skipped: meta.Skipped, CreatedAt: meta.CreatedAt, Found: true,
	}}, "", nil
}
