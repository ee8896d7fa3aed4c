package reconcile

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"codehub/internal/archive"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

const (
	// How often the bucket is probed: while an operation uses it, while it is not
	// available, and otherwise.
	bucketBusyInterval = 5 * time.Second
	bucketDownInterval = 2 * time.Second
	bucketIdleInterval = time.Minute
	// bucketMinPause is the shortest pause between two probes.
	bucketMinPause = 500 * time.Millisecond

	// lookupFresh is how long the result of an archive lookup may be used by any tick.
	lookupFresh = 2 * time.Second
	// maxLookups limits concurrent archive lookups.
	maxLookups = 4
)

// bucket is what this term knows about the bucket. Ticks read it and request
// lookups; only goroutines outside the tick wait for the bucket.
type bucket struct {
	kick  chan struct{}
	slots chan struct{} // limits concurrent lookups

	mu      sync.Mutex
	upSince time.Time // zero: unavailable
	suspect bool      // a request failed and no probe has followed yet
	busy    bool      // an operation uses it
	lookups map[archiveRef]*lookup
	pending int       // lookups in progress
	wokeAt  time.Time // when a lookup last woke the controller
}

// archiveRef is an archive of a workspace to look up: the current one, or the
// generation that a recovery would use.
type archiveRef struct {
	id      workspace.ID
	earlier bool
}

// query is what a lookup verifies. A result for another query is stale: the row has
// changed, or a newer recovery was requested.
type query struct {
	key, digest string
	size        int64
	requestedAt time.Time // of the recovery
}

// lookup is the latest lookup of an archive.
type lookup struct {
	query
	running    bool
	awaited    bool // a decision depends on the result
	sentAt     time.Time
	answeredAt time.Time
	keptAt     time.Time         // when a tick last kept the result until that of the other archive arrives
	answer     lifecycle.Archive // ArchiveUnknown: the lookup failed
}

// current reports whether a tick that judges now may use the result. lastJudged is when
// the tick before it judged; zero: it did not. A result that woke the controller counts in
// the first tick that judges after its arrival, however long that tick observes: that tick
// could not know anything newer, since lookups begin only when a tick judges. Other
// results count for lookupFresh.
func (l *lookup) current(now, lastJudged time.Time) bool {
	if now.Sub(l.answeredAt) <= lookupFresh {
		return true
	}
	if !l.awaited || l.answer == lifecycle.ArchiveUnknown || lastJudged.IsZero() {
		return false
	}
	return !l.answeredAt.Before(lastJudged) || !l.keptAt.Before(lastJudged)
}

func newBucket() *bucket {
	return &bucket{
		kick: make(chan struct{}, 1), slots: make(chan struct{}, maxLookups),
		upSince: time.Now(), lookups: map[archiveRef]*lookup{},
	}
}

// markSuspect records that a request to the bucket failed. The bucket counts as
// unavailable until the probe that this requests.
func (b *bucket) markSuspect() {
	b.mu.Lock()
	b.suspect = true
	b.mu.Unlock()
	b.probeSoon()
}

// probeSoon requests a probe. It never blocks.
func (b *bucket) probeSoon() {
	select {
	case b.kick <- struct{}{}:
	default:
	}
}

// availableSince returns since when the bucket has been available without
// interruption, or now and false if it is not.
func (b *bucket) availableSince(now time.Time) (since time.Time, up bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unavailable() {
		return now, false
	}
	return b.upSince, true
}

// unavailable reports whether no operation should start that needs the bucket. The
// caller holds mu.
func (b *bucket) unavailable() bool { return b.suspect || b.upSince.IsZero() }

// setBusy records whether an operation uses the bucket.
func (b *bucket) setBusy(busy bool) {
	b.mu.Lock()
	begins := busy && !b.busy
	b.busy = busy
	b.mu.Unlock()
	if begins {
		b.probeSoon()
	}
}

