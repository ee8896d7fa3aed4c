package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"time"

	"github.com/google/uuid"

	"codehub/internal/base/health"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

const (
	// outageRetry is the pause between two attempts while a dependency is not
	// available.
	outageRetry = time.Second
	// databaseTimeout limits every wait for the database.
	databaseTimeout = 30 * time.Second
	// manyRows is the number of rows whose first read in a term allocates far more than later
	// ones, so that its garbage is returned to the system at once.
	manyRows = 10_000
	// outageLogInterval is how often a continuing outage is logged again.
	outageLogInterval = 10 * time.Minute
)

// tick observes, judges and acts once. It returns when a decision is due next by
// time alone, and an error only if the rows cannot be read or written.
func (t *term) tick(ctx context.Context) (next time.Time, err error) {
	// Collect the results of finished executors first, so that the observation
	// below is never older than a result it is compared with.
	t.tickBegan = time.Now()
	t.lastJudged, t.judgedAt = t.judgedAt, time.Time{}
	t.removable = t.mayRemove()
	views := t.views(t.tickBegan)
	rows, err := t.read(ctx)
	if err != nil {
		return time.Now().Add(outageRetry), err
	}
	if err := t.checkClock(ctx); err != nil {
		return time.Now().Add(outageRetry), err
	}
	seen, err := t.observe(ctx)
	if err == nil {
		err = t.updateInventory(rows, seen)
	}
	if err != nil {
		if ctx.Err() == nil {
			t.runtimeDown(err)
		}
		return time.Now().Add(outageRetry), nil
	}
	t.runtimeUp()

	t.judgedAt = time.Now()
	now := t.clock.Of(t.judgedAt)
	p := plan{waitingSince: t.waitingSince}
	p.free, p.running = t.slots()
	mayFill, onBucket := t.mayFill(), false
	bucketSince, bucketUp := t.bucket.availableSince(time.Now())
	bucketSince = t.clock.Of(bucketSince)
	for i := range t.inventory.entries {
		e := &t.inventory.entries[i]
		if e.resting && !t.crashes.has(e.row.ID) {
			continue
		}
		s := t.judge(ctx, now, *e.row, views[e.row.ID], seen, bucketSince)
		e.recordRest(s)
		s = t.withhold(t.crashes.delayStart(s, t.cfg.Policy, now), mayFill, bucketUp)
		p.add(s, e.container, now)
		onBucket = onBucket || lifecycle.OnBucket(s.result.Row.Operation)
	}
	p.assign(now)
	t.waitingSince = p.waiting
	t.bucket.setBusy(onBucket)
	landed, err := t.write(ctx, p.decisions)
	if err != nil {
		return time.Now().Add(outageRetry), err
	}
	for i, s := range p.decisions {
		if landed[i] {
			t.carryOut(ctx, s, bucketUp)
		}
	}
	t.noteSpace()
	t.sweep(ctx, seen)
	t.sweepJobs(ctx, p.rowsAfter(rows, landed), seen)
	t.update(func(s *Status) { s.ObservedAt = time.Now() })
	return t.clock.Local(p.next), nil
}

// updateInventory merges the rows and the observation, and rejects an observation
// that lost too many volumes.
func (t *term) updateInventory(rows []*workspace.Workspace, seen observation) error {
	if t.newest.takeChanged() {
		t.inventory.judgedAt = time.Time{} // judge all
	}
	t.inventory.update(time.Now(), t.upSince, rows, seen)
	if lost, of := t.inventory.missingVolumes(); !t.cfg.AcceptVolumeLoss && of >= 5 && lost*5 > of {
		return fmt.Errorf("%d of %d volumes: %w", lost, of, errVolumesGone)
	}
	return nil
}

func (t *term) read(ctx context.Context) ([]*workspace.Workspace, error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	rows, err := t.rows.Candidates(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the workspaces: %w", err)
	}
	if !t.hasRead && len(rows) > manyRows {
		debug.FreeOSMemory()
	}
	t.hasRead = true
	return rows, nil
}

// decision is the judgement on one row, to be written and then carried out.
type decision struct {
	row       workspace.Workspace // as read
	seen      lifecycle.Input     // the input of the judgement
	result    lifecycle.Result
	container *runtime.Container
}

type plan struct {
	decisions []decision
	next      time.Time

	free         map[lane]int
	running      map[lane]map[string]int    // operations that occupy a slot, by owner
	wanting      map[lane][]int             // the decisions that need a slot
	waitingSince map[workspace.ID]time.Time // when a tick first refused the workspace a slot
	waiting      map[workspace.ID]time.Time // the same, as of the end of this tick
}

