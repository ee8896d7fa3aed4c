package bucket

import (
	"context"
	"errors"
	"slices"
	"time"

	"codehub/internal/archive"
	"codehub/internal/storage/store"
)

// Object is an object in the bucket.
type Object struct {
	store.Object
	Parsed Key
}

// List lists all objects of this installation except its marker, keys.age and the backups of its database and of
// homes, sorted by key. On an error the list is nil.
func (b *Bucket) List(ctx context.Context) ([]Object, error) {
	list, err := b.list(ctx, b.Installation)
	if err != nil {
		return nil, err
	}
	marked := slices.IndexFunc(list, func(o Object) bool { return o.Parsed.Kind == Marker })
	if marked < 0 {
		return nil, b.wrong()
	}
	return slices.Delete(list, marked, marked+1), nil
}

// ListOf is List for another installation in the bucket, which may have no marker.
func (b *Bucket) ListOf(ctx context.Context, installation string) ([]Object, error) {
	list, err := b.list(ctx, installation)
	return slices.DeleteFunc(list, func(o Object) bool { return o.Parsed.Kind == Marker }), err
}

func (b *Bucket) list(ctx context.Context, installation string) ([]Object, error) {
	var list []Object
	for o, err := range b.Store.List(ctx, installation+"/") {
		if err != nil {
			return nil, err
		}
		if parsed := ParseKey(o.Key); parsed.Kind != Backup && parsed.Kind != Manifest && parsed.Kind != Pack && parsed.Kind != Keys {
			list = append(list, Object{o, parsed})
		}
	}
	return list, nil
}

// Installations lists the ids of all installations with objects in the bucket.
func (b *Bucket) Installations(ctx context.Context) ([]string, error) {
	var ids []string
	for o, err := range b.Store.List(ctx, "") {
		if err != nil {
			return nil, err
		}
		id := ParseKey(o.Key).Installation
		if id != "" && (len(ids) == 0 || ids[len(ids)-1] != id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// Delete removes the archive with this key; it need not exist. The .meta is
// removed first, so that an interrupted removal looks like an unfinished
// upload, which does not count as an archive and which the next Delete removes.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	if _, err := b.own(key); err != nil {
		return err
	}
	for _, k := range []string{archive.MetaKey(key), key} {
		if err := b.Store.Delete(ctx, k); err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	return nil
}

// AbortIncomplete removes interrupted uploads of this installation that are
// older than age, and returns their number. Uploads to archive keys for which
// keep returns true remain, since their jobs may still run.
func (b *Bucket) AbortIncomplete(ctx context.Context, age time.Duration, keep func(key string) bool) (int, error) {
	return b.Store.AbortIncomplete(ctx, b.Installation+"/", age, func(key string) bool {
		k := ParseKey(key)
		return (k.Kind == Home || k.Kind == Meta) && keep != nil && keep(k.Archive())
	})
}