// watchBucket probes the bucket until ctx ends. A probe asks for the .meta of an
// archive that does not exist.
func (t *term) watchBucket(ctx context.Context) {
	missingKey := t.cfg.Archives.Key("00000000-0000-0000-0000-000000000000", "00000000-0000-0000-0000-000000000000")
	var probe chan error // the result of the running probe
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.bucket.kick:
		case <-timer.C:
		}
		if probe == nil {
			answer := make(chan error, 1)
			go func() { answer <- t.probeBucket(ctx, missingKey) }()
			probe = answer
		}
		var err error
		select {
		case <-ctx.Done():
		case err = <-probe:
			probe = nil
		case <-time.After(t.cfg.ObserveTimeout + bucketMinPause):
			// Reading a folder on a hanging disk ignores deadlines. The next probe
			// starts only after this one has returned.
			err = fmt.Errorf("the bucket has not responded for more than %s", t.cfg.ObserveTimeout)
		}
		if ctx.Err() != nil {
			return
		}
		t.recordProbe(err)
		select { // limits the rate of probes
		case <-ctx.Done():
			return
		case <-time.After(bucketMinPause):
		}
		timer.Reset(t.bucket.probeInterval())
	}
}

func (b *bucket) probeInterval() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.upSince.IsZero():
		return bucketDownInterval
	case b.busy:
		return bucketBusyInterval
	}
	return bucketIdleInterval
}

// probeBucket returns nil if the bucket responds.
func (t *term) probeBucket(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.ObserveTimeout)
	defer cancel()
	_, err := t.cfg.Archives.Meta(ctx, key)
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, archive.ErrCorrupted):
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the bucket did not respond within %s: %w", t.cfg.ObserveTimeout, err)
	}
	return err
}

// recordProbe records the result of a probe.
func (t *term) recordProbe(err error) {
	b := t.bucket
	b.mu.Lock()
	was, doubted := !b.upSince.IsZero(), b.suspect
	b.suspect = false
	switch {
	case err != nil:
		b.upSince = time.Time{}
	case !was:
		b.upSince = time.Now()
	}
	b.mu.Unlock()
	t.bucketAway.Set(err)
	switch {
	case err != nil:
	case !was:
		t.resume()
		t.Wake()
	case doubted:
		t.Wake()
	}
}

// resume makes every executor that waits for the bucket or for space run again.
func (t *term) resume() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range t.works {
		w.resume()
	}
}

// archiveStates returns the recent lookup results for the archives of row, and
// whether a lookup is in progress. It starts missing lookups outside the tick.
// Results from lookups that began before since are ignored.
func (t *term) archiveStates(ctx context.Context, row workspace.Workspace, since time.Time, busy bool) (current, earlier lifecycle.Archive, pending bool) {
	waits := needsLookup(row, busy)
	q := query{key: row.ArchiveKey, digest: row.ArchiveDigest, size: row.ArchiveSize}
	if at := row.RecoverRequestedAt; at != nil {
		q.requestedAt = at.UTC()
	}
	if lifecycle.AsksBucket(row) {
		current, pending = t.lookupResult(ctx, archiveRef{id: row.ID}, q, since, waits)
	}
	if busy && current == lifecycle.ArchivePresent {
		// The executor may remove the home while this lookup is in progress, which
		// would then make a complete operation look damaged. The archive is looked
		// up again when the executor has ended.
		current = lifecycle.ArchiveUnknown
	}
	if from := lifecycle.EarlierOf(row); from != nil {
		q.key, q.digest, q.size = from.Key, from.Digest, from.Size
		var too bool
		earlier, too = t.lookupResult(ctx, archiveRef{id: row.ID, earlier: true}, q, since, waits)
		// A recovery and a restore need both results in one tick.
		if too && current != lifecycle.ArchiveUnknown {
			t.bucket.keep(archiveRef{id: row.ID})
		}
		if pending && earlier != lifecycle.ArchiveUnknown {
			t.bucket.keep(archiveRef{id: row.ID, earlier: true})
		}
		pending = pending || too
	}
	return current, earlier, pending
}

