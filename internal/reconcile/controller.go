// Package reconcile is the workspace controller: it observes what runs and
// what is stored, has it judged, writes what changed and carries out the
// operations (design §2–4). It is level-triggered: every tick starts from the
// present state, and a lost event costs time alone.
package reconcile

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/lifecycle"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// Rows is what the controller reads and writes through the leader's session.
type Rows interface {
	Candidates(ctx context.Context) ([]*workspace.Workspace, error)
	Apply(ctx context.Context, changes []postgres.Change) (landed []bool, err error)

	// The database's clock, as the last Candidates read it.
	Clock() postgres.Clock
	RestartWaits(ctx context.Context) error

	// What the executors of archives need; see postgres.Controller.
	Owner(ctx context.Context, id workspace.ID) (username string, err error)
	ClaimArchive(ctx context.Context, id workspace.ID, claim, key string) (ours bool, err error)
	StoreArchive(ctx context.Context, a postgres.Stored) (stored bool, err error)
	KeepHome(ctx context.Context, id workspace.ID, claim, homeClaim string) (kept bool, err error)

	// What belongs to no workspace.
	SaveOrphans(ctx context.Context, seen []postgres.Orphan) ([]postgres.Orphan, error)
	Owned(ctx context.Context, id workspace.ID) (owned bool, err error)

	Do(ctx context.Context, f func(ctx context.Context, conn *pgx.Conn) error) error
}

// Wishes puts queued wishes into force; they belong to the API layer, which
// alone writes what is desired (design §3.3).
type Wishes interface {
	ApplyQueued(ctx context.Context, id workspace.ID) (applied bool, err error)
}

// Routes is the proxy's side of a stop: the route is closed before the
// container is removed (design §8).
type Routes interface {
	CloseRoute(id workspace.ID)
}

// Config is what a controller is made of.
type Config struct {
	Runtime  runtime.Runtime
	Archives Archives // nil: nothing is archived, whatever Policy says
	Wishes   Wishes
	Routes   Routes
	Log      *slog.Logger
	Policy   lifecycle.Policy

	IdleInterval   time.Duration // between ticks when nothing happens
	ActiveInterval time.Duration // for ActiveFor after a wake, and while an operation runs
	ActiveFor      time.Duration
	MaxOperations  int // at once, image pulls and archives not counted
	MaxJobs        int // homes archived at once, and as many restored; 0: 4
	StopGrace      time.Duration

	LookWithin  time.Duration // a look at the backend that takes longer has failed; 0: 20 s
	ChoreWithin time.Duration // the same for what is done beside the operations; 0: 2 min

	// OrphanDelay is how long containers and jobs that belong to no workspace are
	// left alone after they were first seen, by whichever leader; 0: twice
	// IdleInterval.
	OrphanDelay time.Duration

	// AcceptVolumeLoss takes it as true when many volumes are gone at once,
	// instead of as a failed observation (design §2).
	AcceptVolumeLoss bool

	// MinFree is the part of a disk with homes that has to be free for anything
	// to be started or restored (design §11), such as 0.05; 0: no such bound.
	MinFree float64

	// MayRemove reports whether anything may be removed for good: until Docker and
	// the bucket were compared with the database, deletions and orphans wait.
	// nil: always.
	MayRemove func() bool

	// Step, for tests alone, is called by an executor whenever a step of an
	// archive, a restore or a removal is behind it: the moments at which a
	// crash leaves something different. See Steps.
	Step func(id workspace.ID, step string)
}

// Steps lists what Config.Step is told of, in the order of an undisturbed
// archive of a home, of one that has nothing in it, and of a restore.
func Steps() []string {
	return []string{
		"archive.begin", "archive.jobs-ended", "archive.claimed", "archive.job-started", "archive.job-done", "archive.verified", "archive.unchanged",
		"archive.before-store", "archive.stored", "archive.job-removed", "archive.looked", "archive.volume-removed",
		"empty.begin", "empty.jobs-ended", "empty.claimed", "empty.verified", "empty.before-store", "empty.stored",
		"restore.begin", "restore.jobs-ended", "restore.meta-read", "restore.volume-created", "restore.job-started", "restore.job-done",
		"restore.before-mark", "restore.marked",
	}
}

