package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"path"
	"time"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

type downloadCmd struct {
	serverFlags
	terminal.Format
	Workspace string `arg:"" help:"A workspace's name or id."`
	File      string `short:"O" name:"file" placeholder:"FILE" help:"File to write; - for standard output (default: NAME.tar.zst)."`
	Archive   string `name:"archive" placeholder:"ARCHIVE" help:"ID of an earlier archive, from codehub archives."`
	Backup    string `name:"backup" placeholder:"BACKUP" help:"Id, note or time of a backup, from codehub backups; with --path."`
	Path      string `name:"path" placeholder:"PATH" help:"Download only this file of the home; of a backup also a folder, as a tar."`
	Force     bool   `short:"f" help:"Overwrite an existing file."`
}

// Help describes what is checked, and what an interruption leaves.
func (downloadCmd) Help() string {
	return `The archive is kept in FILE….part until it is complete and its SHA-256 is right. Run the same command again to resume an interrupted download. tar --zstd unpacks the archive.`
}

func (d downloadCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	if d.Backup != "" && (d.Path == "" || d.Archive != "") {
		return terminal.Exit(terminal.ExitUsage, errors.New("--backup needs --path, and is not used with --archive"))
	}
	w, err := resolve(ctx, c, d.Workspace, false)
	if err != nil {
		return err
	}
	var from *client.Download // of one file
	if d.Path != "" {
		var folder bool
		if from, folder, err = d.open(ctx, c, w.ID); err != nil {
			return err
		}
		defer from.Body.Close()
		if d.File == "" && folder {
			d.File = path.Base(path.Clean("/"+d.Path)) + ".tar"
			if d.File == "/.tar" {
				d.File = w.Name + ".tar"
			}
		}
	}
	toStdout := d.File == "-"
	if toStdout && d.Output == "json" {
		return errors.New("the standard output cannot take both the archive and JSON")
	}
	if d.File == "" {
		d.File = api.ArchiveFileName(w.Name)
		if d.Path != "" {
			d.File = path.Base(d.Path)
		}
	}
	if !toStdout && !d.Force {
		if _, err := os.Lstat(d.File); err == nil {
			return fmt.Errorf("%s already exists; replace it with --force, or name another file with -O", d.File)
		}
	}
	if d.Path != "" {
		return d.one(k, from)
	}
	m := newMeter(k.Stderr)
	defer m.clear()
	f := &fetch{open: func(ctx context.Context, offset int64, etag string) (*client.Download, error) {
		return c.Download(ctx, w.ID, d.Archive, offset, etag)
	}, meter: m, name: terminal.Plain(w.Name)}
	if f.info, err = c.DownloadInfo(ctx, w.ID, d.Archive); err != nil {
		return err
	}
	if toStdout {
		return f.run(ctx, k.Stdout)
	}
	if err := f.toFile(ctx, d.File); err != nil {
		return err
	}
	m.clear()
	done := struct {
		File   string `json:"file"`
		Size   int64  `json:"size"`
		SHA256 string `json:"sha256"`
	}{d.File, f.info.Size, f.sum()}
	text := fmt.Sprintf("%s   %s   sha256 %s", d.File, terminal.Size(done.Size), done.SHA256)
	if f.info.SHA256 == "" {
		text += "   (the server sent no digest to compare)"
	}
	return d.Print(k.Stdout, done, text)
}

// open opens one file of the archive or backup, or a folder of the backup as a tar.
func (d downloadCmd) open(ctx context.Context, c *client.Client, id string) (from *client.Download, folder bool, err error) {
	if d.Backup == "" {
		from, err = c.DownloadFile(ctx, id, d.Archive, d.Path)
		return from, false, err
	}
	list, err := c.Backups(ctx, id)
	if err != nil {
		return nil, false, err
	}
	b, err := chooseBackup(list, d.Backup, time.Now())
	if err != nil {
		return nil, false, err
	}
	return openBackup(ctx, c, id, b.ID, d.Path)
}

// one downloads one file of the archive or backup.
func (d downloadCmd) one(k *kong.Context, from *client.Download) error {
	if d.File == "-" {
		_, err := io.Copy(k.Stdout, from.Body)
		return err
	}
	part := d.File + ".part"
	file, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(file, from.Body)
	if err == nil && from.Size >= 0 && n != from.Size {
		err = io.ErrUnexpectedEOF
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(part, d.File)
	}
	if err != nil {
		_ = os.Remove(part)
		return err
	}
	return d.Print(k.Stdout, struct {
		File string `json:"file"`
		Size int64  `json:"size"`
	}{d.File, n}, fmt.Sprintf("%s   %s", d.File, terminal.Size(n)))
}

// fetch downloads one archive, with new connections after failures.
type fetch struct {
	open  func(ctx context.Context, offset int64, etag string) (*client.Download, error)
	info  *client.Download // what is downloaded
	meter *meter
	name  string

	at   int64     // number of bytes downloaded
	hash hash.Hash // of that
	pace rate
}

func (f *fetch) sum() string { return hex.EncodeToString(f.hash.Sum(nil)) }

var (
	errChanged = errors.New("the archive was replaced during the download; try again")
	errDamaged = errors.New("the downloaded archive is damaged: its SHA-256 differs")
	errStalled = errors.New("the server sent nothing for a minute")
)

