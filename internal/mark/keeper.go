package mark

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"codehub/internal/bucket"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// Runtime is where marks are kept beside the homes; runtime.Runtime is it.
type Runtime interface {
	Mark(ctx context.Context) (m workspace.Mark, found bool, err error)
	SetMark(ctx context.Context, m workspace.Mark) error
}

// Config is what a Keeper is made of.
type Config struct {
	Runtime Runtime
	Bucket  *bucket.Bucket
	// Files tells the files of the database from copies of them, where they are
	// within reach; nil or "": they are not.
	Files func() string
	Log   *slog.Logger

	Every  time.Duration // between two marks; 0: 20 s
	Watch  time.Duration // for how long the mark of a possible original is watched; 0: 30 s
	Look   time.Duration // between two looks at Docker while leading; 0: 5 s
	Retry  time.Duration // after something did not answer; 0: 1 s
	Within time.Duration // for one answer of Docker or the bucket; 0: 20 s
}

// Keeper compares and leaves the marks of the server that leads.
type Keeper struct {
	cfg  Config
	wake chan struct{}

	mu     sync.Mutex
	status Status
}

// Status is the state of the marks on the leader.
type Status struct {
	Hold      string // reason for the hold; empty: not on hold
	Docker    string // why Docker's mark could not be read or stored; empty: it could
	Watching  bool   // it checks whether another server leads
	MayRemove bool   // Docker and bucket were both compared in this term
}

// New makes a Keeper.
func New(cfg Config) *Keeper {
	defaults := func(d *time.Duration, to time.Duration) {
		if *d <= 0 {
			*d = to
		}
	}
	defaults(&cfg.Every, 20*time.Second)
	defaults(&cfg.Watch, 30*time.Second)
	defaults(&cfg.Look, 5*time.Second)
	defaults(&cfg.Retry, time.Second)
	defaults(&cfg.Within, 20*time.Second)
	return &Keeper{cfg: cfg, wake: make(chan struct{}, 1)}
}

// Wake has the Keeper look soon whether a new mark is wanted. It never blocks.
func (k *Keeper) Wake() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Status returns the state of the marks.
func (k *Keeper) Status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status
}

// MayRemove reports whether anything may be removed: Docker and the bucket were
// both compared since this server leads.
func (k *Keeper) MayRemove() bool { return k.Status().MayRemove }

func (k *Keeper) update(f func(*Status)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f(&k.status)
}

// errForeign: another database leads.
type errForeign struct{ why string }

func (e *errForeign) Error() string { return e.why }

// Run runs act for as long as this database leads here, with a context that ends
// when it does not any more, and nothing while it is on hold. It returns when
// ctx ends, act returns by itself, or the session is gone.
func (k *Keeper) Run(ctx context.Context, session postgres.Session, act func(ctx context.Context) error) error {
	k.update(func(s *Status) { *s = Status{} })
	defer k.update(func(s *Status) { *s = Status{} })
	t := &term{Keeper: k, db: postgres.NewMarks(session)}
	if err := t.identify(ctx); err != nil {
		return err
	}
	for {
		err := t.begin(ctx)
		if err == nil {
			err = t.lead(ctx, act)
		}
		var foreign *errForeign
		switch {
		case ctx.Err() != nil:
			return nil
		case !errors.As(err, &foreign):
			return err
		}
		if err := t.hold(ctx, foreign.why); err != nil && ctx.Err() == nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// Move compares once and leaves a new mark, for commands and tests that act
// without a Run. The error is of errForeign's kind on a foreign mark.
func (k *Keeper) Move(ctx context.Context, session postgres.Session) error {
	t := &term{Keeper: k, db: postgres.NewMarks(session)}
	if err := t.identify(ctx); err != nil {
		return err
	}
	return t.begin(ctx)
}

// IsForeign reports whether err says that another database led last.
func IsForeign(err error) bool {
	var foreign *errForeign
	return errors.As(err, &foreign)
}

// term is one term of leadership.
type term struct {
	*Keeper
	db       *postgres.Marks
	identity string
	moved    time.Time // when the last mark was stored; by this process's clock
	owed     bool      // the bucket does not have the last mark
	compared bool      // the bucket
	read     bool      // stored is known
	stored   string    // id of the mark that the bucket had last; empty: it had none
	tookOver bool      // by an administrator's decision, before the bucket responded
	said     string
}

func (t *term) identify(ctx context.Context) error {
	id, err := t.db.Identity(ctx)
	if err != nil {
		return err
	}
	if t.cfg.Files != nil {
		if files := t.cfg.Files(); files != "" {
			id += "/" + files
		}
	}
	t.identity = id
	return nil
}

// within bounds one answer from outside.
func (t *term) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, t.cfg.Within)
}

