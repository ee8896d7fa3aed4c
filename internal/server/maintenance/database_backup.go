package maintenance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/google/uuid"

	"codehub/internal/base/setting"
	"codehub/internal/cli/terminal"
	"codehub/internal/control/backup"
	"codehub/internal/postgres"
	"codehub/internal/postgres/embedded"
	"codehub/internal/server/config"
	"codehub/internal/server/installation"
	"codehub/internal/storage/bucket"
)

// databaseBackupCmd has the settings of serve, to find the installation.
type databaseBackupCmd struct {
	config.Config `embed:""`

	File string `arg:"" optional:"" help:"File to write, or - for standard output (default: into the bucket)."`
}

// Help describes what a backup has.
func (databaseBackupCmd) Help() string {
	return `Servers and workspaces can run. The backup has all rows of codehub's database and the settings without secrets. It has neither archives nor the keys of secrets.`
}

func (c *databaseBackupCmd) Run(ctx context.Context, k *kong.Context) error {
	if err := c.Resolve(); err != nil {
		return err
	}
	log := c.Logger(os.Stderr)
	dsn, release, err := installation.DatabaseURL(ctx, c.Config, log)
	if err != nil {
		return err
	}
	defer release()
	if c.File == "" {
		id, err := postgres.InstallationOf(ctx, dsn)
		if err != nil {
			return err
		}
		b, err := installation.OpenBucket(c.Config, id, nil, log)
		if err != nil {
			return err
		}
		done, err := backup.Store(ctx, backup.Config{Bucket: b, DSN: dsn, Version: c.Version, Settings: c.Recorded()})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(k.Stdout, "The backup is in the bucket: %s\n", done.Key)
		return err
	}
	if c.File == "-" {
		_, err = postgres.WriteBackup(ctx, dsn, k.Stdout, c.Version, c.Recorded())
		return err
	}
	if err := writeFile(c.File, func(w io.Writer) error {
		_, err := postgres.WriteBackup(ctx, dsn, w, c.Version, c.Recorded())
		return err
	}); err != nil {
		return err
	}
	_, err = fmt.Fprintf(k.Stdout, "The backup is in %s.\n", c.File)
	return err
}

// writeFile writes a file that only its owner can read. With an error the file is as before. It
// replaces only a regular file: a device or a link would be lost.
func writeFile(name string, write func(io.Writer) error) error {
	if fi, err := os.Lstat(name); err == nil && !fi.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", name)
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".codehub-backup-")
	if err != nil {
		return err
	}
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

// databaseBackupsCmd has the settings of serve, to find the bucket.
type databaseBackupsCmd struct {
	config.Config `embed:""`
}

func (c *databaseBackupsCmd) Run(ctx context.Context, k *kong.Context) error {
	if err := c.Resolve(); err != nil {
		return err
	}
	_, list, err := listBackups(ctx, c.Config)
	if err != nil {
		return err
	}
	rows := [][]string{{"TIME", "SIZE", "INSTALLATION"}}
	for _, b := range list {
		rows = append(rows, []string{b.Name, terminal.Size(b.Size), b.Installation})
	}
	_, err = fmt.Fprint(k.Stdout, terminal.Table(rows))
	return err
}

// listBackups lists the backups in the bucket. The database may be lost, so it does not ask it for
// the installation.
func listBackups(ctx context.Context, cfg config.Config) (*bucket.Bucket, []bucket.BackupObject, error) {
	b, err := installation.OpenBucket(cfg, uuid.NewString(), nil, cfg.Logger(os.Stderr))
	if err != nil {
		return nil, nil, err
	}
	list, err := b.AllBackups(ctx)
	return b, list, err
}

// nameOfBackup is latest, or a bucket.BackupName.
var nameOfBackup = regexp.MustCompile(`^(latest|\d{8}T\d{6}Z)$`)

