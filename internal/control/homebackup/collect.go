package homebackup

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"codehub/internal/archive"
	"codehub/internal/control/mark"
	"codehub/internal/postgres"
	"codehub/internal/storage/bucket"
	"codehub/internal/workspace"
)

// tidy lets backups expire and removes their objects, until ctx ends.
func (t *term) tidy(ctx context.Context) {
	var kept, collected time.Time // zero: not in this term
	for {
		err := error(nil)
		if time.Since(kept) >= t.cfg.Tidy {
			if err = t.keep(ctx, ""); err == nil {
				kept = time.Now()
			}
		}
		switch {
		case err != nil, t.cfg.Ready != nil && !t.cfg.Ready():
		case time.Since(collected) >= t.cfg.Collect:
			var unreadable []workspace.ID
			if unreadable, err = t.collect(ctx, collected.IsZero() || t.unreadable.Err() != nil, t.rows.Users); err == nil {
				collected = time.Now()
				t.reportUnreadable(unreadable)
			}
		default:
			_, err = t.collect(ctx, false, func(ctx context.Context) ([]workspace.ID, error) { return t.rows.Deleted(ctx, t.cfg.DeleteGrace) })
		}
		if ctx.Err() != nil {
			return
		}
		t.removal.Set(err)
		if !t.pause(ctx, min(t.cfg.Tidy, deletedEvery)) {
			return
		}
	}
}

// reportUnreadable lists homes of which nothing was removed, since one of their backups cannot be read.
func (t *term) reportUnreadable(homes []workspace.ID) {
	if len(homes) == 0 {
		t.unreadable.Set(nil)
		return
	}
	t.unreadable.Set(fmt.Errorf("%d homes have a backup that cannot be read, and keep what no backup needs, such as those of the workspaces %s", len(homes), some(homes)))
}

// deletedEvery is the time between two looks for deleted workspaces whose backups are to be removed.
const deletedEvery = time.Minute

// keep lets the backups of a workspace, or of all, expire that the rules do not keep.
func (t *term) keep(ctx context.Context, only workspace.ID) error {
	list, now, err := t.rows.Kept(ctx, only)
	if err != nil {
		return err
	}
	var ids []string
	for len(list) > 0 {
		n := slices.IndexFunc(list, func(b postgres.KeptBackup) bool { return b.Workspace != list[0].Workspace })
		if n < 0 {
			n = len(list)
		}
		rule, err := workspace.ParseKeep(list[0].Keep)
		if err != nil { // it has none of its own, or one of a later version
			if rule, err = workspace.ParseKeep(t.cfg.Keep); err != nil {
				return err
			}
		}
		ids = append(ids, expired(rule, list[:n], now)...)
		list = list[n:]
	}
	return t.rows.Expire(ctx, ids)
}

// errForeign ends a collection of a bucket that another database uses.
var errForeign = errors.New("the bucket belongs to another database or to a later state of this one: " +
	"run codehub reconcile-restore, or check CODEHUB_ARCHIVE_URL")

// ours returns nil if the bucket is this database's.
func (t *term) ours(ctx context.Context) error {
	last, found, err := mark.Read(ctx, t.cfg.Bucket)
	if err != nil {
		return err
	}
	db := postgres.NewMarks(t.session)
	state, err := db.State(ctx)
	if err != nil {
		return err
	}
	verdict, err := mark.Compare(ctx, db, state, last, found)
	if err == nil && (verdict == mark.Foreign || verdict == mark.Missing || state.Hold != "") {
		err = errForeign
	}
	return err
}

// maxProblems is how many homes may fail for another reason than a damaged backup before a collection
// ends: the bucket does not respond.
const maxProblems = 5

// collect removes the objects of expired backups and those that jobs have left, and all of workspaces
// whose deletion cannot be undone any more, of the workspaces that list returns. It returns those of which
// a backup cannot be read, which does not keep the others. all reads the manifests of all homes, and not
// only of those from which a backup is removed.
func (t *term) collect(ctx context.Context, all bool, list func(context.Context) ([]workspace.ID, error)) (unreadable []workspace.ID, err error) {
	users, err := list(ctx)
	if err != nil || len(users) == 0 {
		return nil, err
	}
	if err := t.ours(ctx); err != nil {
		return nil, err
	}
	var problems []error
	for _, id := range users {
		err := t.collectOf(ctx, id, all)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case isDamaged(err):
			t.cfg.Log.Debug("backup of a home cannot be read", "workspace", id, "err", err)
			unreadable = append(unreadable, id)
		case err != nil:
			problems = append(problems, fmt.Errorf("backups of workspace %s: %w", id, err))
		}
		if len(problems) == maxProblems {
			break
		}
	}
	return unreadable, errors.Join(problems...)
}

