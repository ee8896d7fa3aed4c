package gc

import (
	"context"
	"errors"
	"fmt"

	"codehub/internal/archive"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// A listing without more than a fifth of at least five archives is taken for a
// failure of the bucket, as with volumes.
const (
	suspicious   = 5
	suspiciousOf = 5
)

// currents compares the archives that workspaces rest on with the listing.
type currents struct {
	all     int
	missing []check
	whole   []check
}

// check is the current archive of a workspace, as recorded.
type check struct {
	id     workspace.ID
	key    string
	digest string
	size   int64
	// damaged: a restore found that its content is, which neither the listing nor the .meta shows.
	damaged bool
}

func (c *currents) add(v view) {
	w := v.holder
	if w.DeletedAt != nil || w.Home == workspace.HomeLive || !v.currentListed() {
		return
	}
	missing := v.currentMissing()
	if missing && w.Phase == workspace.PhaseError {
		return // a known loss; it must not hide another one
	}
	c.all++
	r := v.records[w.ArchiveKey]
	switch at := (check{w.ID, w.ArchiveKey, r.Digest, r.Size, w.ErrorReason == workspace.ErrArchiveCorrupted}); {
	case missing:
		c.missing = append(c.missing, at)
	case w.Phase == workspace.PhaseError:
		c.whole = append(c.whole, at)
	}
}

// suspicious returns why the listing is not believed; nil: it is.
func (c *currents) suspicious() error {
	if c.all < suspiciousOf || len(c.missing)*suspicious <= c.all {
		return nil
	}
	return fmt.Errorf("%d of %d archives are missing from the bucket at once; "+
		"no workspace is changed: check CODEHUB_ARCHIVE_URL and the bucket", len(c.missing), c.all)
}

// recheck requests a new observation of each archive that the listing shows in
// another state than the recorded one. The controller then decides.
func (c *collection) recheck(ctx context.Context) error {
	outage := c.currents.suspicious()
	if outage == nil {
		for _, m := range c.currents.missing {
			requested, err := c.db.RecheckArchive(ctx, m.id, m.key, false, false)
			if err != nil {
				return err
			}
			if requested {
				c.Log.Warn("archive missing", "workspace", m.id, "key", m.key)
			}
		}
	}
	for _, m := range c.currents.whole {
		// The listing does not show what the .meta says: a damaged one would be
		// taken for an archive that is back in every pass.
		state, err := c.Bucket.State(ctx, workspace.Workspace{ID: m.id, ArchiveKey: m.key, ArchiveDigest: m.digest, ArchiveSize: m.size})
		switch {
		case err != nil:
			return err
		case state != lifecycle.ArchivePresent:
			continue
		}
		if m.damaged {
			switch err := c.Bucket.Verify(ctx, m.key); {
			case errors.Is(err, archive.ErrCorrupted), errors.Is(err, store.ErrNotFound):
				continue
			case err != nil:
				return err
			}
		}
		if _, err := c.db.RecheckArchive(ctx, m.id, m.key, true, m.damaged); err != nil {
			return err
		}
	}
	return outage
}