// keep lets the next tick use a result that this tick can use.
func (b *bucket) keep(s archiveRef) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lookups[s].keptAt = time.Now()
}

// needsLookup reports whether a decision on row depends on the archive's state.
// Other archives are looked up once per idle interval: while an executor runs,
// after a final error, or before operations that do not use the archive.
func needsLookup(row workspace.Workspace, busy bool) bool {
	switch {
	case row.RecoverRequestedAt != nil, lifecycle.EarlierOf(row) != nil:
		return true
	case row.Operation != workspace.OpNone:
		return !busy
	case row.ErrorReason.Final():
		return false
	}
	seen := row.Conditions.Get(workspace.ArchiveReady)
	goes := row.Home.State.Removable() || row.Home.State == workspace.HomeFilling && lifecycle.Wanted(row) == workspace.DesiredArchived
	return goes || !seen.True() || seen.Message != row.ArchiveKey
}

func (t *term) lookupResult(ctx context.Context, s archiveRef, q query, since time.Time, waits bool) (answer lifecycle.Archive, pending bool) {
	now := time.Now()
	b := t.bucket
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.lookups[s]
	if l != nil && l.query == q && !l.answeredAt.IsZero() && !l.sentAt.Before(since) {
		if l.current(now, t.lastJudged) {
			return l.answer, false
		}
		if !waits && now.Sub(l.answeredAt) < t.cfg.IdleInterval {
			return lifecycle.ArchiveUnknown, false
		}
	}
	switch {
	case l != nil && l.running:
		l.awaited = l.awaited || waits
		return lifecycle.ArchiveUnknown, true
	case b.unavailable():
		return lifecycle.ArchiveUnknown, false // the controller wakes when the bucket is available again
	}
	l = &lookup{query: q, running: true, awaited: waits, sentAt: now}
	b.lookups[s] = l
	b.pending++
	t.group.Go(func() { t.runLookup(ctx, s, l) })
	return lifecycle.ArchiveUnknown, true
}

// runLookup checks one archive once a slot is free.
func (t *term) runLookup(ctx context.Context, s archiveRef, l *lookup) {
	answer, err := lifecycle.ArchiveUnknown, error(nil)
	select {
	case t.bucket.slots <- struct{}{}:
		t.bucket.lookupStarted(l)
		answer, err = t.checkArchive(ctx, s, l.query)
		<-t.bucket.slots
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil && ctx.Err() == nil {
		t.cfg.Log.Debug("archive lookup failed", "workspace", s.id, "key", l.key, "err", err)
		t.bucket.markSuspect()
	}
	if t.bucket.lookupEnded(l, answer, err == nil) {
		t.Wake()
	}
}

func (t *term) checkArchive(ctx context.Context, s archiveRef, q query) (lifecycle.Archive, error) {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.ObserveTimeout)
	defer cancel()
	answer, err := t.cfg.Archives.State(ctx, workspace.Workspace{ID: s.id, ArchiveKey: q.key, ArchiveDigest: q.digest, ArchiveSize: q.size})
	if err != nil {
		return lifecycle.ArchiveUnknown, err
	}
	return answer, nil
}

// lookupStarted records when the request is sent, which bounds the age of its
// result.
func (b *bucket) lookupStarted(l *lookup) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.sentAt = time.Now()
}

// lookupEnded records the result and reports whether the controller should wake.
// While many lookups run, it wakes at most ten times a second.
func (b *bucket) lookupEnded(l *lookup, answer lifecycle.Archive, ok bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.running, l.answeredAt, l.answer = false, time.Now(), answer
	b.pending--
	if !ok || !l.awaited || b.pending > 0 && time.Since(b.wokeAt) < 100*time.Millisecond {
		return false
	}
	b.wokeAt = time.Now()
	return true
}

// forget drops the lookups of workspaces that no longer exist.
func (b *bucket) forget(current *inventory) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s, l := range b.lookups {
		if !current.has(s.id) && !l.running {
			delete(b.lookups, s)
		}
	}
}
