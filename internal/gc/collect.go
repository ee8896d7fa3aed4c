package gc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"codehub/internal/archive"
	"codehub/internal/bucket"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// Config is what collections are made with.
type Config struct {
	Bucket   *bucket.Bucket
	Settings Settings
	// Server says that this is a server's own collection: others take its
	// settings for the least, and it alone goes on with a restored database.
	Server bool
	Log    *slog.Logger
}

// Options are what one collection is to do.
type Options struct {
	DryRun bool // decide, and change nothing
	// Only looks at these workspaces; nil: at all.
	Only []workspace.ID
}

// ErrRestored is why a collection that is not a server's own does nothing.
var ErrRestored = errors.New("the bucket and the database do not belong to the same last garbage collection: " +
	"either the database was restored from a backup, or CODEHUB_ARCHIVE_URL is not the server's bucket; " +
	"the server's own collection settles the former")

const (
	// forgetAfter is how long it is remembered that an archive was removed: an
	// upload that comes in later (URLs are good for a week at most) is known
	// for what it is.
	forgetAfter = 30 * 24 * time.Hour
	// maxFailures in a row end a collection: the bucket refuses.
	maxFailures  = 5
	unlockWithin = 5 * time.Second
)

// Collect looks at all archives of the installation and removes those that
// nothing holds on to. If the listing or a query fails nothing is removed. It is
// postgres.ErrCollecting if another collection runs; a report comes with any
// error that came up once something may have been removed.
func Collect(ctx context.Context, cfg Config, session postgres.Session, opts Options) (*Report, error) {
	c := &collection{Config: cfg, Options: opts, db: postgres.NewCollector(session)}
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

// Touch leaves a new id in the bucket and in the database if an archive was made
// since the last: whatever backup of the database is older than that shows then.
// ErrRestored if the two differ already, which it looks at only if there is
// something to leave, or always is set.
func Touch(ctx context.Context, cfg Config, session postgres.Session, always bool) error {
	c := &collection{Config: cfg, db: postgres.NewCollector(session)}
	return c.locked(ctx, func() (err error) {
		if c.state, err = c.db.State(ctx); err != nil || !c.state.Stored && !always {
			return err
		}
		last, err := c.lastRun(ctx)
		switch {
		case err != nil:
			return fmt.Errorf("read what collected last: %w", err)
		case last != c.state.Run:
			return ErrRestored
		case last == "" || !c.state.Stored:
			return nil
		}
		return c.mark(ctx, false)
	})
}

// locked runs f while nobody else collects.
func (c *collection) locked(ctx context.Context, f func() error) error {
	if err := c.db.Lock(ctx); err != nil {
		return err
	}
	defer func() {
		uctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockWithin)
		defer cancel()
		_ = c.db.Unlock(uctx) // the end of the session does the same
	}()
	return f()
}

// collection is one collection.
type collection struct {
	Config
	Options
	db *postgres.Collector

	state     postgres.CollectionState
	listing   listing
	described map[string]described
	report    *Report
	// Failures in a row.
	dbFailed, bucketFailed int
}

func (c *collection) run(ctx context.Context) error {
	objects, err := c.begin(ctx)
	if err != nil {
		return err
	}
	// The bucket was listed; the database is asked after.
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
		decisions := decide(c.view(held.Now, held.Workspaces[id], held.Archives[id]))
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
	return c.sweep(ctx)
}

