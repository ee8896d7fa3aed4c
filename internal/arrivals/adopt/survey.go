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
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
)

// stored is a complete archive with its .meta.
type stored struct {
	workspace.Archive
	meta *archive.Meta
}

// home is a workspace with its archives in the bucket.
type home struct {
	id       workspace.ID
	archives []stored // newest first
}

func (h home) newest() stored { return h.archives[0] }

func (h home) list() []workspace.Archive {
	out := make([]workspace.Archive, len(h.archives))
	for i, a := range h.archives {
		out[i] = a.Archive
	}
	return out
}

// Found is a workspace with its complete archives in the bucket.
type Found struct {
	ID       workspace.ID
	Archives []FoundArchive // newest first
}

// FoundArchive is a complete archive with the workspace's data from its .meta.
type FoundArchive struct {
	workspace.Archive
	Owner, WorkspaceName string
}

// Survey lists the complete archives of the installation in its bucket.
func Survey(ctx context.Context, b *bucket.Bucket) ([]Found, error) {
	homes, _, err := survey(ctx, b, b.Installation)
	if err != nil {
		return nil, err
	}
	out := make([]Found, len(homes))
	for i, h := range homes {
		out[i].ID = h.id
		for _, a := range h.archives {
			out[i].Archives = append(out[i].Archives, FoundArchive{a.Archive, a.meta.Owner, a.meta.WorkspaceName})
		}
	}
	return out, nil
}

// survey lists the archives of an installation in the bucket.
func survey(ctx context.Context, b *bucket.Bucket, installation string) (homes []home, unusable []Unusable, err error) {
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
	byID := map[workspace.ID][]stored{}
	for _, key := range slices.Sorted(maps.Keys(sizes)) {
		a, why, err := read(ctx, b, key, sizes[key], metas[key])
		if err != nil {
			return nil, nil, fmt.Errorf("read %s: %w", archive.MetaKey(key), err)
		}
		if why != "" {
			unusable = append(unusable, Unusable{Key: key, Why: why})
			continue
		}
		byID[a.WorkspaceID] = append(byID[a.WorkspaceID], a)
	}
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		h := home{id: id, archives: byID[id]}
		// Within a second the ids decide, which contain the time.
		slices.SortStableFunc(h.archives, func(a, b stored) int {
			return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(b.OpID, a.OpID))
		})
		homes = append(homes, h)
	}
	return homes, unusable, nil
}

// read reads the .meta of an archive; why is why it cannot be used.
func read(ctx context.Context, b *bucket.Bucket, key string, size int64, hasMeta bool) (a stored, why string, err error) {
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
	case meta.Size != size:
		return a, fmt.Sprintf("%d bytes, but .meta says %d", size, meta.Size), nil
	}
	return stored{meta: meta, Archive: workspace.Archive{
		Key: key, WorkspaceID: workspace.ID(k.Workspace), OpID: k.OpID,
		Digest: meta.SHA256, Size: meta.Size, Entries: meta.Entries, Skipped: meta.Skipped, CreatedAt: meta.CreatedAt, Found: true,
	}}, "", nil
}
