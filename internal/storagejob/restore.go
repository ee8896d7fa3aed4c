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

// restore makes the home what the archive holds. Until the server hears of its
// success the home counts as nothing, and the next try wipes it.
func (j *job) restore(ctx context.Context) (archive.Stats, error) {
	// A bucket that has nothing to give is no reason to touch the home.
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
		// What is of no use shall not fill the disk. If it cannot be removed,
		// the next try does.
		_ = wipe(ctx, j.Home)
	}
	return stats, err
}

// fill unpacks beside and moves what is whole up into the home.
func (j *job) fill(ctx context.Context, r io.Reader, before os.FileMode) (archive.Stats, error) {
	if err := j.room(); err != nil {
		return archive.Stats{}, err
	}
	staging, err := j.makeStaging()
	if err != nil {
		return archive.Stats{}, wrap("create a staging folder", err)
	}
	j.stage("unpack")
	unpacking, progress, end := j.sparingly(ctx)
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

// stagingName is one that no archive can know of.
func stagingName() string { return ".codehub-restore-" + rand.Text() }

// moveUp moves all that is in staging, which is in the home, up into it, and
// gives the home what staging carries if that is a home's, else the mode it had.
func (j *job) moveUp(ctx context.Context, staging string, isHome bool, before os.FileMode) error {
	// Before anything moves it.
	attributes, err := archive.ReadAttributes(staging)
	if err != nil {
		return err
	}
	for { // the name may be taken after all
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

// syncDisk brings all of the file system that a folder is on onto the disk.
func syncDisk(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}
