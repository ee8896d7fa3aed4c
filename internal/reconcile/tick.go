package reconcile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	"codehub/internal/lifecycle"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

const (
	// outage is how long what does not answer is left alone between two looks.
	outage = time.Second
	// answer bounds every wait for the database.
	answer = 30 * time.Second
	// remind is how often an outage that goes on is reported again.
	remind = 10 * time.Minute
)

// tick takes one look at everything. It returns when time alone will change a
// decision, and an error only when the rows cannot be read or written.
func (t *term) tick(ctx context.Context) (next time.Time, err error) {
	// What the executors have ended with is taken first: the observation below
	// is then never older than the result it is held against.
	t.began = time.Now()
	t.removable = t.mayRemove()
	views := t.views(t.began)
	rows, err := t.read(ctx)
	if err != nil {
		return time.Now().Add(outage), err
	}
	if err := t.checkClock(ctx); err != nil {
		return time.Now().Add(outage), err
	}
	seen, err := t.observe(ctx)
	if err == nil {
		err = t.takeRoll(rows, seen)
	}
	if err != nil {
		if ctx.Err() == nil {
			t.backendDown(err)
		}
		return time.Now().Add(outage), nil
	}
	t.backendUp()

	now := t.clock.Of(time.Now())
	p := plan{free: t.free()}
	mayFill, onBucket := t.mayFill(), false
	bucketSince, bucketUp := t.bucket.since(time.Now())
	bucketSince = t.clock.Of(bucketSince)
	for i := range t.roll.entries {
		e := &t.roll.entries[i]
		if e.rests && !t.crashes.concerns(e.row.ID) {
			continue
		}
		s := t.judge(ctx, now, *e.row, views[e.row.ID], seen, bucketSince)
		e.note(s)
		s = t.withhold(t.crashes.heed(s, t.cfg.Policy, now), mayFill, bucketUp)
		p.add(s, e.container, now)
		onBucket = onBucket || lifecycle.OnBucket(s.result.Row.Operation)
	}
	t.bucket.works(onBucket)
	landed, err := t.write(ctx, p.steps)
	if err != nil {
		return time.Now().Add(outage), err
	}
	for i, s := range p.steps {
		if landed[i] {
			t.carryOut(ctx, s, bucketUp)
		}
	}
	t.sayDisk()
	t.sweep(ctx, seen)
	t.sweepJobs(ctx, p.left(rows, landed), seen)
	t.update(func(s *Status) { s.Tick = time.Now() })
	return t.clock.Local(p.next), nil
}

// takeRoll holds what was observed against the rows.
func (t *term) takeRoll(rows []*workspace.Workspace, seen observation) error {
	t.roll.call(time.Now(), t.upSince, rows, seen)
	if lost, of := t.roll.lost(); !t.cfg.AcceptVolumeLoss && of >= 5 && lost*5 > of {
		return fmt.Errorf("%d of %d volumes: %w", lost, of, errVolumesGone)
	}
	return nil
}

func (t *term) read(ctx context.Context) ([]*workspace.Workspace, error) {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	rows, err := t.rows.Candidates(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the workspaces: %w", err)
	}
	return rows, nil
}

// step is a decision on one row, to be written and then carried out.
type step struct {
	row       workspace.Workspace // as it was read
	seen      lifecycle.Input     // what was decided on
	result    lifecycle.Result
	container *runtime.Container
}

type plan struct {
	steps []step
	free  map[lane]int
	next  time.Time
}

