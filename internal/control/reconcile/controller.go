// Package reconcile is the workspace controller: each tick observes the containers
// and volumes, judges every workspace, writes what changed and carries out the
// operations. It is level-triggered: every tick starts from the current state, and
// a lost event only costs time. docs/architecture.md describes a tick,
// docs/states.md the states and operations.
package reconcile

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/base/health"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
	"codehub/internal/workspace/environ"
	"codehub/internal/workspace/imageref"
	"codehub/internal/workspace/lifecycle"
)

// Rows is what the controller reads and writes through the leader's session.
type Rows interface {
	Candidates(ctx context.Context) ([]*workspace.Workspace, error)
	Apply(ctx context.Context, changes []postgres.Change) (landed []bool, err error)

	// Clock returns the database's clock as of the last call to Candidates.
	Clock() postgres.Clock
	RestartWaits(ctx context.Context) error

	// For the executors; see postgres.Controller.
	Launch(ctx context.Context, id workspace.ID) (postgres.Launch, error)
	Owner(ctx context.Context, id workspace.ID) (username string, err error)
	ClaimArchive(ctx context.Context, id workspace.ID, claim, key string) (ours bool, err error)
	StoreArchive(ctx context.Context, a postgres.Stored) (stored bool, err error)
	KeepHome(ctx context.Context, id workspace.ID, claim, homeClaim string) (kept bool, err error)
	PlanUID(ctx context.Context, id workspace.ID, claim, homeClaim string, uid uint32) (home workspace.Home, recorded bool, err error)
	RecordUID(ctx context.Context, id workspace.ID, claim, homeClaim string, uid uint32) (home workspace.Home, recorded bool, err error)
	RecordFilling(ctx context.Context, id workspace.ID, claim, homeClaim string, fromImage bool) (recorded bool, err error)

	// Images of workspaces.
	UsedImages(ctx context.Context) ([]postgres.UsedImage, error)
	RecordImage(ctx context.Context, id workspace.ID, pin workspace.ImagePin) error

	// Resources without a workspace.
	SaveOrphans(ctx context.Context, seen []postgres.Orphan) ([]postgres.Orphan, error)
	Owned(ctx context.Context, id workspace.ID) (owned bool, err error)

	Do(ctx context.Context, f func(ctx context.Context, conn *pgx.Conn) error) error
}

// Intents applies queued desired states. It is implemented by the package that
// serves the API, the only one that writes desired states.
type Intents interface {
	ApplyQueued(ctx context.Context, id workspace.ID) (applied bool, err error)
}

// Routes closes the proxy's route to a container before the container is removed.
type Routes interface {
	CloseRoute(id workspace.ID)
}

// Config holds a controller's dependencies and settings.
type Config struct {
	Runtime  runtime.Runtime
	Archives Archives
	Intents  Intents
	Routes   Routes
	Log      *slog.Logger
	Policy   lifecycle.Policy
	Images   imageref.Allowed // that may be started
	Sizes    workspace.Sizes  // of containers
	// Conditions lists what keeps workspaces from changing; nil: it is only logged.
	Conditions *health.Monitor

	Settings
	StopGrace time.Duration
	// Backup makes a backup of a home before a step that replaces or removes it, for one of workspace's
	// Backup… causes, and returns when it has ended; nil: none is made.
	Backup func(ctx context.Context, row workspace.Workspace, cause string, step func(runtime.Progress))
	// Setups are what workspaces need beyond their images.
	Setups []Setup
	// Address returns the address at which browsers open a workspace; nil: unknown.
	Address func(workspace.ID) string

	ObserveTimeout  time.Duration // limit for one observation; 0: 20 s
	SideTaskTimeout time.Duration // limit for one side task, such as a probe or a removal; 0: 2 min

	// Backoff, for tests only, replaces the first pause after a failure that is retried
	// without being counted, such as one of the bucket; 0: 1 s.
	Backoff time.Duration

	// MinFree is the share of a disk with homes that must be free for anything to
	// be started or restored, such as 0.05; 0: no limit.
	MinFree float64

	// MayRemove reports whether data may be removed. Deletions and orphans wait
	// until the database's mark was compared with those in Docker and the bucket.
	// nil: always.
	MayRemove func() bool

	// Ticked is called after each tick that succeeded, with the time that it took; nil: it is not.
	Ticked func(took time.Duration)

	// Step, for tests only, is called by an executor after each step of an archive,
	// a restore or a removal: the points at which a crash leaves a different state.
	// See Steps.
	Step func(id workspace.ID, step string)
}

// Steps lists the values passed to Config.Step, in the order of an undisturbed
// archive of a home, of an empty archive, and of a restore.
func Steps() []string {
	return []string{
		"archive.begin", "archive.jobs-ended", "archive.claimed", "archive.job-started", "archive.job-done", "archive.verified", "archive.unchanged",
		"archive.before-store", "archive.stored", "archive.job-removed", "archive.checked", "archive.volume-removed",
		"empty.begin", "empty.jobs-ended", "empty.claimed", "empty.verified", "empty.before-store", "empty.stored",
		"restore.begin", "restore.jobs-ended", "restore.meta-read", "restore.volume-created", "restore.job-started", "restore.job-done",
		"restore.before-mark", "restore.marked",
	}
}

// OwnStep is the value passed to Config.Step when a home was given to its workspace's
// uid, and that is not recorded yet.
const OwnStep = "home.owned"

// SetupStep is the value passed to Config.Step when a container has started that waits for its
// setup.
const SetupStep = "start.before-setup"

// DeleteSteps lists the values passed to Config.Step while the volume of a deleted
// home is removed.
func DeleteSteps() []string { return []string{"delete.begin", "delete.volume-removed"} }