func (t *term) docker(ctx context.Context) (m workspace.Mark, found bool, err error) {
	bounded, cancel := t.within(ctx)
	defer cancel()
	m, found, err = t.cfg.Runtime.Mark(bounded)
	if err != nil {
		err = fmt.Errorf("read Docker's mark: %w", err)
	}
	return m, found, err
}

func (t *term) bucket(ctx context.Context) (m workspace.Mark, found bool, err error) {
	bounded, cancel := t.within(ctx)
	defer cancel()
	return Read(bounded, t.cfg.Bucket)
}

// patiently calls f until Docker answers. Only the session's errors and a
// foreign mark end it.
func (t *term) patiently(ctx context.Context, f func() error) error {
	for {
		err := f()
		var outside *outsideError
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.As(err, &outside):
			t.update(func(s *Status) { s.Docker = "" })
			t.said = ""
			return err
		}
		t.update(func(s *Status) { s.Docker = outside.Error() })
		if t.said != outside.Error() {
			t.said = outside.Error()
			t.cfg.Log.Error("read Docker's mark failed; waiting", "err", outside)
		}
		if err := pause(ctx, t.cfg.Retry); err != nil {
			return err
		}
	}
}

// outsideError is an error of Docker's, not of the database's.
type outsideError struct{ error }

func (e *outsideError) Unwrap() error { return e.error }

// begin compares before anything is done, and leaves the term's first mark.
func (t *term) begin(ctx context.Context) error {
	t.compared, t.owed = false, false
	t.update(func(s *Status) { s.MayRemove = false })
	if err := t.patiently(ctx, func() error { return t.compare(ctx) }); err != nil {
		return err
	}
	t.update(func(s *Status) { s.Hold, s.MayRemove = "", t.compared })
	return nil
}

// compare is one comparison of everything, and the mark that follows from it.
func (t *term) compare(ctx context.Context) error {
	state, err := t.db.State(ctx)
	if err != nil {
		return err
	}
	docker, found, err := t.docker(ctx)
	if err != nil {
		return &outsideError{err}
	}
	theirs, kept, unread := t.bucket(ctx)
	if unread != nil {
		t.cfg.Log.Warn("read the bucket's mark failed; removals paused", "err", unread)
	}
	if t.compared = unread == nil; t.compared {
		t.read, t.stored = true, theirs.ID
	}
	if state.TakeOver {
		floor := max(state.Serial, docker.Serial)
		if theirs.Serial < unreadable {
			floor = max(floor, theirs.Serial)
		}
		t.cfg.Log.Warn("taking over")
		if err := t.db.Supersede(ctx, docker.ID, theirs.ID); err != nil {
			return err
		}
		t.tookOver = unread != nil
		// Far above what a server that still leads adds until it notices.
		return t.leave(ctx, floor+999)
	}
	inDocker, err := Compare(ctx, t.db, state, docker, found)
	if err != nil {
		return err
	}
	inBucket, err := Compare(ctx, t.db, state, theirs, kept)
	if err != nil {
		return err
	}
	checked := unread == nil
	switch {
	case inDocker == Foreign:
		return &errForeign{foreignIn(reasonDocker, docker)}
	case checked && inBucket == Foreign:
		return &errForeign{foreignIn(reasonArchives, theirs)}
	case state.Hold != "" && (inDocker != Same || unread != nil || inBucket != Same):
		return &errForeign{state.Hold}
	}
	if err := t.watch(ctx, state, docker, inDocker, theirs, checked && inBucket == Same); err != nil {
		return err
	}
	if state.Hold != "" {
		if err := t.db.Release(ctx); err != nil {
			return err
		}
	}
	lost := state.Serial > 0 && (inDocker != Same || checked && inBucket != Same) || state.Run != "" && checked && inBucket != Same
	if lost {
		t.cfg.Log.Warn("marks missing or stale; waits restarted", "docker", inDocker, "bucket", inBucket)
		if err := t.db.RestartWaits(ctx); err != nil {
			return err
		}
	}
	if state.NextRun != "" && docker.ID == state.NextRun {
		if err := t.finish(ctx, docker); err != nil { // it was cut off there
			return err
		}
	}
	err = t.leave(ctx, 0)
	if inDocker == Same && docker.Identity == t.identity && refused(err) {
		// A full disk, say: what makes room must not wait for a new mark.
		t.cfg.Log.Warn("store Docker's mark failed; retrying", "err", err)
		return nil
	}
	return err
}