// DeleteSteps lists what Config.Step is told of when the volume of a deleted
// home is removed.
func DeleteSteps() []string { return []string{"delete.begin", "delete.volume-removed"} }

// Controller runs the workspaces of one installation. Only the leader's may
// run: Run is called once for each term.
type Controller struct {
	cfg  Config
	wake chan struct{}

	mu     sync.Mutex
	status Status
}

// Status is how the controller fares, for /readyz and the log.
type Status struct {
	Leading bool
	Backend string // empty: it answers; else the error
	Wall    string // empty: what has to stand around the containers stands
	Bucket  string // empty: it answers, or there is none; else the error
	Disk    string // empty: there is space; else which disk is how full
	Strange string // empty, or that suspiciously many containers belong to no workspace
	Tick    time.Time
}

// New makes a controller.
func New(cfg Config) *Controller {
	if cfg.LookWithin <= 0 {
		cfg.LookWithin = 20 * time.Second
	}
	if cfg.ChoreWithin <= 0 {
		cfg.ChoreWithin = 2 * time.Minute
	}
	if cfg.MaxJobs <= 0 {
		cfg.MaxJobs = 4
	}
	if cfg.Archives == nil {
		cfg.Policy.CanArchive = false
	}
	return &Controller{cfg: cfg, wake: make(chan struct{}, 1)}
}

// Wake asks for a tick now. It never blocks, and many wakes are one.
func (c *Controller) Wake() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Status tells how the controller fares.
func (c *Controller) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

func (c *Controller) update(f func(*Status)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.status)
}

// Run ticks until ctx ends or the session behind rows is gone, and then says
// why. Every executor has ended when it returns.
func (c *Controller) Run(ctx context.Context, rows Rows) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := &term{
		Controller: c,
		ctx:        ctx,
		rows:       rows,
		works:      map[workspace.ID]*work{},
		leaving:    map[workspace.ID]chan struct{}{},
		answered:   map[string]time.Time{},
		busy:       map[string]bool{},
		hands:      make(chan struct{}, chores),
		asides:     asides{slots: make(chan struct{}, asidesAtOnce)},
		settled:    map[workspace.ID]settlement{},
		endings:    map[string]time.Time{},
		bucket:     newBucket(),
		crashes:    crashes{},
		refused:    map[workspace.ID]string{},
		upSince:    time.Now(),
	}
	defer t.wait()
	defer cancel()
	c.update(func(s *Status) { *s = Status{Leading: true} })
	defer c.update(func(s *Status) { s.Leading = false })
	if c.cfg.Archives != nil {
		t.group.Go(func() { t.watchBucket(ctx) })
	}
	return t.loop(ctx)
}

// dear is how long a look takes after which the next one waits a while.
const dear = 25 * time.Millisecond

func (t *term) loop(ctx context.Context) error {
	var activeUntil time.Time
	for {
		began := time.Now()
		next, err := t.tick(ctx)
		took := time.Since(began)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && t.lost(ctx) {
			return err
		}
		t.skipped(err)
		now := time.Now()
		wait := t.cfg.IdleInterval
		if now.Before(activeUntil) || t.operating() {
			wait = t.cfg.ActiveInterval
		}
		if !next.IsZero() {
			wait = min(wait, max(next.Sub(now), 10*time.Millisecond))
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		case <-t.wake:
			timer.Stop()
			activeUntil = time.Now().Add(t.cfg.ActiveFor)
			// A backend that has much to do is not kept from it by being looked
			// at all the time.
			if took > dear && pause(ctx, min(3*took, t.cfg.ActiveInterval)-time.Since(now)) != nil {
				return nil
			}
		}
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lost reports whether the session that everything is written through is gone.
func (t *term) lost(ctx context.Context) bool {
	lost := false
	err := t.rows.Do(ctx, func(_ context.Context, conn *pgx.Conn) error {
		lost = conn.IsClosed()
		return nil
	})
	return lost || err != nil
}

// skipped takes note of a tick that the database refused on a session that
// stands: the loop goes on (design §4).
func (t *term) skipped(err error) {
	said := ""
	if err != nil {
		said = err.Error()
	}
	if said != "" && said != t.saidSkipped {
		t.cfg.Log.Error("the database refused what a look came to; the next one tries again", "err", err)
	}
	t.saidSkipped = said
}
