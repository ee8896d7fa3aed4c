package reconcile

import (
	"context"
	"fmt"
	"time"

	"codehub/internal/base/health"
	"codehub/internal/runtime"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// checkDisks reads the free space of the disks with homes, outside the tick: once
// per idle interval, and at every tick while one of them is too full.
func (t *term) checkDisks(ctx context.Context) {
	if t.cfg.MinFree <= 0 || time.Since(t.disksCheckedAt) < t.cfg.IdleInterval && t.fullDisk() == "" {
		return
	}
	t.disksCheckedAt = time.Now()
	t.effect(ctx, "disks", nil, func(ctx context.Context) bool {
		disks, err := t.cfg.Runtime.Disks(ctx)
		if err != nil {
			// The last known state remains.
			t.cfg.Log.Debug("disk check failed", "err", err)
			return t.recordFullDisk(t.fullDisk())
		}
		return t.recordFullDisk(tooFull(disks, t.cfg.MinFree))
	})
}

// tooFull describes the first disk with less free space or fewer free inodes than
// least, as a share of its size. It returns "" if there is none.
func tooFull(disks []runtime.Disk, least float64) string {
	for _, d := range disks {
		if d.Total > 0 && float64(d.Free) < least*float64(d.Total) {
			return fmt.Sprintf("%s: %.1f %% of the disk is free (%d MiB); nothing is started or restored below %.1f %%",
				d.Name, 100*float64(d.Free)/float64(d.Total), d.Free>>20, 100*least)
		}
		if d.Inodes > 0 && float64(d.FreeInodes) < least*float64(d.Inodes) {
			return fmt.Sprintf("%s: %.1f %% of the disk's inodes are free (%d); nothing is started or restored below %.1f %%",
				d.Name, 100*float64(d.FreeInodes)/float64(d.Inodes), d.FreeInodes, 100*least)
		}
	}
	return ""
}

// recordFullDisk records which disk is too full, if any, and reports whether that
// changes what may start.
func (t *term) recordFullDisk(full string) (changed bool) {
	t.mu.Lock()
	was, first := t.fullDiskDetail, !t.disksSeen
	t.fullDiskDetail, t.disksSeen = full, true
	t.mu.Unlock()
	t.disk.Set(health.Error(full))
	t.noteSpace()
	if was != "" && full == "" {
		t.resume()
	}
	return first || (was == "") != (full == "")
}

// noteSpace reports whether an operation waits because Docker, or the disk of the archives,
// has no space. That alone keeps no other operation from beginning: it may need another disk.
func (t *term) noteSpace() {
	t.mu.Lock()
	lacks, archives := false, 0
	var least *noRoom
	for _, w := range t.works {
		lacks = lacks || w.lacksSpace()
		if r := w.lacksRoom(); r != nil {
			archives++
			if least == nil || r.needs < least.needs {
				least = r
			}
		}
	}
	t.mu.Unlock()
	if least != nil {
		t.archives.Set(fmt.Errorf("archives that wait for space on their disk: %d; the smallest needs %d MiB, and %d MiB are available", archives, (least.needs+1<<20-1)>>20, least.free>>20))
	} else {
		t.archives.Set(nil)
	}
	var err error
	if lacks {
		err = errNoSpace
	}
	t.space.Set(err)
}

func (t *term) fullDisk() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.fullDiskDetail
}

// mayFill reports whether operations that need disk space may start. They wait
// until the first disk check.
func (t *term) mayFill() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cfg.MinFree <= 0 || t.disksSeen && t.fullDiskDetail == ""
}

// withhold removes the claim of an operation that cannot start yet: one that needs
// space while a disk is full, or the bucket while it is not available. The
// workspace stays as it is and accepts other requests. A claimed operation that
// waits for the bucket shows that as its progress.
func (t *term) withhold(s decision, mayFill, bucketUp bool) decision {
	op, row := s.result.Action.Op, s.result.Row
	switch s.result.Action.Kind {
	case lifecycle.Claim:
	case lifecycle.Run:
		if needsBucket(op, row) && !bucketUp {
			s.result.Row.Progress = &workspace.Progress{Step: runtime.StepWaitingBucket}
		}
		return s
	default:
		return s
	}
	if removes(row) && !t.removable {
		s.result = withoutClaim(s)
		return s
	}
	fills := op == workspace.OpProvisioning || op == workspace.OpRestoring || op == workspace.OpStarting
	if fills && !mayFill || needsBucket(op, row) && !bucketUp {
		s.result = withoutClaim(s)
	}
	return s
}

// removes reports whether the operation that row has claimed removes a home.
func removes(row workspace.Workspace) bool {
	return row.Operation == workspace.OpDeleting && row.Home.State == workspace.HomeDeleting
}

// mayRemove reports whether anything may be removed for good.
func (t *term) mayRemove() bool { return t.cfg.MayRemove == nil || t.cfg.MayRemove() }

// removeVolume removes row's home.
func (t *term) removeVolume(ctx context.Context, row workspace.Workspace, progress func(runtime.Progress)) error {
	if !t.mayRemove() {
		return fmt.Errorf("the bucket's mark has not been compared yet: %w", store.ErrUnavailable)
	}
	return t.cfg.Runtime.RemoveVolume(ctx, row.ID, row.Home.Claim, progress)
}

// needsBucket reports whether the operation needs the bucket. Removing a discarded
// home does not.
func needsBucket(op workspace.Operation, row workspace.Workspace) bool {
	return lifecycle.OnBucket(op) && (!row.Home.State.Removable() || row.ArchiveKey != "")
}