// refused reports whether Docker answered and did not store a mark.
func refused(err error) bool {
	var outside *outsideError
	return errors.As(err, &outside) && !errors.Is(err, runtime.ErrUnreachable)
}

func foreignIn(reason string, m workspace.Mark) string {
	at := ""
	if !m.At.IsZero() {
		at = fmt.Sprintf(reasonAt, m.At.UTC().Format("2006-01-02 15:04:05 UTC"))
	}
	return reason + at
}

// watch finds out whether a server leads on the database that this one may be a
// copy of: it would replace its mark meanwhile.
func (t *term) watch(ctx context.Context, state postgres.MarkState, docker workspace.Mark, in Verdict, theirs workspace.Mark, kept bool) error {
	last := theirs
	switch {
	case in == Same:
		last = docker
	case !kept:
		return nil
	}
	if last.Identity == "" || last.Identity == t.identity {
		return nil
	}
	t.cfg.Log.Info("database was moved, restored or copied; checking for another server", "for", t.cfg.Watch)
	t.update(func(s *Status) { s.Watching = true })
	defer t.update(func(s *Status) { s.Watching = false })
	for end := time.Now().Add(t.cfg.Watch); time.Now().Before(end); {
		if err := pause(ctx, min(t.cfg.Retry, t.cfg.Watch)); err != nil {
			return err
		}
		now, found, err := t.docker(ctx)
		if err != nil {
			return &outsideError{err}
		}
		// A mark that was announced may arrive late. An original leaves more.
		if found && now.ID != docker.ID && now.ID != state.NextRun {
			return &errForeign{reasonOriginal}
		}
		if !kept {
			continue
		}
		if now, found, err := t.bucket(ctx); err == nil && found && !slices.Contains([]string{theirs.ID, docker.ID, state.NextRun}, now.ID) {
			return &errForeign{reasonOriginalArchives}
		}
	}
	return nil
}

// leave leaves a new mark with a serial above floor: announced in the database,
// stored in Docker and the bucket, and then the database's last one. A bucket
// that does not answer gets it later.
func (t *term) leave(ctx context.Context, floor int64) error {
	m, err := t.db.Announce(ctx, floor)
	if err != nil {
		return err
	}
	set := func() error {
		m.Identity = t.identity
		bounded, cancel := t.within(ctx)
		defer cancel()
		return t.cfg.Runtime.SetMark(bounded, m)
	}
	err = set()
	if errors.Is(err, runtime.ErrConflict) {
		// A power cut has left something by the mark's name that is no mark: the
		// next one has another name.
		if m, err = t.db.Announce(ctx, m.Serial); err != nil {
			return err
		}
		err = set()
	}
	if err != nil {
		return &outsideError{fmt.Errorf("store Docker's mark: %w", err)}
	}
	t.moved = time.Now()
	return t.finish(ctx, m)
}

// finish makes the mark that Docker has the bucket's and the database's.
func (t *term) finish(ctx context.Context, m workspace.Mark) error {
	t.owed = true
	if t.compared {
		bounded, cancel := t.within(ctx)
		err := Write(bounded, t.cfg.Bucket, m)
		cancel()
		if err != nil {
			t.cfg.Log.Debug("store the bucket's mark failed; retrying", "err", err)
		}
		if t.owed = err != nil; err == nil {
			t.read, t.stored = true, m.ID
		}
	}
	return t.db.Settle(ctx, m.ID)
}