// begin lists the bucket and sees whether it and the database belong together.
func (c *collection) begin(ctx context.Context) ([]bucket.Object, error) {
	var err error
	if c.state, err = c.db.State(ctx); err != nil {
		return nil, err
	}
	c.listing.at = c.state.Now
	last, err := c.lastRun(ctx)
	if err != nil {
		return nil, fmt.Errorf("read what collected last: %w", err)
	}
	restored := last != c.state.Run
	if c.Only != nil && (restored || last == "") || restored && !c.Server && !c.DryRun {
		return nil, ErrRestored
	}
	objects, err := c.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the bucket: %w", err)
	}
	switch {
	case c.DryRun && restored:
		c.state.RestoredAt = &c.state.Now
	case !c.DryRun && c.Only == nil:
		if err := c.mark(ctx, restored); err != nil {
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

// list lists what is of the installation, or of the workspaces Only alone.
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

// runMark is the object that says which collection was the last.
func (c *collection) runMark() string { return c.prefix() + "collection.json" }

type runMark struct {
	What string    `json:"what"`
	Run  string    `json:"run"`
	At   time.Time `json:"at"`
}

// lastRun is the id of the collection that the bucket saw last, "" for none.
func (c *collection) lastRun(ctx context.Context) (string, error) {
	r, err := c.Bucket.Store.Get(ctx, c.runMark(), 0)
	if errors.Is(err, archive.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, 4<<10))
	if err != nil {
		return "", err
	}
	var m runMark
	if err := json.Unmarshal(b, &m); err != nil || !workspace.ValidID(m.Run) {
		return "unreadable", nil // differs from every other
	}
	return m.Run, nil
}

// mark leaves the id of this collection in the bucket and in the database. A
// crash in between makes them differ, which costs a delay.
func (c *collection) mark(ctx context.Context, restored bool) error {
	run := uuid.NewString()
	content, err := json.MarshalIndent(runMark{"the last garbage collection, by the database that collects here", run, c.state.Now}, "", "  ")
	if err != nil {
		return err
	}
	if _, err := c.Bucket.Store.Put(ctx, c.runMark(), bytes.NewReader(append(content, '\n'))); err != nil {
		return fmt.Errorf("mark the bucket: %w", err)
	}
	var set *Settings
	if c.Server {
		set = &c.Settings
	}
	now := c.state.Now
	if c.state, err = c.db.Begin(ctx, run, restored, set); err != nil {
		return err
	}
	c.state.Now = now
	if restored {
		c.Log.Warn("the bucket was last collected by another database, or by this one at a later time: it was restored from a backup, or a copy of it uses the same bucket; every wait begins anew",
			"installation", c.Bucket.Installation)
	}
	return nil
}

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

// unknown reports what is no archive, and archives of workspaces that the
// database does not have.
func (c *collection) unknown(held postgres.Holdings) {
	for _, o := range c.listing.others {
		if o.Key != c.runMark() {
			c.report.Items = append(c.report.Items, Item{Verdict: Unknown, Reason: "it is nothing of codehub's", Key: o.Key, Size: o.Size})
		}
	}
	for id, archives := range c.listing.archives {
		if _, known := held.Workspaces[id]; known {
			continue
		}
		for key, a := range archives {
			c.report.Items = append(c.report.Items, Item{
				Verdict: Unknown, Reason: "the database has no workspace of this id", Key: key, Workspace: id, Size: a.size,
			})
		}
	}
}

// calls: something is to be written or removed.
func (d decision) calls() bool { return d.changes || d.item.Verdict == Remove && d.there }

// take puts decisions into the report. Where nothing is left to remove nothing
// is to be told.
func (c *collection) take(decisions []decision) {
	for _, d := range decisions {
		if d.item.Verdict != Remove || d.there {
			c.report.Items = append(c.report.Items, d.item)
		}
	}
}

// settle decides about one workspace once more, while nobody changes it, and
// removes what it then still comes to.
func (c *collection) settle(ctx context.Context, id workspace.ID) error {
	var decisions []decision
	var w postgres.Holder
	err := c.db.Settle(ctx, id, func(now time.Time, holder postgres.Holder, records []postgres.Record) []postgres.Finding {
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
		c.Log.Error("archives of a workspace not collected", "workspace", id, "err", err)
		c.report.Failed++
		return failed(ctx, &c.dbFailed, err)
	}
	c.dbFailed = 0
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

// remove removes the objects of an archive that is marked.
func (c *collection) remove(ctx context.Context, item *Item) error {
	if err := c.Bucket.Delete(ctx, item.Key); err != nil {
		item.Error = err.Error()
		c.report.Failed++
		c.Log.Error("archive not removed; the next collection tries again", "workspace", item.Workspace, "key", item.Key, "err", err)
		return err
	}
	c.bucketFailed = 0
	c.Log.Info("archive removed", "workspace", item.Workspace, "key", item.Key, "bytes", item.Size, "why", item.Reason)
	return nil
}

// failed counts a failure, and is the end of the collection when nothing works
// any more.
func failed(ctx context.Context, inARow *int, err error) error {
	*inARow++
	if ctx.Err() != nil || *inARow >= maxFailures {
		return err
	}
	return nil
}

// sweep removes what uploads that broke off left behind, and forgets what was
// removed long ago.
func (c *collection) sweep(ctx context.Context) error {
	if at := c.state.RestoredAt; at == nil || !c.state.Now.Before(at.Add(c.Settings.Delay)) {
		// Asked now: what was begun after is younger than any delay.
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