// rowsAfter returns rows with the decisions that were written.
func (p *plan) rowsAfter(rows []*workspace.Workspace, landed []bool) []*workspace.Workspace {
	if len(p.decisions) == 0 {
		return rows
	}
	next := make(map[workspace.ID]*workspace.Workspace, len(p.decisions))
	for i, s := range p.decisions {
		if landed[i] {
			next[s.row.ID] = &p.decisions[i].result.Row
		}
	}
	out := slices.Clone(rows)
	for i, row := range rows {
		if n, ok := next[row.ID]; ok {
			out[i] = n
		}
	}
	return out
}

func (p *plan) add(s decision, container *runtime.Container, now time.Time) {
	s.container = container
	if at := s.result.LookAgain; !at.IsZero() && (p.next.IsZero() || at.Before(p.next)) {
		p.next = at
	}
	if l, needs := s.needsSlot(); needs {
		if p.free[l] > 0 {
			if p.wanting == nil {
				p.wanting = map[lane][]int{}
			}
			p.wanting[l] = append(p.wanting[l], len(p.decisions))
			p.decisions = append(p.decisions, s)
			return
		}
		p.refuse(&s, now)
	}
	if s.acts() {
		p.decisions = append(p.decisions, s)
	}
}

// needsSlot reports whether the decision starts an executor that needs a free slot of the
// lane. A waiting operation occupies none, so it needs one to continue.
func (s *decision) needsSlot() (l lane, needs bool) {
	switch s.result.Action.Kind {
	case lifecycle.Claim:
		return laneOf(s.result.Row), true
	case lifecycle.Run:
		return laneOf(s.row), s.waited()
	}
	return 0, false
}

// refuse removes the action of a decision for which no slot is free. The conditions are
// written now and the claim is made by a later tick, so that its deadline does not run
// while it waits.
func (p *plan) refuse(s *decision, now time.Time) {
	if s.result.Action.Kind == lifecycle.Claim {
		s.result = withoutClaim(*s)
	} else {
		s.result.Action = lifecycle.Action{}
	}
	if p.waiting == nil {
		p.waiting = make(map[workspace.ID]time.Time, len(p.waitingSince))
	}
	p.waiting[s.row.ID] = p.since(s.row.ID, now)
}

// acts reports whether there is anything to write or to carry out.
func (s *decision) acts() bool {
	return s.result.Action.Kind != lifecycle.None || s.result.ApplyQueued || s.changed()
}

// waited reports whether the executor ended with a transient failure.
func (s *decision) waited() bool {
	f := s.seen.Work.Failure
	return f != nil && f.Passing
}

// withoutClaim keeps the new conditions and drops the claim.
func withoutClaim(s decision) lifecycle.Result {
	row := s.row
	row.Conditions = lifecycle.Conditions(s.seen)
	row.Phase = lifecycle.Phase(row, row.Conditions)
	return lifecycle.Result{Row: row, LookAgain: s.result.LookAgain}
}

func (s *decision) changed() bool {
	a, b := s.row, s.result.Row
	return a.Phase != b.Phase || a.RunningImage != b.RunningImage || a.RunningEnv != b.RunningEnv || a.RunningSize != b.RunningSize || a.HomeLimit != b.HomeLimit || a.ImageNewer != b.ImageNewer || !equalTo(a.ImagePin, b.ImagePin) || !a.Conditions.Equal(b.Conditions) || !a.Progress.Equal(b.Progress) ||
		s.result.ClearRecover || s.result.ClearCancel || s.result.ClearForceStop || s.result.ClearRestore
}

