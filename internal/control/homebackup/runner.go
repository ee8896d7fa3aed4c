// Package homebackup makes backups of homes in use while a server leads: on a schedule, on request and before
// steps that replace a home. It also decides which are kept, removes the others, and compares what is stored.
package homebackup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"codehub/internal/base/health"
	"codehub/internal/base/setting"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/storage/bucket"
	"codehub/internal/workspace"
)

// Schedule is when a Runner makes, removes and compares backups, as codehub serve declares it.
type Schedule struct {
	Interval time.Duration `name:"backup-interval" env:"CODEHUB_BACKUP_INTERVAL" min:"1m" or:"0" max:"720h" default:"1h" help:"Time between two backups of a home that is used; 0: only on request."`
	Keep     string        `name:"backup-keep" env:"CODEHUB_BACKUP_KEEP" default:"24h,7d,4w,6m" help:"Backups of each home that are kept: the latest of the last hours, days, weeks and months that have any."`
	Drill    time.Duration `name:"backup-drill-interval" env:"CODEHUB_BACKUP_DRILL_INTERVAL" min:"24h" or:"0" max:"8760h" default:"720h" help:"Time within which a backup of every home, and at least once a week that of the database, is restored for comparison; 0: none is."`
	MaxJobs  int           `name:"max-backup-jobs" env:"CODEHUB_MAX_BACKUP_JOBS" min:"1" max:"100" default:"2" help:"Backups of homes that are made at a time."`
}

// Resolve checks the rule of which backups are kept.
func (s *Schedule) Resolve() error {
	if _, err := workspace.ParseKeep(s.Keep); err != nil {
		return setting.Invalid("CODEHUB_BACKUP_KEEP", err.Error(), "give a rule such as 24h,7d,4w,6m")
	}
	return nil
}

// Config configures a Runner.
type Config struct {
	Schedule
	Runtime     runtime.Runtime
	Bucket      *bucket.Bucket
	DeleteGrace time.Duration
	// Ready reports whether removals are allowed yet; nil: always.
	Ready func() bool
	// Conditions lists homes without backups and damaged backups; nil: they are only logged.
	Conditions *health.Monitor
	// MaxBytes is the size of a user's backups from which none is made on schedule; 0: no limit.
	MaxBytes int64
	Log      *slog.Logger

	// The rest is for tests. Tick is the time between two passes over all homes; 0: 15 s.
	Tick time.Duration
	// Tidy is the time between two passes over all backups; 0: 1 h.
	Tidy time.Duration
	// Collect is the time between two removals of objects; 0: 24 h.
	Collect time.Duration
	// Age is after how long no job can need an expired backup; 0: 73 h.
	Age time.Duration
	// Within is how long a job may take; 0: 72 h. It is shorter than Age.
	Within time.Duration
	// Retry is the pause after an attempt at a requested backup that was interrupted; 0: 10 s. After one
	// of the schedule it is six times as long.
	Retry time.Duration
}

// Runner makes backups while this server leads.
type Runner struct {
	cfg                          Config
	wake                         chan struct{}
	term                         atomic.Pointer[term] // nil: this server does not lead
	damaged, late, full, removal *health.Condition
	unreadable                   *health.Condition
	metrics                      metrics
	lateHomes, fullHomes         atomic.Int64
}

// NewRunner returns a Runner.
func NewRunner(cfg Config) *Runner {
	orElse := func(d *time.Duration, value time.Duration) {
		if *d <= 0 {
			*d = value
		}
	}
	orElse(&cfg.Tick, 15*time.Second)
	orElse(&cfg.Tidy, time.Hour)
	orElse(&cfg.Collect, 24*time.Hour)
	orElse(&cfg.Age, 73*time.Hour)
	orElse(&cfg.Within, 72*time.Hour) // as long as the URLs of jobs are valid
	orElse(&cfg.Retry, 10*time.Second)
	if cfg.MaxJobs <= 0 {
		cfg.MaxJobs = 2
	}
	if cfg.Keep == "" {
		cfg.Keep = "24h,7d,4w,6m"
	}
	condition := func(name, failing, resolved string) *health.Condition {
		return cfg.Conditions.New(health.Config{Name: name, Failing: failing, Resolved: resolved, Level: slog.LevelError, Log: cfg.Log})
	}
	return &Runner{
		cfg: cfg, wake: make(chan struct{}, 1), metrics: newMetrics(),
		damaged:    condition("backup-damaged", "backups of homes are damaged", "no last backup of a home is damaged any more"),
		unreadable: condition("backup-damaged", "backups of homes cannot be read", "all backups of homes can be read again"),
		late:       condition("backups-late", "homes in use have no recent backup", "all homes in use have a recent backup"),
		full:       condition("backup-limit", "homes in use are not backed up because of the limit of a user", "all homes in use are backed up again"),
		removal:    condition("garbage-collection", "remove backups of homes failed; retrying", "backups of homes are removed again"),
	}
}

