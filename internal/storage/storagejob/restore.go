package storagejob

import (
	"context"
	"os"

	"codehub/internal/archive"
)

// restore replaces the home's content by the archive's. Until the server has
// the result, the home does not count, and the next attempt wipes it.
func (j *job) restore(ctx context.Context) (archive.Stats, error) {
	// The archive is opened first, so that an unavailable bucket leaves the
	// home unchanged.
	unpack, closed, err := j.source(ctx)
	if err != nil {
		return archive.Stats{}, err
	}
	defer closed()
	before, err := os.Stat(j.Home)
	if err != nil {
		return archive.Stats{}, wrap("open the home", err)
	}
	j.stage("wipe")
	if err := wipe(ctx, j.Home); err != nil {
		return archive.Stats{}, wrap("clear the home", err)
	}
	stats, err := j.fill(ctx, unpack, before.Mode())
	if err != nil && ctx.Err() == nil {
		// An incomplete home must not fill the disk. If it cannot be removed
		// now, the next attempt removes it.
		_ = wipe(ctx, j.Home)
	}
	return stats, err
}

// unpack unpacks into the empty home, and syncs it.
type unpack func(context.Context, archive.Progress) (archive.Stats, error)

// fill unpacks into the empty home if it has room.
func (j *job) fill(ctx context.Context, do unpack, before os.FileMode) (archive.Stats, error) {
	if err := j.room(); err != nil {
		return archive.Stats{}, err
	}
	// An archive without a home does not set the mode.
	if err := os.Chmod(j.Home, before); err != nil {
		return archive.Stats{}, wrap("set the mode of the home", err)
	}
	j.stage("unpack")
	unpacking, progress, end := j.keepReserve(ctx)
	defer end()
	stats, err := do(unpacking, progress)
	if err != nil {
		if unpacking.Err() != nil && ctx.Err() == nil {
			err = context.Cause(unpacking)
		}
		return archive.Stats{}, wrap("unpack the archive", err)
	}
	j.stage("done")
	return stats, nil
}
