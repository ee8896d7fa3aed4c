package homebackup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"codehub/internal/archive"
	"codehub/internal/runtime"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
)

// drillTicks is how many ticks are between two looks for a backup to compare: each reads the list of all backups.
const drillTicks = 4

// drill restores backups into empty folders, one after the other, so that the last one of each home is compared within
// the interval. It returns when ctx ends.
func (t *term) drill(ctx context.Context) {
	failed := map[workspace.ID]time.Time{}
	for {
		if err := t.drillOne(ctx, failed); err != nil && ctx.Err() == nil {
			t.cfg.Log.Debug("compare a backup of a home failed; retrying", "err", err)
		}
		if !t.pause(ctx, drillTicks*t.cfg.Tick) {
			return
		}
	}
}

// drillOne compares the backup that is due. failed has the homes whose last attempt failed.
func (t *term) drillOne(ctx context.Context, failed map[workspace.ID]time.Time) error {
	state, err := t.rows.State(ctx, t.cfg.Drill)
	if err != nil {
		return err
	}
	t.metrics.set(state)
	t.damaged.Set(nil)
	if state.Damaged > 0 {
		t.damaged.Set(fmt.Errorf("the last backups of %d homes are damaged: %s", state.Damaged, strings.Join(state.DamagedIn, ", ")))
	}
	var except []workspace.ID
	for id, at := range failed {
		if time.Since(at) < retryAfter {
			except = append(except, id)
		} else {
			delete(failed, id)
		}
	}
	b, storage, due, err := t.rows.Drill(ctx, t.cfg.Drill, except)
	if err != nil || !due {
		return err
	}
	spec := runtime.JobSpec{Workspace: b.WorkspaceID, Claim: b.ID, Kind: runtime.JobDrill, Storage: storage, Key: b.Key}
	limited, cancel := t.limited(ctx)
	defer cancel()
	result, err := t.runJob(limited, spec, func(runtime.Progress) {}, func(spec *runtime.JobSpec) error {
		return t.cfg.Bucket.DrillJob(limited, b.Archive(), b.ID, spec)
	})
	damage := ""
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, archive.ErrCorrupted), errors.Is(err, archive.ErrUnrestorable), errors.Is(err, store.ErrNotFound):
		damage = withReason(err, damages)
	case err != nil:
		failed[b.WorkspaceID] = time.Now()
		return err
	case result.Stats.SHA256 != b.Digest:
		damage = withReason(fmt.Errorf("%w: the manifest has the digest %s, not %s", archive.ErrCorrupted, result.Stats.SHA256, b.Digest), damages)
	}
	t.metrics.compared(damage != "")
	if damage != "" {
		t.cfg.Log.Error("backup of a home is damaged", "workspace", b.WorkspaceID, "backup", b.ID, "key", b.Key, "damage", damage)
	}
	return t.rows.Verified(ctx, b.ID, damage)
}