// lead runs act, and leaves marks beside it, until another database leads.
func (t *term) lead(ctx context.Context, act func(ctx context.Context) error) error {
	acting, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- act(acting) }()
	look := time.NewTicker(t.cfg.Look)
	defer look.Stop()
	for {
		due := false
		select {
		case err := <-ended:
			return err
		case <-look.C:
			due = true
		case <-t.wake:
		}
		if acting.Err() != nil {
			return <-ended
		}
		if err := t.look(ctx, due); err != nil && ctx.Err() == nil {
			var outside *outsideError
			if errors.As(err, &outside) {
				// The breaker and the controller say that Docker is away; no move is
				// made by anybody meanwhile.
				t.cfg.Log.Debug("read Docker's mark failed; retrying", "err", err)
				continue
			}
			stop()
			<-ended
			return err
		}
	}
}

// look sees whether this database still leads, and leaves a new mark if it is
// time or one is wanted.
func (t *term) look(ctx context.Context, due bool) error {
	state, err := t.db.State(ctx)
	if err != nil {
		return err
	}
	if !due && !state.Wanted {
		return nil
	}
	docker, found, err := t.docker(ctx)
	if err != nil {
		return &outsideError{err}
	}
	verdict, err := Compare(ctx, t.db, state, docker, found)
	if err != nil {
		return err
	}
	if verdict == Foreign {
		return &errForeign{foreignIn(reasonDocker, docker)}
	}
	if t.compared && verdict != Missing && !state.Wanted && !t.owed && time.Since(t.moved).Abs() < t.cfg.Every {
		return nil
	}
	// Every time before the bucket's mark is replaced: a server with another Docker
	// may have the same archives.
	if err := t.compareBucket(ctx, state); err != nil {
		return err
	}
	if !t.compared && verdict != Missing && !state.Wanted && time.Since(t.moved).Abs() < t.cfg.Every {
		return nil
	}
	if state.NextRun != "" && docker.ID == state.NextRun {
		if err := t.finish(ctx, docker); err != nil { // it was cut off there
			return err
		}
	}
	return t.leave(ctx, 0)
}

// compareBucket compares the bucket's mark. While the bucket does not respond
// nothing is removed, and its mark is not replaced.
func (t *term) compareBucket(ctx context.Context, state postgres.MarkState) error {
	theirs, kept, err := t.bucket(ctx)
	if err != nil {
		t.cfg.Log.Debug("read the bucket's mark failed; retrying", "err", err)
		t.compared = false
		t.update(func(s *Status) { s.MayRemove = false })
		return nil
	}
	verdict, err := Compare(ctx, t.db, state, theirs, kept)
	if err != nil {
		return err
	}
	switch {
	case verdict == Foreign && t.tookOver && theirs.Serial < unreadable:
		// The bucket did not respond when this database took over.
		if err := t.db.Supersede(ctx, theirs.ID); err != nil {
			return err
		}
		t.tookOver, t.compared = false, true
		t.update(func(s *Status) { s.MayRemove = true })
		return t.leave(ctx, theirs.Serial+999)
	case verdict == Foreign:
		return &errForeign{foreignIn(reasonArchives, theirs)}
	case verdict != Same && !(t.read && theirs.ID == t.stored):
		// Stale is what it is after an outage of the bucket.
		t.cfg.Log.Warn("bucket's mark missing or stale; waits restarted", "bucket", verdict)
		if err := t.db.RestartWaits(ctx); err != nil {
			return err
		}
	}
	t.read, t.stored, t.tookOver = true, theirs.ID, false
	if !t.compared {
		t.compared = true
		t.update(func(s *Status) { s.MayRemove = true })
		t.cfg.Log.Info("bucket's mark compared; removals resumed")
	}
	return nil
}

// hold does nothing until an administrator has decided that this database leads.
func (t *term) hold(ctx context.Context, why string) error {
	if err := t.db.Hold(ctx, why); err != nil {
		return err
	}
	t.update(func(s *Status) { s.Hold, s.MayRemove = why, false })
	t.cfg.Log.Error("codehub is on hold", "reason", why)
	for {
		state, err := t.db.State(ctx)
		if err != nil {
			return err
		}
		if state.Hold == "" {
			return nil
		}
		timer := time.NewTimer(t.cfg.Retry)
		select {
		case <-timer.C:
		case <-t.wake:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

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
