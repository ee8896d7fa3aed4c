package reconcile

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"codehub/internal/archive"
	"codehub/internal/lifecycle"
	"codehub/internal/workspace"
)

const (
	// bucketEvery is how often the bucket is asked whether it is there: while
	// something works with it, while it is not there, and otherwise.
	bucketBusy = 5 * time.Second
	bucketDown = 2 * time.Second
	bucketIdle = time.Minute
	// bucketLeast is how long it is left alone between two of these.
	bucketLeast = 500 * time.Millisecond

	// fresh is for how long the answer to a look at an archive counts.
	fresh = 2 * time.Second
	// lookers is how many archives are looked at, at once.
	lookers = 4
)

// bucket is what a term knows of the bucket. Ticks only read it and ask for
// more: whoever waits for the bucket does so beside them.
type bucket struct {
	kick chan struct{}
	eyes chan struct{} // for looks at archives

	mu      sync.Mutex
	upSince time.Time // zero: it does not answer
	doubted bool      // somebody could not work with it, and it was not asked since
	busy    bool      // something works with it
	looks   map[sight]*look
	pending int       // looks under way
	woke    time.Time // when one of them last had everything looked at
}

// sight is one of the archives of a workspace that are looked at: the current
// one, or one that a recovery is to go on with.
type sight struct {
	id      workspace.ID
	earlier bool
}

// question is what a look is to answer. An answer to another one is none: the
// row has changed, or somebody has asked for a look that is newer than that.
type question struct {
	key, digest string
	size        int64
	request     time.Time // of the recovery that asks
}

// look is the last look at an archive.
type look struct {
	question
	under    bool // way
	waits    bool // a decision waits for it
	asked    time.Time
	answered time.Time
	answer   lifecycle.Archive // ArchiveUnknown: the bucket did not say
}

func newBucket() *bucket {
	return &bucket{
		kick: make(chan struct{}, 1), eyes: make(chan struct{}, lookers),
		upSince: time.Now(), looks: map[sight]*look{},
	}
}

// doubt is told that somebody could not work with the bucket: it is asked soon
// whether it is there, and until then taken for away.
func (b *bucket) doubt() {
	b.mu.Lock()
	b.doubted = true
	b.mu.Unlock()
	b.ask()
}

// ask has the bucket asked soon whether it is there.
func (b *bucket) ask() {
	select {
	case b.kick <- struct{}{}:
	default:
	}
}

// since is since when the bucket has answered without a break, now if it does
// not.
func (b *bucket) since(now time.Time) (since time.Time, up bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.away() {
		return now, false
	}
	return b.upSince, true
}

// away reports whether nothing should be begun with the bucket; mu is held.
func (b *bucket) away() bool { return b.doubted || b.upSince.IsZero() }

// works says whether anything works with the bucket now.
func (b *bucket) works(busy bool) {
	b.mu.Lock()
	begins := busy && !b.busy
	b.busy = busy
	b.mu.Unlock()
	if begins {
		b.ask()
	}
}

// watchBucket asks the bucket now and then whether it is there, until ctx
// ends. It is asked for the .meta of an archive that nobody has.
func (t *term) watchBucket(ctx context.Context) {
	nobody := t.cfg.Archives.Key("00000000-0000-0000-0000-000000000000", "00000000-0000-0000-0000-000000000000")
	var asked chan error // what has not been answered yet
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.bucket.kick:
		case <-timer.C:
		}
		if asked == nil {
			answer := make(chan error, 1)
			go func() { answer <- t.askBucket(ctx, nobody) }()
			asked = answer
		}
		var err error
		select {
		case <-ctx.Done():
		case err = <-asked:
			asked = nil
		case <-time.After(t.cfg.LookWithin + bucketLeast):
			// A folder on a disk that hangs knows of no deadline. It is not asked
			// a second time before it has answered.
			err = fmt.Errorf("the bucket hangs: it has not answered for more than %s", t.cfg.LookWithin)
		}
		if ctx.Err() != nil {
			return
		}
		t.heard(err)
		select { // however many ask
		case <-ctx.Done():
			return
		case <-time.After(bucketLeast):
		}
		timer.Reset(t.bucket.patience())
	}
}

func (b *bucket) patience() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.upSince.IsZero():
		return bucketDown
	case b.busy:
		return bucketBusy
	}
	return bucketIdle
}

// askBucket returns nil if the bucket answers.
func (t *term) askBucket(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.LookWithin)
	defer cancel()
	_, err := t.cfg.Archives.Meta(ctx, key)
	switch {
	case errors.Is(err, archive.ErrNotFound), errors.Is(err, archive.ErrCorrupted):
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the bucket has not answered within %s: %w", t.cfg.LookWithin, err)
	}
	return err
}

// heard takes note of whether the bucket answers.
func (t *term) heard(err error) {
	b := t.bucket
	b.mu.Lock()
	was, doubted := !b.upSince.IsZero(), b.doubted
	b.doubted = false
	switch {
	case err != nil:
		b.upSince = time.Time{}
	case !was:
		b.upSince = time.Now()
	}
	b.mu.Unlock()
	switch {
	case err != nil:
		if was {
			t.cfg.Log.Error("the bucket of the archives does not answer; archives wait until it does", "err", err)
		}
		t.update(func(s *Status) { s.Bucket = err.Error() })
	case !was:
		t.cfg.Log.Info("the bucket of the archives answers again")
		t.update(func(s *Status) { s.Bucket = "" })
		t.resume()
		t.Wake()
	case doubted:
		t.Wake()
	}
}

