package reconcile

import (
	"context"
	"fmt"
	"time"

	"codehub/internal/archive"
	"codehub/internal/lifecycle"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// weigh has the disks that homes are on looked at, beside the tick: about once
// in every idle interval, and at every tick while one of them is too full
// (design §11).
func (t *term) weigh(ctx context.Context) {
	if t.cfg.MinFree <= 0 || time.Since(t.weighed) < t.cfg.IdleInterval && t.fullDisk() == "" {
		return
	}
	t.weighed = time.Now()
	t.effect(ctx, "disks", nil, func(ctx context.Context) bool {
		disks, err := t.cfg.Runtime.Disks(ctx)
		if err != nil {
			// Nothing follows from that; what was seen last counts.
			t.cfg.Log.Debug("the disks could not be looked at", "err", err)
			return t.noteDisk(t.fullDisk())
		}
		return t.noteDisk(tooFull(disks, t.cfg.MinFree))
	})
}

// tooFull says which disk has less left than it should, or nothing.
func tooFull(disks []runtime.Disk, least float64) string {
	for _, d := range disks {
		if d.Total > 0 && float64(d.Free) < least*float64(d.Total) {
			return fmt.Sprintf("%s: %.1f %% of the disk is free (%d MiB); nothing is started or restored below %.1f %%",
				d.Name, 100*float64(d.Free)/float64(d.Total), d.Free>>20, 100*least)
		}
	}
	return ""
}

// noteDisk takes note of what is too full, and reports whether that changes
// what may be started.
func (t *term) noteDisk(full string) (changed bool) {
	t.mu.Lock()
	was, first := t.full, !t.disksSeen
	t.full, t.disksSeen = full, true
	t.mu.Unlock()
	t.sayDisk()
	switch {
	case was == "" && full != "":
		t.cfg.Log.Error("too little space is left on a disk; nothing is started or restored", "disk", full)
	case was != "" && full == "":
		t.cfg.Log.Info("there is space on the disks again")
		t.resume()
	}
	return first || (was == "") != (full == "")
}

// sayDisk tells which disk is too full, or that the engine has said so of its
// own. That alone keeps nothing from being begun: it may be another disk than
// what is begun needs, and whatever finds no space waits for itself.
func (t *term) sayDisk() {
	t.mu.Lock()
	full, was, lacks := t.full, t.noSpace, false
	for _, w := range t.works {
		lacks = lacks || w.lacksSpace()
	}
	t.noSpace = lacks
	t.mu.Unlock()
	if full == "" && lacks {
		full = "the container engine says that it has no space left; what needs some waits"
	}
	t.update(func(s *Status) { s.Disk = full })
	switch {
	case lacks && !was:
		t.cfg.Log.Error("the container engine has no space left; what needs some waits")
	case was && !lacks:
		t.cfg.Log.Info("nothing waits for space any more")
	}
}

func (t *term) fullDisk() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.full
}

// mayFill reports whether anything may be begun that takes space. Nobody knows
// before the disks were looked at for the first time.
func (t *term) mayFill() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cfg.MinFree <= 0 || t.disksSeen && t.full == ""
}

// withhold leaves out a claim whose time has not come: of what takes space
// while a disk is full, and of what needs the bucket while that is not there.
// The workspace stays as it is, and open to all other wishes. Of an operation
// that is not run on before the bucket is there it says so.
func (t *term) withhold(s step, mayFill, bucketUp bool) step {
	op, row := s.result.Action.Op, s.result.Row
	switch s.result.Action.Kind {
	case lifecycle.Claim:
	case lifecycle.Run:
		if asksBucket(op, row) && !bucketUp {
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
	if fills && !mayFill || asksBucket(op, row) && !bucketUp {
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
		return fmt.Errorf("the bucket's mark has not been compared yet: %w", archive.ErrUnavailable)
	}
	return t.cfg.Runtime.RemoveVolume(ctx, row.ID, row.Home.Claim, progress)
}

// asksBucket reports whether the operation needs the bucket: a home that was
// given up is removed without a look at any archive.
func asksBucket(op workspace.Operation, row workspace.Workspace) bool {
	return lifecycle.OnBucket(op) && (!row.Home.State.Removable() || row.ArchiveKey != "")
}
