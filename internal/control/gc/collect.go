package gc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"codehub/internal/control/mark"
	"codehub/internal/postgres"
	"codehub/internal/storage/bucket"
	"codehub/internal/workspace"
)

// Config configures collections.
type Config struct {
	Bucket   *bucket.Bucket
	Settings Settings
	// Server marks a server's own collection. Its settings are the minimum for
	// others.
	Server bool
	Log    *slog.Logger

	// clock is compared between collections; nil: within one only.
	clock *postgres.ClockWatch
}

// Options select what one collection does.
type Options struct {
	DryRun bool // decide without changing anything
	// Only limits the collection to these workspaces; nil: all.
	Only []workspace.ID
}

// ErrRestored is returned if the bucket belongs to another database. Only a dry
// run continues then.
var ErrRestored = errors.New("the bucket belongs to another database or to a later state of this one: " +
	"run codehub reconcile-restore, or check CODEHUB_ARCHIVE_URL")

const (
	// forgetAfter is how long the record of a removed archive is kept, so that
	// a late upload is recognized; pre-signed URLs are valid for at most a
	// week.
	forgetAfter = 30 * 24 * time.Hour
	// maxFailures is the number of consecutive failures that end a collection.
	maxFailures  = 5
	unlockWithin = 5 * time.Second
)

// errClockSet ends a collection during which a clock changed. The next one
// continues.
var errClockSet = errors.New("a clock changed or this machine slept; all waits were restarted")

// Collect checks all archives of the installation and removes those that no
// workspace uses. If the listing or a query fails, nothing is removed. The
// error is postgres.ErrCollecting if another collection runs. Errors after the
// first possible removal come with a report.
func Collect(ctx context.Context, cfg Config, session postgres.Session, opts Options) (*Report, error) {
	c := &collection{Config: cfg, Options: opts, db: postgres.NewCollector(session), session: session}
	began := time.Now()
	run := func() error { return c.run(ctx) }
	var err error
	if opts.DryRun {
		err = run()
	} else {
		err = c.locked(ctx, run)
	}
	if c.report != nil {
		c.report.Took = time.Since(began)
	}
	return c.report, err
}

// locked runs f while no other collection can run.
func (c *collection) locked(ctx context.Context, f func() error) error {
	if err := c.db.Lock(ctx); err != nil {
		return err
	}
	defer func() {
		uctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockWithin)
		defer cancel()
		_ = c.db.Unlock(uctx) // the end of the session also unlocks
	}()
	return f()
}

// collection is one collection.
type collection struct {
	Config
	Options
	db      *postgres.Collector
	session postgres.Session

	state     postgres.CollectionState
	listing   listing
	described map[string]described
	currents  currents
	report    *Report
	// Consecutive failures.
	dbFailed, bucketFailed int
}

func (c *collection) run(ctx context.Context) error {
	objects, err := c.begin(ctx)
	if err != nil {
		return err
	}
	// The database is read after the bucket was listed, so that newer archives
	// are known.
	held, err := c.db.Holdings(ctx, c.Only)
	if err != nil {
		return err
	}
	c.listing = newListing(c.listing.at, objects)
	if c.described, err = describe(ctx, c.Bucket, c.listing, held); err != nil {
		return err
	}
	c.report = &Report{Started: c.state.Now, DryRun: c.DryRun, Restored: c.restoredNow()}
	defer c.sortItems()
	c.unknown(held)
	for _, id := range slices.Sorted(maps.Keys(held.Workspaces)) {
		v := c.view(held.Now, held.Workspaces[id], held.Archives[id])
		c.currents.add(v)
		decisions := decide(v)
		if !c.DryRun && slices.ContainsFunc(decisions, decision.calls) {
			if err := c.settle(ctx, id); err != nil {
				return err
			}
			continue
		}
		c.take(decisions)
	}
	if c.DryRun || c.Only != nil {
		return nil
	}
	return errors.Join(c.recheck(ctx), c.removeKeys(ctx, held), c.sweep(ctx))
}