// resume has every executor that was refused run again.
func (t *term) resume() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range t.works {
		w.resume()
	}
}

// archives is what the bucket has said lately of the archives of row, and
// whether it is being asked. What it has not said yet is asked for, beside the
// tick. An answer that is older than since is held against nothing.
func (t *term) archives(ctx context.Context, row workspace.Workspace, since time.Time, busy bool) (current, earlier lifecycle.Archive, asked bool) {
	if t.cfg.Archives == nil {
		return lifecycle.ArchiveUnknown, lifecycle.ArchiveUnknown, false
	}
	waits := awaitsLook(row, busy)
	q := question{key: row.ArchiveKey, digest: row.ArchiveDigest, size: row.ArchiveSize}
	if at := row.RecoverRequestedAt; at != nil {
		q.request = at.UTC()
	}
	if lifecycle.AsksBucket(row) {
		current, asked = t.answer(ctx, sight{id: row.ID}, q, since, waits)
	}
	if busy && current == lifecycle.ArchivePresent {
		// The executor may do away with what speaks for an operation that is
		// complete while this was on its way: that is asked at its end.
		current = lifecycle.ArchiveUnknown
	}
	if lifecycle.AsksEarlier(row) {
		from := row.RecoverFrom
		q.key, q.digest, q.size = from.Key, from.Digest, from.Size
		var too bool
		earlier, too = t.answer(ctx, sight{id: row.ID, earlier: true}, q, since, waits)
		asked = asked || too
	}
	return current, earlier, asked
}

// awaitsLook reports whether a decision on row waits for the bucket's answer.
// Others are looked at now and then: while an executor is at work, after an
// error that stays, or before what does not rest on it.
func awaitsLook(row workspace.Workspace, busy bool) bool {
	switch {
	case row.RecoverRequestedAt != nil:
		return true
	case row.Operation != workspace.OpNone:
		return !busy
	case row.ErrorReason.Final():
		return false
	}
	seen := row.Conditions.Get(workspace.ArchiveReady)
	goes := row.Home.State.Removable() || row.Home.State == workspace.HomeFilling && row.DesiredState == workspace.DesiredArchived
	return goes || !seen.True() || seen.Message != row.ArchiveKey
}

func (t *term) answer(ctx context.Context, s sight, q question, since time.Time, waits bool) (answer lifecycle.Archive, asked bool) {
	now := time.Now()
	b := t.bucket
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.looks[s]
	if l != nil && l.question == q && !l.answered.IsZero() && !l.asked.Before(since) {
		if now.Sub(l.answered) <= fresh {
			return l.answer, false
		}
		if !waits && now.Sub(l.answered) < t.cfg.IdleInterval {
			return lifecycle.ArchiveUnknown, false
		}
	}
	switch {
	case l != nil && l.under:
		l.waits = l.waits || waits
		return lifecycle.ArchiveUnknown, true
	case b.away():
		return lifecycle.ArchiveUnknown, false // once it is back everything is looked at again
	}
	l = &look{question: q, under: true, waits: waits, asked: now}
	b.looks[s] = l
	b.pending++
	t.group.Go(func() { t.lookAt(ctx, s, l) })
	return lifecycle.ArchiveUnknown, true
}

// lookAt looks at one archive, once one of the few that do so is free.
func (t *term) lookAt(ctx context.Context, s sight, l *look) {
	answer, err := lifecycle.ArchiveUnknown, error(nil)
	select {
	case t.bucket.eyes <- struct{}{}:
		t.bucket.asks(l)
		answer, err = t.askFor(ctx, s, l.question)
		<-t.bucket.eyes
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil && ctx.Err() == nil {
		t.cfg.Log.Debug("an archive could not be looked at", "workspace", s.id, "key", l.key, "err", err)
		t.bucket.doubt()
	}
	if t.bucket.answered(l, answer, err == nil) {
		t.Wake()
	}
}

func (t *term) askFor(ctx context.Context, s sight, q question) (lifecycle.Archive, error) {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.LookWithin)
	defer cancel()
	answer, err := t.cfg.Archives.Look(ctx, workspace.Workspace{ID: s.id, ArchiveKey: q.key, ArchiveDigest: q.digest, ArchiveSize: q.size})
	if err != nil {
		return lifecycle.ArchiveUnknown, err
	}
	return answer, nil
}

// asks notes that the bucket is asked now: what it says is no older.
func (b *bucket) asks(l *look) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.asked = time.Now()
}

// answered notes the answer, and reports whether everything is to be looked at
// because of it. With many answers at once a few times a second is enough.
func (b *bucket) answered(l *look, answer lifecycle.Archive, ok bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.under, l.answered, l.answer = false, time.Now(), answer
	b.pending--
	if !ok || !l.waits || b.pending > 0 && time.Since(b.woke) < 100*time.Millisecond {
		return false
	}
	b.woke = time.Now()
	return true
}

// forget drops what is known of archives of workspaces that are no more.
func (b *bucket) forget(current *roll) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s, l := range b.looks {
		if !current.has(s.id) && !l.under {
			delete(b.looks, s)
		}
	}
}
