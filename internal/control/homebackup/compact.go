package homebackup

import (
	"context"
	"path"

	"codehub/internal/archive"
	"codehub/internal/postgres"
	"codehub/internal/storage/bucket"
	"codehub/internal/workspace"
)

// mostMoved is about how many bytes are moved at a time in the backups of a workspace.
const mostMoved = 1 << 30

// compact moves what the listed backups of a workspace need of packs that they need little of into new packs, if this
// frees enough. Each of the backups then gets another manifest. The former one expires, so that it and the
// packs are removed when no job can need them any more. A backup that is damaged keeps all as it is.
func (t *term) compact(ctx context.Context, id workspace.ID, rows []postgres.StoredBackup) error {
	ctx, cancel := t.limited(ctx)
	defer cancel()
	var usage archive.Usage
	var get archive.GetRange
	folder := ""
	for _, b := range rows {
		if !b.Listed {
			continue
		}
		m, from, err := t.cfg.Bucket.Generation(ctx, b.Key)
		if err == nil {
			err = usage.Add(m)
		}
		if err != nil {
			return err
		}
		get, folder = from, path.Dir(b.Key)+"/"
	}
	c := usage.Compact(mostMoved)
	if c == nil {
		return nil
	}
	if room, err := t.cfg.Bucket.Room(); err != nil || room < 2*c.Bytes() {
		t.cfg.Log.Debug("backups of a home not compacted: the disk of the bucket is too full", "workspace", id, "free", room, "err", err)
		return err
	}
	generation, moved := "", int64(0)
	for _, b := range rows {
		if !b.Listed {
			continue
		}
		key := bucket.RewrittenKey(b.Key)
		if generation == "" {
			generation = archive.Generation(path.Base(key))
			err := c.Store(ctx, generation, get, func(ctx context.Context, name string, content []byte) error {
				moved += int64(len(content))
				return t.cfg.Bucket.PutHomeBackup(ctx, folder+name, content)
			})
			if err != nil {
				return err
			}
		}
		m, _, err := t.cfg.Bucket.Generation(ctx, b.Key)
		if err != nil {
			return err
		}
		if !c.Affects(m) {
			continue
		}
		m, content, err := c.Rewrite(m)
		if err != nil {
			return err
		}
		if err := t.cfg.Bucket.PutHomeBackup(ctx, key, content); err != nil {
			return err
		}
		if _, err := t.rows.Replace(ctx, b.ID, b.Key, key, m.Digest(), m.Size()); err != nil {
			return err
		}
	}
	packs, size, needed := usage.Size()
	t.cfg.Log.Info("backups of a home compacted", "workspace", id, "packs", packs, "size", size, "needed", needed, "stored", moved)
	return nil
}
