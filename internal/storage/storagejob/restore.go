package storagejob

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"codehub/internal/archive"
)

// restore replaces the home's content by the archive's. Until the server has
// the result, the home does not count, and the next attempt wipes it.
func (j *job) restore(ctx context.Context) (archive.Stats, error) {
	// The archive is opened first, so that an unavailable bucket leaves the
	// home unchanged.
	r, err := j.source(ctx)
	if err != nil {
		return archive.Stats{}, wrap("open the archive", err)
	}
	defer r.Close()
	before, err := os.Stat(j.Home)
	if err != nil {
		return archive.Stats{}, wrap("open the home", err)
	}
	j.stage("wipe")
	if err := wipe(ctx, j.Home); err != nil {
		return archive.Stats{}, wrap("clear the home", err)
	}
	stats, err := j.fill(ctx, r, before.Mode())
	if err != nil && ctx.Err() == nil {
		// An incomplete home must not fill the disk. If it cannot be removed
		// now, the next attempt removes it.
		_ = wipe(ctx, j.Home)
	}
	return stats, err
}

// fill unpacks into a staging folder and moves the result up into the home.
func (j *job) fill(ctx context.Context, r io.Reader, before os.FileMode) (archive.Stats, error) {
	if err := j.room(); err != nil {
		return archive.Stats{}, err
	}
	staging, err := j.makeStaging()
	if err != nil {
		return archive.Stats{}, wrap("create a staging folder", err)
	}
	j.stage("unpack")
	unpacking, progress, end := j.keepReserve(ctx)
	defer end()
	stats, err := archive.Unpack(unpacking, r, staging, archive.UnpackOptions{Expect: &j.spec.Meta, Progress: progress})
	if err != nil {
		if unpacking.Err() != nil && ctx.Err() == nil {
			err = context.Cause(unpacking)
		}
		return archive.Stats{}, wrap("unpack the archive", err)
	}
	j.stage("move")
	if err := j.moveUp(ctx, staging, stats.Entries > 0, before); err != nil {
		return archive.Stats{}, wrap("move the home into place", err)
	}
	j.stage("sync")
	if err := syncDisk(j.Home); err != nil {
		return archive.Stats{}, wrap("sync the home", err)
	}
	j.stage("done")
	return stats, nil
}

func (j *job) makeStaging() (string, error) {
	dir := filepath.Join(j.Home, j.stagingName())
	return dir, os.Mkdir(dir, 0o700)
}

// stagingName returns a name that no archive can predict.
func stagingName() string { return ".codehub-restore-" + rand.Text() }

// moveUp moves the content of staging, which is in the home, up into the home,
// and gives the home staging's attributes if they are a home's, and otherwise
// its former mode.
func (j *job) moveUp(ctx context.Context, staging string, isHome bool, before os.FileMode) error {
	// The attributes are read before the moves change them.
	attributes, err := archive.ReadAttributes(staging)
	if err != nil {
		return err
	}
	for { // the name may be in use
		_, err := os.Lstat(filepath.Join(staging, filepath.Base(staging)))
		if errors.Is(err, os.ErrNotExist) {
			break
		}
		if err != nil {
			return err
		}
		next := filepath.Join(j.Home, j.stagingName())
		if err := os.Rename(staging, next); err != nil {
			return err
		}
		staging = next
	}
	home, err := os.Open(j.Home)
	if err != nil {
		return err
	}
	defer home.Close()
	from, err := os.Open(staging)
	if err != nil {
		return err
	}
	defer from.Close()
	err = eachName(ctx, from, func(name string) error {
		return unix.Renameat(int(from.Fd()), name, int(home.Fd()), name)
	})
	if err != nil {
		return err
	}
	if err := os.Remove(staging); err != nil {
		return err
	}
	if !isHome {
		return os.Chmod(j.Home, before)
	}
	j.stage("attributes")
	return attributes.Apply(j.Home)
}

// syncDisk syncs the file system of a folder.
func syncDisk(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}