// Counts returns how many homes in use have no recent backup, and how many are not backed up on schedule
// because of the limit of their owner; both are 0 on a server that does not lead.
func (r *Runner) Counts() (late, overLimit int) {
	return int(r.lateHomes.Load()), int(r.fullHomes.Load())
}

// Wake makes the Runner read the requests now. It never blocks.
func (r *Runner) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// term is one term of this server as the leader.
type term struct {
	*Runner
	session postgres.Session
	rows    *postgres.HomeBackups
	began   time.Time
	group   sync.WaitGroup

	mu       sync.Mutex
	running  map[workspace.ID]*run
	attempts map[workspace.ID]int       // of the present backup, that were interrupted
	pausedTo map[workspace.ID]time.Time // by this process's clock
	watchers map[string]*watcher        // of backups before a step, by their ids
}

// run is a backup that is being made.
type run struct {
	backup, owner string
	counts        bool // against the limit
	cancel        context.CancelFunc
}

// watcher waits for a backup.
type watcher struct {
	step func(runtime.Progress)
	done chan struct{}
}

// wakeEvery bounds how often requests are looked for.
const wakeEvery = 200 * time.Millisecond

// Run makes backups through the leader's session until ctx ends. It retries failures.
func (r *Runner) Run(ctx context.Context, session postgres.Session) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := &term{
		Runner: r, session: session, rows: postgres.NewHomeBackups(session), began: time.Now(),
		running: map[workspace.ID]*run{}, attempts: map[workspace.ID]int{}, pausedTo: map[workspace.ID]time.Time{}, watchers: map[string]*watcher{},
	}
	defer func() {
		r.term.CompareAndSwap(t, nil) // a term that was abandoned ends after the next has begun
		r.damaged.Reset()
		r.unreadable.Reset()
		r.late.Reset()
		r.full.Reset()
		r.removal.Reset()
		r.lateHomes.Store(0)
		r.fullHomes.Store(0)
	}()
	defer t.group.Wait()
	defer cancel()
	for {
		err := t.begin(ctx)
		if err == nil {
			break
		}
		if !t.pause(ctx, r.cfg.Tick) {
			return nil
		}
		r.cfg.Log.Debug("begin with the backups of homes failed; retrying", "err", err)
	}
	r.term.Store(t)
	t.group.Go(func() { t.tidy(ctx) })
	if r.cfg.Drill > 0 {
		t.group.Go(func() { t.drill(ctx) })
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		requests := false
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			timer.Reset(r.cfg.Tick)
		case <-r.wake:
			requests = true
		}
		if err := t.look(ctx, requests); err != nil && ctx.Err() == nil {
			r.cfg.Log.Warn("look for homes to back up failed; retrying", "err", err)
		}
		if !t.pause(ctx, wakeEvery) {
			return nil
		}
	}
}

func (t *term) pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// begin removes the jobs of the term before, whose results no server would record, and lets requests wait again.
func (t *term) begin(ctx context.Context) error {
	jobs, err := t.cfg.Runtime.Jobs(ctx)
	if err != nil {
		return err
	}
	for _, j := range jobs {
		if j.Kind == runtime.JobBackup || j.Kind == runtime.JobDrill {
			if err := t.cfg.Runtime.RemoveJob(ctx, j.ID); err != nil {
				return err
			}
		}
	}
	return t.rows.Restart(ctx)
}

