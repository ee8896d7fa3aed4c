// Package backup stores backups of the database in the bucket: on request, and while a server
// leads on a schedule.
package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"codehub/internal/archive"
	"codehub/internal/postgres"
	"codehub/internal/storage/bucket"
)

// Config says what is backed up, and where to.
type Config struct {
	Bucket   *bucket.Bucket
	DSN      string
	Version  string            // of codehub
	Settings map[string]string // without secrets
}

// Stored is a backup in the bucket.
type Stored struct {
	postgres.BackupInfo
	Key string
}

// Store writes a backup into the bucket and reads it again. One that is damaged is removed; one
// that cannot be read remains.
func Store(ctx context.Context, cfg Config) (s Stored, err error) {
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		var err error
		s.BackupInfo, err = postgres.WriteBackup(ctx, cfg.DSN, w, cfg.Version, cfg.Settings)
		_ = w.CloseWithError(err) // it returns no error
		written <- err
	}()
	key, err := cfg.Bucket.PutBackup(ctx, bucket.BackupName(time.Now()), r)
	_ = r.CloseWithError(err) // the writer ends if the bucket has failed
	if failed := <-written; err == nil || failed != nil && errors.Is(err, failed) {
		err = failed
	}
	if err != nil {
		return s, fmt.Errorf("store a backup of the database: %w", err)
	}
	s.Key = key
	if damaged, err := check(ctx, cfg.Bucket, s); err != nil {
		err = fmt.Errorf("read the backup %s again: %w", key, err)
		if damaged {
			err = errors.Join(err, cfg.Bucket.DeleteBackup(context.WithoutCancel(ctx), key))
		}
		return s, err
	}
	return s, nil
}

// check reads the backup again. It is damaged only if the bucket gave all of it.
func check(ctx context.Context, b *bucket.Bucket, s Stored) (damaged bool, err error) {
	r, err := b.OpenBackup(ctx, s.Key)
	if err != nil {
		return false, err
	}
	defer r.Close()
	from := &source{Reader: r}
	got, err := postgres.CheckBackup(from)
	if err == nil && (!got.Time.Equal(s.Time) || got.Installation != s.Installation) {
		return false, errors.New("it is another one")
	}
	return err != nil && from.err == nil, err
}

// source is a reader that keeps its error.
type source struct {
	io.Reader
	err error // other than io.EOF, and than damage
}

func (s *source) Read(p []byte) (n int, err error) {
	if n, err = s.Reader.Read(p); err != nil && err != io.EOF && !errors.Is(err, archive.ErrCorrupted) {
		s.err = err
	}
	return n, err
}