// open opens the file, or a copy of a backup in the bucket, which close removes.
func (c *databaseRestoreCmd) open(ctx context.Context) (f *os.File, name string, close func(), err error) {
	if f, err = os.Open(c.File); err == nil {
		return f, c.File, func() { _ = f.Close() }, nil
	}
	if !errors.Is(err, os.ErrNotExist) || !nameOfBackup.MatchString(c.File) {
		return nil, "", nil, err
	}
	b, list, err := listBackups(ctx, c.Config)
	if err != nil {
		return nil, "", nil, err
	}
	var of []string
	list = slices.DeleteFunc(list, func(o bucket.BackupObject) bool {
		if c.Installation != "" && o.Installation != c.Installation || c.File == "latest" && o.Future() || c.File != "latest" && o.Name != c.File {
			return true
		}
		if !slices.Contains(of, o.Installation) {
			of = append(of, o.Installation)
		}
		return false
	})
	switch {
	case len(list) == 0:
		return nil, "", nil, fmt.Errorf("the bucket %s has no such backup; codehub database backups lists all", c.Archives.Redacted())
	case len(of) > 1:
		return nil, "", nil, &setting.Problem{Setting: "--installation", Why: "several installations have backups in the bucket", Do: "give one of " + strings.Join(of, ", ")}
	}
	key := list[len(list)-1].Key // the list is sorted
	r, err := b.OpenBackup(ctx, key)
	if err != nil {
		return nil, "", nil, err
	}
	defer r.Close()
	if f, err = os.CreateTemp("", "codehub-backup-"); err != nil {
		return nil, "", nil, err
	}
	close = func() { _, _ = f.Close(), os.Remove(f.Name()) }
	if _, err = io.Copy(f, r); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		close()
		return nil, "", nil, err
	}
	return f, key, close, nil
}

// isBackup reports whether a file is one of codehub database backup: its compression has these
// bytes at its beginning.
func isBackup(f io.ReaderAt) bool {
	var b [4]byte
	_, err := f.ReadAt(b[:], 0)
	return err == nil && bytes.Equal(b[:], []byte{0x28, 0xb5, 0x2f, 0xfd})
}

// restoreBackup loads a backup. An embedded database is replaced by a new one; any other must be
// empty.
func (c *databaseRestoreCmd) restoreBackup(ctx context.Context, k *kong.Context, f *os.File, name string) error {
	if _, err := postgres.CheckBackup(f); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	var done postgres.LoadedBackup
	load := func(ctx context.Context, dsn string) (err error) {
		if _, err = f.Seek(0, io.SeekStart); err == nil {
			done, err = postgres.LoadBackup(ctx, dsn, f)
		}
		return err
	}
	var kept string
	if c.DatabaseURL != "" {
		err := installation.CheckSession(ctx, c.DatabaseURL)
		if err == nil {
			err = load(ctx, c.DatabaseURL)
		}
		if errors.Is(err, postgres.ErrNotEmpty) {
			err = &setting.Problem{Setting: "CODEHUB_DATABASE_URL", Why: "the database is not empty", Do: "stop codehub, and create an empty database or name another one"}
		}
		if err != nil {
			return err
		}
	} else {
		cfg, err := embeddedDatabase(&c.Config)
		if err != nil {
			return err
		}
		replaced, err := embedded.RestoreBy(ctx, cfg, name, load)
		if err != nil {
			return err
		}
		kept = replaced.Kept
	}
	var text strings.Builder
	fmt.Fprintf(&text, "The database is restored: %d rows of %d tables, from %s.\n", done.Rows, done.Tables, terminal.Time(done.Time))
	if len(done.Unknown) > 0 {
		fmt.Fprintf(&text, "Not restored, since they are not codehub's: %s.\n", strings.Join(done.Unknown, ", "))
	}
	if kept != "" {
		fmt.Fprintf(&text, "The former one is kept in %s.\n", kept)
	}
	fmt.Fprintf(&text, "Start codehub. If it goes on hold, run codehub reconcile-restore.\n")
	_, err := io.WriteString(k.Stdout, text.String())
	return err
}