// look begins the backups that are due, or only those that wait.
func (t *term) look(ctx context.Context, requests bool) error {
	list, now, err := t.rows.Candidates(ctx, requests, "")
	if err != nil {
		return err
	}
	v := view{now: now, interval: t.cfg.Interval, most: t.cfg.MaxJobs, running: map[workspace.ID]string{}, busy: map[workspace.ID]bool{}, awaited: map[string]bool{}, pausedTo: map[workspace.ID]time.Time{}}
	if t.cfg.MaxBytes > 0 && !requests {
		if v.full, err = t.rows.FullOwners(ctx, t.cfg.MaxBytes); err != nil {
			return err
		}
	}
	t.mu.Lock()
	for id, r := range t.running {
		v.busy[id] = true
		if r.counts {
			v.running[id] = r.owner
		}
	}
	for id := range t.watchers {
		v.awaited[id] = true
	}
	for id, at := range t.pausedTo {
		if until := time.Until(at); until > 0 {
			v.pausedTo[id] = now.Add(until)
		} else {
			delete(t.pausedTo, id)
		}
	}
	t.mu.Unlock()
	p := decide(v, list)
	for _, c := range p.refused {
		if err := t.refuse(ctx, c); err != nil {
			return err
		}
	}
	for _, d := range p.due {
		t.start(ctx, d, now)
	}
	if !requests {
		t.report(p.late)
		t.reportFull(p.full)
	}
	return nil
}

// reportFull lists homes that are not backed up on schedule because of the limit of their owner.
func (t *term) reportFull(full []workspace.ID) {
	t.fullHomes.Store(int64(len(full)))
	if len(full) == 0 {
		t.full.Set(nil)
		return
	}
	t.full.Set(fmt.Errorf("the owners of %d homes in use have reached CODEHUB_MAX_BACKUP_BYTES_PER_USER, such as those of the workspaces %s", len(full), some(full)))
}

// some names up to five workspaces.
func some(ids []workspace.ID) string {
	names := make([]string, 0, 5)
	for _, id := range ids[:min(len(ids), 5)] {
		names = append(names, string(id))
	}
	return strings.Join(names, ", ")
}

// report lists homes without a recent backup. A new leader first gets the time to make them.
func (t *term) report(late []workspace.ID) {
	if len(late) == 0 {
		t.lateHomes.Store(0)
		t.late.Set(nil)
		return
	}
	if time.Since(t.began) < min(max(t.cfg.Interval, leastLate/3), leastLate) {
		return
	}
	t.lateHomes.Store(int64(len(late)))
	t.late.Set(fmt.Errorf("%d homes in use have no recent backup, such as those of the workspaces %s", len(late), some(late)))
}

// refuse ends a request for a home that does not exist any more. One that no user made is only removed.
func (t *term) refuse(ctx context.Context, c candidate) error {
	defer t.ended(c.PresentID)
	if c.PresentCause != workspace.BackupRequested {
		return t.rows.Drop(ctx, c.PresentID)
	}
	return t.rows.Fail(ctx, c.PresentID, msgNoHome)
}

// start makes a backup in a goroutine of its own.
func (t *term) start(ctx context.Context, d due, now time.Time) {
	id := d.PresentID
	if id == "" {
		v7, err := uuid.NewV7()
		if err != nil {
			t.cfg.Log.Error("make the id of a backup failed", "err", err)
			return
		}
		id = v7.String()
	}
	term := ctx
	ctx, cancel := context.WithCancel(ctx)
	t.mu.Lock()
	t.running[d.ID] = &run{backup: id, owner: d.OwnerID, counts: !d.step, cancel: cancel}
	t.mu.Unlock()
	t.group.Go(func() {
		defer cancel()
		b := workspace.Backup{ID: id, WorkspaceID: d.ID, Cause: d.cause, Key: t.cfg.Bucket.ManifestKey(d.ID, now, id), BegunAt: &now}
		if err := t.backUp(ctx, d, b); err != nil && term.Err() == nil {
			t.cfg.Log.Warn("backup of a home interrupted; retrying", "workspace", d.ID, "backup", id, "err", err)
			t.delay(d.ID, 6*t.cfg.Retry)
			if err := t.rows.Wait(term, id); err != nil {
				t.cfg.Log.Debug("defer a backup of a home failed", "workspace", d.ID, "err", err)
			}
		}
		t.mu.Lock()
		delete(t.running, d.ID)
		t.mu.Unlock()
		t.ended(id)
		t.Wake()
	})
}