// left is rows as the plan has left them.
func (p *plan) left(rows []*workspace.Workspace, landed []bool) []*workspace.Workspace {
	if len(p.steps) == 0 {
		return rows
	}
	next := make(map[workspace.ID]*workspace.Workspace, len(p.steps))
	for i, s := range p.steps {
		if landed[i] {
			next[s.row.ID] = &p.steps[i].result.Row
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

func (p *plan) add(s step, container *runtime.Container, now time.Time) {
	s.container = container
	if at := s.result.LookAgain; !at.IsZero() && (p.next.IsZero() || at.Before(p.next)) {
		p.next = at
	}
	if s.result.Action.Kind == lifecycle.Claim {
		if l := laneOf(s.result.Action.Op); p.free[l] <= 0 {
			// No hands free: what was observed is written, the claim is made
			// by a later tick, so that no deadline runs while it waits.
			s.result = withoutClaim(s)
		} else {
			p.free[l]--
		}
	}
	if s.result.Action.Kind == lifecycle.Run && s.waited() {
		// What waited was in nobody's way, and lines up again.
		if l := laneOf(s.row.Operation); p.free[l] <= 0 {
			s.result.Action = lifecycle.Action{}
		} else {
			p.free[l]--
		}
	}
	if s.result.Action.Kind != lifecycle.None || s.result.ApplyQueued || s.changed() {
		p.steps = append(p.steps, s)
	}
}

// waited reports whether the executor has ended for a cause that passes.
func (s step) waited() bool {
	f := s.seen.Work.Failure
	return f != nil && f.Passing
}

// withoutClaim keeps what was observed and leaves the claim out.
func withoutClaim(s step) lifecycle.Result {
	row := s.row
	row.Conditions = lifecycle.Conditions(s.seen)
	row.Phase = lifecycle.Phase(row, row.Conditions)
	return lifecycle.Result{Row: row, LookAgain: s.result.LookAgain}
}

func (s step) changed() bool {
	a, b := s.row, s.result.Row
	return a.Phase != b.Phase || !a.Conditions.Equal(b.Conditions) || !equalProgress(a.Progress, b.Progress) ||
		s.result.ClearRecover || s.result.ClearCancel || s.result.ClearForceStop
}

func equalProgress(a, b *workspace.Progress) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

func (t *term) judge(ctx context.Context, now time.Time, row workspace.Workspace, v view, seen observation, bucketSince time.Time) step {
	upSince := t.clock.Of(t.upSince)
	in := lifecycle.Input{
		Now: now, WaitsSince: t.clock.WaitsSince, Row: plausible(row, now, upSince, t.cfg.Policy), Obs: seen.of(row, t.isAnswered), Policy: t.cfg.Policy,
		UpSince: upSince, BucketUpSince: bucketSince, ClaimID: newID(), Jitter: rand.Float64(),
	}
	if removes(row) && !t.removable {
		in.UpSince = now // it waits for the bucket's mark, and uses up none of its time
	}
	mine := row.Operation != workspace.OpNone && v.opID == row.OpID
	if mine {
		in.Work = v.work
		in.Work.ProgressAt, in.Work.PulledAt = t.clock.Of(v.work.ProgressAt), t.clock.Of(v.work.PulledAt)
	}
	var asked bool
	in.Aside = t.asideFailure(row)
	in.Obs.Archive, in.Obs.Earlier, asked = t.archives(ctx, row, v.ended, mine && v.ended.IsZero())
	if asked && mine && !v.ended.IsZero() && v.work.Failure == nil {
		// What the executor has done is being looked at: there is nothing to be
		// done again until that is known.
		in.Work.Running = true
	}
	r := lifecycle.Judge(in)
	// Progress is for people who wait: a start that is over in a second needs none.
	if r.Row.Operation != workspace.OpNone && v.opID == r.Row.OpID && v.progress != nil &&
		r.Row.OpStartedAt != nil && now.Sub(*r.Row.OpStartedAt) > time.Second {
		r.Row.Progress = v.progress
	}
	return step{row: row, seen: in, result: r}
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

func (t *term) write(ctx context.Context, steps []step) ([]bool, error) {
	if len(steps) == 0 {
		return nil, nil
	}
	changes := make([]postgres.Change, len(steps))
	for i, s := range steps {
		changes[i] = postgres.Change{
			Seen: s.row, Next: s.result.Row, Claim: compares(s),
			ClearRecover: s.result.ClearRecover, ClearCancel: s.result.ClearCancel, ClearForceStop: s.result.ClearForceStop,
		}
	}
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	landed, err := t.rows.Apply(ctx, changes)
	var refused *postgres.Refused
	if errors.As(err, &refused) { // the others have been written
		t.refuse(refused)
		return landed, nil
	}
	if err != nil {
		return nil, fmt.Errorf("write what changed: %w", err)
	}
	return landed, nil
}

// refuse reports rows that the database does not take, once for each reason.
func (t *term) refuse(refused *postgres.Refused) {
	for id, err := range refused.Rows {
		if said := err.Error(); t.refused[id] != said {
			t.refused[id] = said
			t.cfg.Log.Error("the database refuses what this workspace should become", "workspace", id, "err", err)
		}
	}
}

// compares says which actions rest on everything the row said, and must not
// land when any of it has changed since (design §3.4).
func compares(s step) bool {
	switch s.result.Action.Kind {
	case lifecycle.Claim, lifecycle.Settle, lifecycle.Recover, lifecycle.Cancel, lifecycle.Fail:
		// Fail too: a look that is older than the storing of an archive and
		// younger than the removal of its home takes it for lost.
		return true
	}
	return false
}

func (t *term) carryOut(ctx context.Context, s step, bucketUp bool) {
	row, a := s.result.Row, s.result.Action
	log := t.cfg.Log.With("workspace", row.ID, "phase", row.Phase)
	switch a.Kind {
	case lifecycle.Claim:
		log.Info("operation claimed", "operation", a.Op)
		t.execute(ctx, row, s.container)
	case lifecycle.Run:
		if asksBucket(a.Op, row) && !bucketUp {
			break // it waits; whoever comes in between is not in its way
		}
		t.execute(ctx, row, s.container)
	case lifecycle.Complete:
		log.Info("operation complete", "operation", a.Op)
		if a.Op == workspace.OpArchiving || a.Op == workspace.OpDeleting {
			t.letEnd(row.ID, s.row.OpID)
		} else {
			t.drop(row.ID, s.row.OpID)
		}
		t.Wake()
	case lifecycle.Cancel:
		log.Info("operation cancelled", "operation", a.Op)
		t.drop(row.ID, s.row.OpID)
		t.Wake()
	case lifecycle.Fail:
		log.Warn("operation ended", "operation", a.Op, "reason", a.Reason, "message", a.Message, "attempt", row.ErrorCount)
		t.drop(row.ID, s.row.OpID)
	case lifecycle.Recover:
		log.Info("recovery asked for", "action", s.row.RecoverAction, "still", a.Reason)
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
				log.Error("forced stop failed", "err", err)
			}
			return err == nil
		})
	}
	if s.result.ApplyQueued {
		// It waits for the limits' lock, and nobody else for it.
		t.effect(ctx, "queued/"+string(row.ID), t.hands, func(ctx context.Context) bool {
			applied, err := t.cfg.Wishes.ApplyQueued(ctx, row.ID)
			if err != nil && !errors.Is(err, context.Canceled) {
				log.Error("queued wish not applied", "err", err)
			}
			return applied
		})
	}
}

func (t *term) backendDown(err error) {
	t.upSince = time.Time{}
	gone := errors.Is(err, errVolumesGone)
	if t.Status().Backend == "" || gone != t.saidGone || time.Since(t.saidDown) > remind {
		t.saidDown, t.saidGone = time.Now(), gone
		t.cfg.Log.Error("the container backend cannot be observed; nothing is changed until it can", "err", err)
	}
	t.update(func(s *Status) { s.Backend = err.Error() })
}

func (t *term) backendUp() {
	if t.upSince.IsZero() {
		t.upSince = time.Now()
	}
	if t.Status().Backend != "" {
		t.cfg.Log.Info("the container backend is observed again")
		t.update(func(s *Status) { s.Backend = "" })
	}
}

var errVolumesGone = errors.New("too many volumes are gone at once: is this the right engine, with its usual data folder?")