// removeKeys removes the keys of deleted workspaces of which the bucket has nothing else.
func (c *collection) removeKeys(ctx context.Context, held postgres.Holdings) error {
	for id := range c.listing.keys {
		if held.Workspaces[id].Phase != workspace.PhaseDeleted {
			continue
		}
		if err := c.Bucket.DeleteKeys(ctx, id); err != nil {
			return fmt.Errorf("remove the key of workspace %s: %w", id, err)
		}
	}
	return nil
}

// begin lists the bucket and checks that it belongs to the database.
func (c *collection) begin(ctx context.Context) ([]bucket.Object, error) {
	// The bucket's mark is read before the database's, since a server may store
	// new ones in between.
	last, found, err := mark.Read(ctx, c.Bucket)
	if err != nil {
		return nil, err
	}
	db := postgres.NewMarks(c.session)
	marks, err := db.State(ctx)
	if err != nil {
		return nil, err
	}
	verdict, err := mark.Compare(ctx, db, marks, last, found)
	if err != nil {
		return nil, err
	}
	restored := verdict == mark.Foreign || marks.Hold != ""
	if restored && !c.DryRun || c.Only != nil && verdict == mark.Missing {
		return nil, ErrRestored
	}
	if err := c.readState(ctx); err != nil {
		return nil, err
	}
	c.listing.at = c.state.Now
	objects, err := c.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the bucket: %w", err)
	}
	switch {
	case restored:
		c.state.RestoredAt = &c.state.Now
	case c.Server && !c.DryRun && c.Only == nil:
		if err := c.db.SaveSettings(ctx, c.Settings); err != nil {
			return nil, err
		}
	}
	if !c.Server {
		have := c.state.Settings
		c.Settings = Settings{
			DeleteGrace: max(c.Settings.DeleteGrace, have.DeleteGrace),
			Delay:       max(c.Settings.Delay, have.Delay),
			Keep:        max(c.Settings.Keep, have.Keep),
		}
	}
	return objects, nil
}

// readState reads the state of garbage collection and compares the database's
// clock with this process's clock.
func (c *collection) readState(ctx context.Context) (err error) {
	if c.clock == nil {
		c.clock = &postgres.ClockWatch{}
	}
	if c.state, err = c.db.State(ctx); err != nil || c.DryRun {
		return err
	}
	if _, set := c.clock.Note(postgres.Clock{Now: c.state.Now, At: time.Now()}); set {
		return c.clockSet(ctx)
	}
	return nil
}

func (c *collection) clockSet(ctx context.Context) error {
	if err := c.db.RestartWaits(ctx); err != nil {
		return err
	}
	return errClockSet
}

// list lists the objects of the installation, or of the workspaces in Only.
func (c *collection) list(ctx context.Context) ([]bucket.Object, error) {
	if c.Only == nil {
		return c.Bucket.List(ctx)
	}
	var list []bucket.Object
	for _, id := range c.Only {
		for o, err := range c.Bucket.Store.List(ctx, c.prefix()+string(id)+"/") {
			if err != nil {
				return nil, err
			}
			list = append(list, bucket.Object{Object: o, Parsed: bucket.ParseKey(o.Key)})
		}
	}
	return list, nil
}

func (c *collection) prefix() string { return c.Bucket.Installation + "/" }

func (c *collection) restoredNow() bool {
	return c.state.RestoredAt != nil && !c.state.RestoredAt.Before(c.state.Now)
}

func (c *collection) view(now time.Time, w postgres.Holder, records []postgres.Record) view {
	v := view{
		now: now, listedAt: c.listing.at, set: c.Settings, prefix: c.prefix(),
		holder: w, records: byKey(records), listed: c.listing.archives[w.ID], described: c.described,
	}
	if c.state.RestoredAt != nil {
		v.restoredAt = *c.state.RestoredAt
	}
	return v
}

// unknown reports objects that are not archives, and archives of workspaces
// that are not in the database.
func (c *collection) unknown(held postgres.Holdings) {
	for _, o := range c.listing.others {
		if o.Key != mark.Key(c.Bucket.Installation) {
			c.report.Items = append(c.report.Items, Item{Verdict: Unknown, Reason: "not an archive of codehub", Key: o.Key, Size: o.Size})
		}
	}
	for id, archives := range c.listing.archives {
		if _, known := held.Workspaces[id]; known {
			continue
		}
		for key, a := range archives {
			c.report.Items = append(c.report.Items, Item{
				Verdict: Unknown, Reason: "workspace not in the database", Key: key, Workspace: id, Size: a.size,
			})
		}
	}
}