// toFile downloads into a file of that name, which appears when it is complete.
func (f *fetch) toFile(ctx context.Context, name string) error {
	part := f.partName(name)
	file, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	begun, err := f.resume(file)
	if err != nil {
		return err
	}
	err = f.run(ctx, file)
	if begun && errors.Is(err, errDamaged) {
		// The part of an earlier download may be wrong.
		if err = f.restart(file); err == nil {
			err = f.run(ctx, file)
		}
	}
	switch {
	case errors.Is(err, errDamaged), errors.Is(err, errChanged):
		_ = os.Remove(part)
		return err
	case err != nil && f.at > 0:
		return fmt.Errorf("%w (%s of %s are in %s; the same command continues it)", err, terminal.Size(f.at), terminal.Size(f.info.Size), part)
	case err != nil:
		_ = os.Remove(part)
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	return os.Rename(part, name)
}

// partName is the name of an incomplete file. It has the archive's ETag, so that a
// part of another archive is not continued.
func (f *fetch) partName(name string) string {
	if len(f.info.SHA256) < 12 {
		return name + ".part"
	}
	return fmt.Sprintf("%s.%s.part", name, f.info.SHA256[:12])
}

// resume continues the part that an earlier download left in the file, if possible.
func (f *fetch) resume(file *os.File) (begun bool, err error) {
	info, err := file.Stat()
	if err != nil {
		return false, err
	}
	if f.info.ETag == "" || info.Size() > f.info.Size || !info.Mode().IsRegular() {
		return false, f.restart(file)
	}
	f.hash = sha256.New()
	f.at, err = io.Copy(f.hash, file)
	return f.at > 0, err
}

func (f *fetch) restart(file *os.File) error {
	f.at, f.hash = 0, sha256.New()
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err := file.Seek(0, io.SeekStart)
	return err
}

const (
	// fetchTries is the number of connections in a row without data after which
	// the download fails.
	fetchTries = 6
	fetchQuiet = time.Minute
)

// run downloads the missing bytes and checks the digest of the whole.
func (f *fetch) run(ctx context.Context, to io.Writer) error {
	if f.hash == nil {
		f.hash = sha256.New()
	}
	failures, wait := 0, 500*time.Millisecond
	for f.at < f.info.Size {
		before := f.at
		err := f.attempt(ctx, to)
		var answer *client.Error
		var local *writeError
		switch {
		case f.at == f.info.Size:
			continue
		case ctx.Err() != nil:
			return errors.New("interrupted")
		case errors.As(err, &local), errors.Is(err, errChanged),
			errors.As(err, &answer) && answer.Status < 500 && answer.Status != http.StatusTooManyRequests:
			return err
		case f.at > before && f.info.ETag == "":
			return err // without an ETag, the rest could be of another archive
		}
		if failures++; f.at > before {
			failures, wait = 0, 500*time.Millisecond
		}
		if failures == fetchTries {
			return err
		}
		f.meter.show(f.name, amount(f.at, f.info.Size), "the connection broke: trying again")
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait = min(2*wait, 15*time.Second)
	}
	if f.info.SHA256 != "" && f.sum() != f.info.SHA256 {
		return errDamaged
	}
	return nil
}

// writeError is a local error, after which a retry would not help.
type writeError struct{ error }

func (e *writeError) Unwrap() error { return e.error }

// attempt downloads over one connection.
func (f *fetch) attempt(ctx context.Context, to io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := time.AfterFunc(fetchQuiet, func() { cancel(errStalled) })
	defer quiet.Stop()
	d, err := f.open(ctx, f.at, f.info.ETag)
	if err != nil {
		return cause(ctx, err)
	}
	defer d.Body.Close()
	if d.ETag != f.info.ETag || d.Offset != f.at || d.Size != f.info.Size {
		return errChanged
	}
	b := make([]byte, 256<<10)
	for {
		n, err := d.Body.Read(b)
		quiet.Reset(fetchQuiet)
		// Bytes beyond the announced size are not of the archive.
		if n = int(min(int64(n), f.info.Size-f.at)); n > 0 {
			if _, err := to.Write(b[:n]); err != nil {
				return &writeError{err}
			}
			f.hash.Write(b[:n])
			f.at += int64(n)
			f.pace.add(time.Now(), f.at)
			f.meter.show(f.name, amount(f.at, f.info.Size), pace(f.pace.of(f.info.Size-f.at)))
		}
		switch {
		case f.at == f.info.Size:
			return nil
		case err == io.EOF:
			return io.ErrUnexpectedEOF
		case err != nil:
			return cause(ctx, err)
		}
	}
}

// cause returns the cause of ctx's end if it has ended, otherwise err.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}

// rate measures a speed over the last seconds.
type rate struct {
	since time.Time // of from
	from  int64
	speed float64 // bytes per second; 0: not known yet
}

func (r *rate) add(now time.Time, at int64) {
	took := now.Sub(r.since).Seconds()
	switch {
	case r.since.IsZero():
		r.since, r.from = now, at
	case took >= 1:
		speed := float64(at-r.from) / took
		if r.speed > 0 {
			speed = .7*r.speed + .3*speed
		}
		r.speed, r.since, r.from = speed, now, at
	}
}

// of returns the speed, and the seconds until that many more bytes are downloaded.
func (r *rate) of(left int64) (speed, seconds int64) {
	if r.speed < 1 {
		return 0, 0
	}
	return int64(r.speed), 1 + int64(float64(left)/r.speed)
}