// Controller manages the workspaces of one installation. Only the leader calls Run,
// once per term.
type Controller struct {
	cfg  Config
	wake chan struct{}
	// imageCheck requests a check for newer images.
	imageCheck chan struct{}
	env        *environ.File // of the server, for all workspaces
	conditions

	mu     sync.Mutex
	latest *term // the last one that has begun
	status Status
}

// Status is the controller's health, for /readyz, the metrics and the
// administrators' page. Errors are empty while all is well.
type Status struct {
	Leading bool
	Runtime string // error of the last observation
	Wall    string // error of the last check of the network isolation
	Bucket  string // error of the last probe of the bucket
	Disk    string // the disk that is too full
	Orphans string // set if suspiciously many containers are orphans
	// TickedAt is the end of the last tick that succeeded; ObservedAt that of the last one in
	// which the runtime responded.
	TickedAt, ObservedAt time.Time
}

// New returns a controller.
func New(cfg Config) *Controller {
	if cfg.ObserveTimeout <= 0 {
		cfg.ObserveTimeout = 20 * time.Second
	}
	if cfg.SideTaskTimeout <= 0 {
		cfg.SideTaskTimeout = 2 * time.Minute
	}
	if cfg.MaxStorageJobs <= 0 {
		cfg.MaxStorageJobs = 4
	}
	if cfg.UIDs == (workspace.UIDRange{}) {
		cfg.UIDs = workspace.UIDRange{First: workspace.ArchivedUID, Last: workspace.ArchivedUID}
	}
	if cfg.Address == nil {
		cfg.Address = func(workspace.ID) string { return "" }
	}
	if cfg.Backup == nil {
		cfg.Backup = func(context.Context, workspace.Workspace, string, func(runtime.Progress)) {}
	}
	if cfg.Ticked == nil {
		cfg.Ticked = func(time.Duration) {}
	}
	c := &Controller{cfg: cfg, wake: make(chan struct{}, 1), imageCheck: make(chan struct{}, 1), env: &environ.File{Path: cfg.WorkspaceEnvFile}, conditions: newConditions(cfg)}
	c.conditions.await(cfg)
	return c
}

// StandBy is called when another server leads, whose controller checks what this one would.
func (c *Controller) StandBy() { c.conditions.reset() }

// Wake requests a tick now. It never blocks, and repeated calls are merged.
func (c *Controller) Wake() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// CheckImages requests a check for newer images now, unless such checks are off. It never
// blocks.
func (c *Controller) CheckImages() {
	select {
	case c.imageCheck <- struct{}{}:
	default:
	}
}

// Status returns the controller's health.
func (c *Controller) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.status
	s.Runtime, s.Wall, s.Bucket, s.Orphans = c.docker.Text(), c.wall.Text(), c.bucketAway.Text(), c.orphaned.Text()
	s.Disk = cmp.Or(c.disk.Text(), c.space.Text())
	return s
}

// update changes the status, unless a later term has begun: package lease abandons a term that
// does not return in time.
func (t *term) update(f func(*Status)) {
	c := t.Controller
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.latest == t {
		f(&c.status)
	}
}

// Run ticks until ctx ends or the session behind rows is lost, and returns the
// reason. All executors have ended when it returns.
func (c *Controller) Run(ctx context.Context, rows Rows) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := &term{
		Controller:   c,
		ctx:          ctx,
		rows:         rows,
		works:        map[workspace.ID]*work{},
		stopping:     map[workspace.ID]chan struct{}{},
		answered:     map[string]time.Time{},
		busy:         map[string]bool{},
		sideTasks:    make(chan struct{}, maxSideTasks),
		queuedStates: make(chan struct{}, maxQueuedStates),
		asides:       asides{slots: make(chan struct{}, maxAsideCopies)},
		settled:      map[workspace.ID]settlement{},
		jobRetryAt:   map[string]time.Time{},
		bucket:       newBucket(),
		newest:       newestImages{known: map[string]newestImage{}},
		crashes:      crashes{},
		refusedRows:  map[workspace.ID]*health.Condition{},
		upSince:      time.Now(),
	}
	c.mu.Lock()
	c.latest = t
	c.mu.Unlock()
	t.update(func(s *Status) { *s = Status{Leading: true}; c.conditions.reset(); c.conditions.await(c.cfg) })
	// Last: executors and side tasks still report until they end.
	defer t.update(func(*Status) { c.conditions.reset() })
	defer t.wait()
	defer cancel()
	defer t.update(func(s *Status) { s.Leading = false })
	t.group.Go(func() { t.watchBucket(ctx) })
	t.group.Go(func() { t.watchImages(ctx) })
	return t.loop(ctx)
}

// slowTick is the duration from which on a tick delays the next one.
const slowTick = 25 * time.Millisecond

func (t *term) loop(ctx context.Context) error {
	var activeUntil time.Time
	for {
		began := time.Now()
		next, err := t.tick(ctx)
		took := time.Since(began)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && t.sessionClosed(ctx) {
			return err
		}
		t.writes.Set(err)
		now := time.Now()
		if err == nil {
			t.cfg.Ticked(took)
			t.update(func(s *Status) { s.TickedAt = now })
		}
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
			// Back off after a slow tick: a busy runtime should not spend its time
			// on observations.
			if took > slowTick && pause(ctx, min(3*took, t.cfg.ActiveInterval)-time.Since(now)) != nil {
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

// sessionClosed reports whether the leader's database session is closed.
func (t *term) sessionClosed(ctx context.Context) bool {
	lost := false
	err := t.rows.Do(ctx, func(_ context.Context, conn *pgx.Conn) error {
		lost = conn.IsClosed()
		return nil
	})
	return lost || err != nil
}