func (t *term) judge(ctx context.Context, now time.Time, row workspace.Workspace, v view, seen observation, bucketSince time.Time) decision {
	upSince := t.clock.Of(t.upSince)
	in := lifecycle.Input{
		Now: now, WaitsSince: t.clock.WaitsSince, Row: clampTimes(row, now, upSince, t.cfg.Policy), Obs: seen.of(row, t.isAnswered), Policy: t.cfg.Policy,
		UpSince: upSince, BucketUpSince: bucketSince, Newest: t.newest.of(row.ImageRef), ClaimID: newID(), Jitter: rand.Float64(),
	}
	if removes(row) && !t.removable {
		in.UpSince = now // a removal that waits for the mark comparison must not time out
	}
	mine := row.Operation != workspace.OpNone && v.opID == row.OpID
	if mine {
		in.Work = v.work
		in.Work.ProgressAt, in.Work.PreparedAt = t.clock.Of(v.work.ProgressAt), t.clock.Of(v.work.PreparedAt)
	}
	var pending bool
	in.Aside = t.asideFailure(row)
	in.Obs.Archive, in.Obs.Earlier, pending = t.archiveStates(ctx, row, v.ended, mine && v.ended.IsZero())
	if pending && mine && !v.ended.IsZero() && v.work.Failure == nil {
		// The archive is being checked; the executor must not run again before the
		// result is known.
		in.Work.Running = true
	}
	r := lifecycle.Judge(in)
	// Operations that take less than a second need no progress.
	if r.Row.Operation != workspace.OpNone && v.opID == r.Row.OpID && v.progress != nil &&
		r.Row.OpStartedAt != nil && now.Sub(*r.Row.OpStartedAt) > time.Second {
		r.Row.Progress = v.progress
	}
	return decision{row: row, seen: in, result: r}
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

func (t *term) write(ctx context.Context, steps []decision) ([]bool, error) {
	if len(steps) == 0 {
		return nil, nil
	}
	changes := make([]postgres.Change, len(steps))
	for i, s := range steps {
		changes[i] = postgres.Change{
			Seen: s.row, Next: s.result.Row, Claim: comparesRow(s),
			ClearRecover: s.result.ClearRecover, ClearCancel: s.result.ClearCancel, ClearForceStop: s.result.ClearForceStop,
			ClearRestore: s.result.ClearRestore, Audit: s.result.Audit,
		}
	}
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	landed, err := t.rows.Apply(ctx, changes)
	var refused *postgres.Refused
	if errors.As(err, &refused) { // the others have been written
		t.logRefusedRows(refused)
		return landed, nil
	}
	if err != nil {
		return nil, fmt.Errorf("write what changed: %w", err)
	}
	return landed, nil
}

// logRefusedRows logs the rows that the database refused, once per kind of error.
func (t *term) logRefusedRows(refused *postgres.Refused) {
	for id, err := range refused.Rows {
		if t.refusedRows[id] == nil {
			t.refusedRows[id] = (*health.Monitor)(nil).New(health.Config{Failing: "write workspace failed", Level: slog.LevelError, Log: t.cfg.Log})
		}
		t.refusedRows[id].Set(err, "workspace", id)
	}
}

// comparesRow reports whether the action depends on the whole row and must not be
// written if any of it has changed.
func comparesRow(s decision) bool {
	switch s.result.Action.Kind {
	case lifecycle.Claim, lifecycle.Settle, lifecycle.Recover, lifecycle.Cancel, lifecycle.Fail:
		// A Fail may rest on an observation between the storing of an archive and
		// the removal of its home, which looks like a lost archive.
		return true
	}
	return false
}

func (t *term) carryOut(ctx context.Context, s decision, bucketUp bool) {
	row, a := s.result.Row, s.result.Action
	log := t.cfg.Log.With("workspace", row.ID, "phase", row.Phase)
	switch a.Kind {
	case lifecycle.Claim:
		log.Info("operation claimed", "operation", a.Op)
		t.execute(ctx, row, s.container)
	case lifecycle.Run:
		if needsBucket(a.Op, row) && !bucketUp {
			break // waits for the bucket without occupying a slot
		}
		t.execute(ctx, row, s.container)
	case lifecycle.Complete:
		log.Info("operation complete", "operation", a.Op)
		if a.Op == workspace.OpArchiving || a.Op == workspace.OpDeleting {
			t.detachWork(row.ID, s.row.OpID)
		} else {
			t.cancelWork(row.ID, s.row.OpID)
		}
		t.Wake()
	case lifecycle.Cancel:
		log.Info("operation cancelled", "operation", a.Op)
		t.cancelWork(row.ID, s.row.OpID)
		t.Wake()
	case lifecycle.Fail:
		log.Warn("operation ended", "operation", a.Op, "reason", a.Reason, "message", a.Message, "attempt", row.ErrorCount)
		t.cancelWork(row.ID, s.row.OpID)
	case lifecycle.Recover:
		log.Info("recovery requested", "action", s.row.RecoverAction, "reason", a.Reason)
		t.Wake()
	case lifecycle.SetAside:
		t.setAside(ctx, row, s.seen.Obs.Volume.Claim)
	case lifecycle.RemoveContainer:
		k := s.container
		if k == nil {
			break
		}
		t.effect(ctx, "remove/"+k.ID, nil, func(ctx context.Context) bool {
			err := t.removeContainer(ctx, row.ID, k, 0)
			if err != nil && ctx.Err() == nil {
				log.Error("force stop failed", "err", err)
			}
			return err == nil
		})
	}
	if s.result.ApplyQueued {
		// ApplyQueued may wait for the lock on the limits, so it runs outside the
		// tick.
		t.effect(ctx, "queued/"+string(row.ID), t.queuedStates, func(ctx context.Context) bool {
			applied, err := t.cfg.Intents.ApplyQueued(ctx, row.ID)
			if err != nil && !errors.Is(err, context.Canceled) {
				log.Error("apply queued state failed", "err", err)
			}
			return applied
		})
	}
}

func (t *term) runtimeDown(err error) {
	t.upSince = time.Time{}
	t.docker.Set(err)
}

func (t *term) runtimeUp() {
	if t.upSince.IsZero() {
		t.upSince = time.Now()
	}
	t.docker.Set(nil)
}

var errVolumesGone = errors.New("too many volumes have vanished at once; check that Docker uses the right data directory, or the cluster the right namespace")