// collectOf removes what is not needed of a workspace: manifests first, then packs that no manifest in the
// bucket names, then the rows. Afterwards it compacts what remains.
func (t *term) collectOf(ctx context.Context, id workspace.ID, all bool) error {
	objects, err := t.cfg.Bucket.HomeBackups(ctx, id)
	if err != nil {
		return err
	}
	// The rows are read after the bucket was listed, so that newer backups are known.
	rows, gone, now, err := t.rows.Stored(ctx, id, t.cfg.DeleteGrace, t.cfg.Age)
	if err != nil {
		return err
	}
	old := func(o bucket.Object) bool { return gone || now.Sub(o.Modified) > t.cfg.Age }
	var remaining []string
	for _, o := range objects {
		if o.Parsed.Kind != bucket.Manifest {
			continue
		}
		i := slices.IndexFunc(rows, func(b postgres.StoredBackup) bool { return b.Key == o.Key })
		backup := o.Parsed.OpID
		// The row has the key of another attempt, or of another manifest of the backup.
		other := slices.IndexFunc(rows, func(b postgres.StoredBackup) bool { return b.ID == backup && b.Key != o.Key })
		again := other >= 0
		// The database was restored, and had the former manifest, which is removed meanwhile.
		rewritten := i < 0 && again && rows[other].State == workspace.BackupDone && !rows[other].Removable &&
			!slices.ContainsFunc(objects, func(o bucket.Object) bool { return o.Key == rows[other].Key })
		switch {
		case i >= 0 && rows[i].Removable, i < 0 && old(o) && (again && !rewritten || gone):
			if err := t.cfg.Bucket.DeleteHomeBackup(ctx, o.Key); err != nil {
				return err
			}
			continue
		case i < 0 && !again, rewritten, i >= 0 && rows[i].State == workspace.BackupFailed:
			if err := t.adopt(ctx, id, o, backup); err != nil {
				return err
			}
		}
		remaining = append(remaining, o.Key)
	}
	var removed []string
	for _, b := range rows {
		if b.Removable {
			removed = append(removed, b.ID)
		}
	}
	if all || gone || len(removed) > 0 {
		if err := t.collectPacks(ctx, id, objects, remaining, old); err != nil {
			return err
		}
	}
	if gone {
		if err := t.cfg.Bucket.DeleteKeys(ctx, id); err != nil {
			return err
		}
	}
	if len(removed) == 0 {
		return nil
	}
	t.cfg.Log.Debug("backups of a home removed", "workspace", id, "backups", len(removed))
	if err := t.rows.Delete(ctx, removed); err != nil || gone {
		return err
	}
	err = t.compact(ctx, id, rows)
	if isDamaged(err) {
		t.cfg.Log.Warn("backups of a home not compacted", "workspace", id, "err", err)
		return nil
	}
	return err
}

// collectPacks removes old packs that none of the manifests names. A manifest that cannot be read
// is an error, and nothing is removed.
func (t *term) collectPacks(ctx context.Context, id workspace.ID, objects []bucket.Object, manifests []string, old func(bucket.Object) bool) error {
	if !slices.ContainsFunc(objects, func(o bucket.Object) bool { return o.Parsed.Kind == bucket.Pack && old(o) }) {
		return nil
	}
	needed := map[string]bool{}
	for _, key := range manifests {
		m, _, err := t.cfg.Bucket.Generation(ctx, key)
		if err != nil {
			return errors.Join(err, t.noteDamage(ctx, key, err))
		}
		for name := range m.Packs() {
			needed[path.Base(name)] = true
		}
	}
	// The session still leads.
	if _, _, _, err := t.rows.Stored(ctx, id, t.cfg.DeleteGrace, t.cfg.Age); err != nil {
		return err
	}
	for _, o := range objects {
		if o.Parsed.Kind == bucket.Pack && old(o) && !needed[path.Base(o.Key)] {
			if err := t.cfg.Bucket.DeleteHomeBackup(ctx, o.Key); err != nil {
				return err
			}
		}
	}
	return nil
}

// noteDamage records that a manifest is damaged, as a drill does: the backup cannot be restored, and the
// next one of the home stores everything if it was the last.
func (t *term) noteDamage(ctx context.Context, key string, damage error) error {
	backup := workspace.BackupOfKey(key)
	if !isDamaged(damage) || backup == "" {
		return nil
	}
	t.cfg.Log.Error("backup of a home is damaged", "backup", backup, "key", key, "damage", damage)
	return t.rows.Verified(ctx, backup, withReason(damage, damages))
}

// adopt records a backup that is in the bucket and not in the database.
func (t *term) adopt(ctx context.Context, id workspace.ID, o bucket.Object, backup string) error {
	m, _, err := t.cfg.Bucket.Generation(ctx, o.Key)
	if err != nil {
		return err
	}
	meta, err := t.cfg.Bucket.Meta(ctx, o.Key)
	if err != nil {
		return err
	}
	at, _ := archive.IsManifest(path.Base(o.Key))
	b := workspace.Backup{ID: backup, WorkspaceID: id, Key: o.Key, Digest: meta.SHA256, Size: meta.Size, BegunAt: &at}
	totals := m.Totals()
	b.Entries, b.Files, b.Bytes, b.Skipped = totals.Entries, totals.Files, totals.Bytes, totals.Skipped
	b.Changed, b.Stored, b.Problems = totals.Changed, totals.Stored, int64(len(m.Problems()))
	t.cfg.Log.Info("backup of a home found in the bucket", "workspace", id, "backup", backup)
	return t.rows.Adopt(ctx, b)
}