// delay lets the next backup of a home begin later.
func (t *term) delay(id workspace.ID, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pausedTo[id] = time.Now().Add(d)
}

// interrupted counts an attempt at a backup of a home that was interrupted, and reports whether another
// one makes sense.
func (t *term) interrupted(id workspace.ID) (again bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attempts[id]++
	return t.attempts[id] < maxAttempts
}

// completed begins the count of attempts again.
func (t *term) completed(id workspace.ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.attempts, id)
}

// ended informs those who wait for a backup.
func (t *term) ended(backup string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.watchers[backup]; w != nil {
		close(w.done)
		delete(t.watchers, backup)
	}
}

// stepOf returns whom a backup informs of its progress.
func (t *term) stepOf(backup string) func(runtime.Progress) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.watchers[backup]; w != nil {
		return w.step
	}
	return func(runtime.Progress) {}
}

// beforeWithin is how long a step of an operation waits for its backup.
const beforeWithin = 10 * time.Minute

// Before makes a backup of row's home before a step that replaces or removes it, unless the home is as its last backup
// has it, or backups are off and the step is no restore, and returns once the backup has ended, or after 10 minutes. A failure is logged:
// the step does not depend on it.
func (r *Runner) Before(ctx context.Context, row workspace.Workspace, cause string, step func(runtime.Progress)) {
	t := r.term.Load()
	if t == nil || row.Home.State != workspace.HomeLive {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, beforeWithin)
	defer cancel()
	if err := t.before(ctx, row, cause, step); err != nil && !errors.Is(err, context.Canceled) {
		r.cfg.Log.Warn("no backup of a home before a step", "workspace", row.ID, "cause", cause, "err", err)
	}
}

func (t *term) before(ctx context.Context, row workspace.Workspace, cause string, step func(runtime.Progress)) error {
	list, _, err := t.rows.Candidates(ctx, false, row.ID)
	if err != nil || len(list) == 0 {
		return err
	}
	off := cause != workspace.BackupRestore && (view{interval: t.cfg.Interval}).every(list[0]) <= 0
	if off || !used(list[0]) {
		return nil
	}
	id, err := uuid.NewV7()
	if err != nil {
		return err
	}
	backup, err := t.request(ctx, row.ID, id.String(), cause, step)
	if err != nil {
		return err
	}
	t.mu.Lock()
	w := t.watchers[backup]
	t.mu.Unlock()
	if w == nil { // it has ended
		return nil
	}
	t.Wake()
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	delete(t.watchers, backup)
	if r := t.running[row.ID]; r != nil && r.backup == backup {
		r.cancel()
	}
	t.mu.Unlock()
	err = context.Cause(ctx)
	if backup == id.String() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, t.rows.Drop(clean, backup))
	}
	return err
}

// request adds a backup with a watcher, or a watcher of the one that waits or runs.
func (t *term) request(ctx context.Context, id workspace.ID, backup, cause string, step func(runtime.Progress)) (present string, err error) {
	t.mu.Lock()
	if r := t.running[id]; r != nil {
		defer t.mu.Unlock()
		t.watch(r.backup, step)
		return r.backup, nil
	}
	t.watch(backup, step)
	t.mu.Unlock()
	present, err = t.rows.Request(ctx, id, backup, cause)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil || present != backup {
		delete(t.watchers, backup)
	}
	if err == nil && present != backup { // of a request
		t.watch(present, step)
	}
	return present, err
}

// watch adds a watcher. The caller holds t.mu.
func (t *term) watch(backup string, step func(runtime.Progress)) {
	if t.watchers[backup] == nil {
		t.watchers[backup] = &watcher{step: step, done: make(chan struct{})}
	}
}
