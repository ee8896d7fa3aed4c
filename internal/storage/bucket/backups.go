package bucket

import (
	"context"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"codehub/internal/storage/store"
)

const (
	backupFolder = "database"
	backupSuffix = ".backup.zst"
	backupTime   = "20060102T150405Z"
)

// BackupName is the name of a backup of the database that was made at that time. It is its time in
// UTC, as in 20270301T081500Z.
func BackupName(at time.Time) string { return at.UTC().Format(backupTime) }

// PutBackup stores a backup of this installation's database. It refuses a bucket that is not this
// installation's.
func (b *Bucket) PutBackup(ctx context.Context, name string, r io.Reader) (key string, err error) {
	if err := b.right(ctx); err != nil {
		return "", err
	}
	key = b.Installation + "/" + backupFolder + "/" + name + backupSuffix
	_, err = b.Store.Put(ctx, key, r)
	return key, err
}

// BackupObject is a backup of a database in the bucket.
type BackupObject struct {
	Installation string
	Name         string // see BackupName
	store.Object
}

// Time is when the backup was made.
func (o BackupObject) Time() time.Time {
	at, _ := time.Parse(backupTime, o.Name) // zero with an error
	return at
}

// Future reports whether the backup is of a clock that was wrong: its time is more than an hour
// ahead. It is then not the last one.
func (o BackupObject) Future() bool { return time.Until(o.Time()) > time.Hour }

// Backups lists the backups of this installation's database, the oldest first. Objects whose names
// are not of BackupName are none.
func (b *Bucket) Backups(ctx context.Context) ([]BackupObject, error) {
	return b.backups(ctx, b.Installation+"/"+backupFolder+"/")
}

// AllBackups lists the backups of all installations in the bucket: an empty database does not know
// which one it was.
func (b *Bucket) AllBackups(ctx context.Context) ([]BackupObject, error) { return b.backups(ctx, "") }

func (b *Bucket) backups(ctx context.Context, prefix string) (list []BackupObject, err error) {
	for o, err := range b.Store.List(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		if k := ParseKey(o.Key); k.Kind == Backup {
			if b := (BackupObject{k.Installation, strings.TrimSuffix(path.Base(o.Key), backupSuffix), o}); !b.Time().IsZero() {
				list = append(list, b)
			}
		}
	}
	return list, nil
}

// OpenBackup reads a backup of any installation.
func (b *Bucket) OpenBackup(ctx context.Context, key string) (io.ReadCloser, error) {
	if ParseKey(key).Kind != Backup {
		return nil, fmt.Errorf("invalid key of a backup %.200q", key)
	}
	return b.Store.Get(ctx, key, 0)
}

// DeleteBackup removes a backup of this installation's database; it need not exist.
func (b *Bucket) DeleteBackup(ctx context.Context, key string) error {
	if k := ParseKey(key); k.Kind != Backup || k.Installation != b.Installation {
		return fmt.Errorf("invalid key of a backup of this installation %.200q", key)
	}
	return b.Store.Delete(ctx, key)
}