// calls reports whether the decision writes or removes anything.
func (d decision) calls() bool { return d.changes || d.releases || d.item.Verdict == Remove && d.there }

// take adds decisions to the report, except removals of archives that are
// already gone.
func (c *collection) take(decisions []decision) {
	for _, d := range decisions {
		if d.item.Verdict != Remove || d.there {
			c.report.Items = append(c.report.Items, d.item)
		}
	}
}

// settle decides about one workspace again while its row is locked, and carries
// out the removals that remain.
func (c *collection) settle(ctx context.Context, id workspace.ID) error {
	var decisions []decision
	var w postgres.Holder
	set := false
	err := c.db.Settle(ctx, id, func(now time.Time, holder postgres.Holder, records []postgres.Record) []postgres.Finding {
		_, jumped := c.clock.Note(postgres.Clock{Now: now, At: time.Now()})
		if set = set || jumped; set {
			decisions = nil
			return nil
		}
		w = holder
		decisions = decide(c.view(now, holder, records))
		var out []postgres.Finding
		for _, d := range decisions {
			if d.changes {
				out = append(out, d.finding)
			}
		}
		return out
	})
	if err != nil {
		c.Log.Error("collect a workspace's archives failed; retrying", "workspace", id, "err", err)
		c.report.Failed++
		return failed(ctx, &c.dbFailed, err)
	}
	c.dbFailed = 0
	if set {
		return c.clockSet(ctx)
	}
	clean := true
	for i := range decisions {
		item := &decisions[i].item
		if item.Verdict != Remove || !decisions[i].there {
			continue
		}
		if err := c.remove(ctx, item); err != nil {
			clean = false
			if err := failed(ctx, &c.bucketFailed, err); err != nil {
				c.take(decisions)
				return err
			}
		}
	}
	c.take(decisions)
	if !clean || w.ArchiveKey == "" || !slices.ContainsFunc(decisions, func(d decision) bool {
		return d.item.Verdict == Remove && d.item.Key == w.ArchiveKey
	}) {
		return nil
	}
	released, err := c.db.Release(ctx, id, w.ArchiveKey)
	if err != nil {
		return err
	}
	if released {
		c.report.Released++
	}
	return nil
}

// remove removes the objects of an archive whose removal is recorded.
func (c *collection) remove(ctx context.Context, item *Item) error {
	if err := c.Bucket.Delete(ctx, item.Key); err != nil {
		item.Error = err.Error()
		c.report.Failed++
		c.Log.Error("remove archive failed; retrying in the next collection", "workspace", item.Workspace, "key", item.Key, "err", err)
		return err
	}
	c.bucketFailed = 0
	c.Log.Info("archive removed", "workspace", item.Workspace, "key", item.Key, "bytes", item.Size, "why", item.Reason)
	return nil
}

// failed counts a failure and returns err if it ends the collection.
func failed(ctx context.Context, inARow *int, err error) error {
	*inARow++
	if ctx.Err() != nil || *inARow >= maxFailures {
		return err
	}
	return nil
}

// sweep removes the remains of interrupted uploads, and the records of archives
// that were removed long ago.
func (c *collection) sweep(ctx context.Context) error {
	if at := c.state.RestoredAt; at == nil || !c.state.Now.Before(at.Add(c.Settings.Delay)) {
		// Uploads that start after this query are younger than any delay.
		claims, err := c.db.UnderWay(ctx)
		if err != nil {
			return err
		}
		c.report.Aborted, err = c.Bucket.AbortIncomplete(ctx, c.Settings.Delay, func(key string) bool {
			return claims[bucket.ParseKey(key).OpID]
		})
		if err != nil {
			return fmt.Errorf("sweep broken uploads: %w", err)
		}
	}
	_, err := c.db.Forget(ctx, forgetAfter)
	return err
}

func (c *collection) sortItems() {
	slices.SortFunc(c.report.Items, func(a, b Item) int { return strings.Compare(a.Key, b.Key) })
}
