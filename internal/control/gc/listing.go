package gc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"codehub/internal/archive"
	"codehub/internal/postgres"
	"codehub/internal/storage/bucket"
	"codehub/internal/storage/encryption"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
)

// listed is an archive in the bucket's listing.
type listed struct {
	opID       string
	home, meta bool  // home.tar.zst, .meta
	size       int64 // of both objects
	homeSize   int64 // of home.tar.zst
	modified   time.Time
}

// complete reports whether both objects exist.
func (l listed) complete() bool { return l.home && l.meta }

// listing is the content of an installation's part of the bucket.
type listing struct {
	at       time.Time // the database's time before the listing
	archives map[workspace.ID]map[string]listed
	keys     map[workspace.ID]bool // workspaces that have a key
	others   []store.Object        // belong to no archive
}

func newListing(at time.Time, objects []bucket.Object) listing {
	l := listing{at: at, archives: map[workspace.ID]map[string]listed{}, keys: map[workspace.ID]bool{}}
	for _, o := range objects {
		k := o.Parsed
		switch k.Kind {
		case bucket.Manifest, bucket.Pack: // package homebackup removes them
			continue
		case bucket.WorkspaceKey:
			l.keys[workspace.ID(k.Workspace)] = true
			continue
		}
		if k.Kind != bucket.Home && k.Kind != bucket.Meta {
			l.others = append(l.others, o.Object)
			continue
		}
		id := workspace.ID(k.Workspace)
		if l.archives[id] == nil {
			l.archives[id] = map[string]listed{}
		}
		a := l.archives[id][k.Archive()]
		a.opID = k.OpID
		a.home = a.home || k.Kind == bucket.Home
		a.meta = a.meta || k.Kind == bucket.Meta
		a.size += o.Size
		if k.Kind == bucket.Home {
			a.homeSize = o.Size
		}
		if o.Modified.After(a.modified) {
			a.modified = o.Modified
		}
		l.archives[id][k.Archive()] = a
	}
	return l
}

// described is a parsed .meta, or why it cannot be used.
type described struct {
	meta *archive.Meta // nil: unreadable, or of another archive
	why  string
}

// describe reads the .meta of each complete archive of a known workspace whose
// figures are not in the database.
func describe(ctx context.Context, b *bucket.Bucket, l listing, h postgres.Holdings) (map[string]described, error) {
	out := map[string]described{}
	for id, archives := range l.archives {
		if _, known := h.Workspaces[id]; !known {
			continue
		}
		records := byKey(h.Archives[id])
		for key, a := range archives {
			if r, recorded := records[key]; !a.complete() || recorded && (r.VerifiedAt != nil || r.CompleteAt != nil || r.DeletingAt != nil) {
				continue
			}
			meta, err := b.Meta(ctx, key)
			switch {
			case err == nil && !encryption.Fits(a.homeSize, meta.Size):
				out[key] = described{why: fmt.Sprintf(".meta says %d bytes, and the object has %d", meta.Size, a.homeSize)}
			case err == nil:
				out[key] = described{meta: meta}
			case errors.Is(err, archive.ErrCorrupted), errors.Is(err, store.ErrNotFound):
				out[key] = described{why: err.Error()}
			default:
				return nil, err
			}
		}
	}
	return out, nil
}

func byKey(records []postgres.Record) map[string]record {
	out := make(map[string]record, len(records))
	for _, r := range records {
		out[r.Key] = record{r}
	}
	return out
}
