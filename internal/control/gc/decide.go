package gc

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"codehub/internal/postgres"
	"codehub/internal/storage/bucket"
	"codehub/internal/storage/encryption"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// Settings define how long archives are kept.
type Settings = postgres.CollectionSettings

// view is the input of the decision about one workspace's archives.
type view struct {
	now        time.Time // the database's
	listedAt   time.Time // by the database, before the bucket was listed
	restoredAt time.Time // zero: never
	set        Settings
	prefix     string // of this installation's keys

	holder    postgres.Holder
	records   map[string]record
	listed    map[string]listed
	described map[string]described
}

// decision is the result for one archive, and what to record of it.
type decision struct {
	item    Item
	finding postgres.Finding
	changes bool // the finding differs from the record
	there   bool // the bucket has at least one of its objects
	// releases: a deleted workspace names a backup or an archive of another workspace. It is not removed
	// with this one: others may be restored from the same one.
	releases bool
}

// decide returns a decision for each archive of one workspace that is in the
// bucket or the database, sorted by key.
func decide(v view) []decision {
	keys := map[string]bool{}
	for k := range v.records {
		keys[k] = true
	}
	for k := range v.listed {
		keys[k] = true
	}
	over, held := v.deleted()
	if over && v.holder.ArchiveKey != "" {
		keys[v.holder.ArchiveKey] = true
	}
	ranks := v.ranks()
	out := make([]decision, 0, len(keys))
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		d := decision{item: Item{Key: key, Workspace: v.holder.ID, Name: v.holder.Name, Size: v.listed[key].size}}
		r, recorded := v.records[key]
		l := v.listed[key]
		switch {
		case recorded && r.DeletingAt != nil:
			d.item.Verdict, d.item.Reason = Remove, "removal in progress"
		case over && slices.Contains(v.holder.ForkKeys, key):
			d.item.Verdict, d.item.Reason = Keep, forked
		case over:
			d.item.Verdict, d.item.Reason = Remove, "workspace deleted on "+moment(*v.holder.DeletedAt)
		case v.holder.DeletedAt != nil:
			d.item.Verdict, d.item.Reason = Keep, held
		default:
			v.living(&d.item, key, ranks)
		}
		if d.item.Verdict == Keep && !recorded && v.described[key].meta != nil {
			d.item.Verdict = Found
		}
		d.there = l.home || l.meta
		if workspace.SharedArchive(v.holder.ID, key) {
			d.releases = over
		} else {
			d.finding, d.changes = v.finding(key, d.item)
		}
		out = append(out, d)
	}
	return out
}

// forked is why an archive is kept that forks have not been restored from yet.
const forked = "forks of the workspace are restored from it"

// deleted reports whether all archives of a deleted workspace are removed, or
// why they are still kept.
func (v view) deleted() (over bool, held string) {
	w := v.holder
	if w.DeletedAt == nil {
		return false, ""
	}
	if due := lifecycle.GraceEnds(*w.DeletedAt, v.restoredAt, v.set.DeleteGrace); v.now.Before(due) {
		return false, "workspace deleted; the deletion can be undone until " + moment(due)
	}
	if !lifecycle.OnlyArchives(w.Operation, w.Home) {
		return false, "workspace deleted; its home is not removed yet"
	}
	// The workspace was used after the recorded deletion: it was undeleted, and
	// a restored backup has lost that.
	for key, l := range v.listed {
		r, recorded := v.records[key]
		switch d := v.described[key]; {
		case !l.complete(), recorded && !r.Found:
			continue
		case recorded && !r.CreatedAt.After(*w.DeletedAt):
			continue
		case !recorded && d.meta != nil && !d.meta.CreatedAt.After(*w.DeletedAt):
			continue
		case !recorded && d.meta == nil && !l.modified.After(*w.DeletedAt):
			continue
		}
		return false, "workspace archived after its deletion; the database was restored from a backup"
	}
	return true, ""
}

// living decides about an archive of a workspace that is not deleted.
func (v view) living(item *Item, key string, ranks map[string]int) {
	w := v.holder
	r, recorded := v.records[key]
	l := v.listed[key]
	keep := func(format string, args ...any) { item.Verdict, item.Reason = Keep, fmt.Sprintf(format, args...) }
	switch {
	case !strings.HasPrefix(key, v.prefix):
		item.Verdict, item.Reason = Unknown, "belongs to another installation"
	case key == w.ArchiveKey && v.currentMissing():
		item.Verdict, item.Reason = Missing, "current archive"
	case key == w.ArchiveKey:
		keep("current archive")
	case v.making(r, l):
		keep("being created")
	case !recorded && !l.complete():
		item.Verdict, item.Reason = Unknown, "incomplete and not in the database"
	case !recorded && v.described[key].meta == nil:
		item.Verdict, item.Reason = Unknown, "unusable .meta: "+v.described[key].why
	case !recorded:
		keep("complete and not in the database")
	case v.since(r):
		keep("created while the bucket was listed")
	case r.known() && !l.complete():
		item.Verdict, item.Reason = Missing, "earlier archive"
	case slices.Contains(w.ForkKeys, key):
		keep(forked)
	case key == w.RecoverKey:
		keep("chosen for a recovery")
	case w.Phase == workspace.PhaseError || w.ErrorReason.Final():
		keep("workspace in ERROR")
	case v.currentMissing():
		keep("current archive missing from the bucket")
	case r.Found && r.SupersededAt == nil:
		keep("found in the bucket and not used yet")
	case r.wasCurrent():
		n := v.set.Keep
		if w.ArchiveKey == "" {
			n = max(n, 1) // the last one is kept until there is a new one
		}
		if rank := ranks[key]; rank < n {
			keep("earlier archive %d of %d to keep", rank+1, n)
			return
		}
		v.unprotected(item, r, "replaced by newer archives")
	case l.complete() && w.Home != workspace.HomeLive && v.newest(r):
		keep("complete and newer than the current archive")
	case l.complete() && r.CreatedAt.Before(v.restoredAt):
		// It may have been the current archive in the time that the restored
		// database has lost.
		keep("complete; the database was restored after it was started")
	case l.complete():
		v.unprotected(item, r, "its operation ended without it")
	default:
		v.unprotected(item, r, "unfinished upload")
	}
}

// unprotected removes an archive that no workspace has used for the delay.
func (v view) unprotected(item *Item, r record, why string) {
	since := v.now
	if r.UnprotectedSince != nil {
		since = *r.UnprotectedSince
	}
	if r.SupersededAt != nil {
		since = later(since, *r.SupersededAt)
	}
	due := later(since, v.restoredAt).Add(v.set.Delay)
	item.Verdict, item.Reason = Remove, why
	if v.now.Before(due) {
		item.Verdict, item.Due = Wait, &due
	}
}

// finding returns what to record of an archive, and whether it differs from the
// record.
func (v view) finding(key string, item Item) (f postgres.Finding, changes bool) {
	r, recorded := v.records[key]
	l := v.listed[key]
	if item.Verdict == Unknown || item.Verdict == Keep && !recorded {
		return f, false
	}
	f = postgres.Finding{
		Key: key, OpID: cmp.Or(bucket.ParseKey(key).OpID, uuid.Nil.String()), Add: !recorded,
		Missing:     item.Verdict == Missing || item.Verdict == Remove && !l.home && !l.meta,
		Unprotected: item.Verdict == Wait || item.Verdict == Remove,
		Delete:      item.Verdict == Remove,
	}
	if m := v.described[key].meta; m != nil {
		f.Complete, f.Digest, f.Size, f.Entries, f.Skipped, f.CreatedAt = true, m.SHA256, m.Size, m.Entries, m.Skipped, m.CreatedAt
	}
	changes = f.Add || f.Complete && r.CompleteAt == nil || f.Missing != (r.MissingSince != nil) ||
		f.Unprotected != (r.UnprotectedSince != nil) || f.Delete && r.DeletingAt == nil
	return f, changes
}

// ranks orders the existing archives that were once current, the latest first.
func (v view) ranks() map[string]int {
	var list []record
	for key, r := range v.records {
		if r.wasCurrent() && r.DeletingAt == nil && v.listed[key].complete() && key != v.holder.ArchiveKey && key != v.holder.RecoverKey {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, record.before)
	out := make(map[string]int, len(list))
	for i, r := range list {
		out[r.Key] = i
	}
	return out
}

// making reports whether a running operation creates the archive.
func (v view) making(r record, l listed) bool {
	op := cmp.Or(r.OpID, l.opID)
	return lifecycle.MakesArchive(v.holder.Operation) && op != "" && (op == v.holder.OpID || op == v.holder.ArchiveOpID)
}

// since reports whether the archive is newer than the listing.
func (v view) since(r record) bool {
	return !r.CreatedAt.Before(v.listedAt) || r.VerifiedAt != nil && !r.VerifiedAt.Before(v.listedAt)
}

// currentListed reports whether the listing should show the current archive. It never shows a backup
// or the archive of another workspace that the home is restored from.
func (v view) currentListed() bool {
	key := v.holder.ArchiveKey
	return strings.HasPrefix(key, v.prefix) && !workspace.SharedArchive(v.holder.ID, key) && !v.since(v.records[key])
}

// currentMissing reports whether the listing should show the current archive and
// shows nothing, or only a part of it.
func (v view) currentMissing() bool {
	r, l := v.records[v.holder.ArchiveKey], v.listed[v.holder.ArchiveKey]
	truncated := r.Size > 0 && !encryption.Fits(l.homeSize, r.Size)
	return v.currentListed() && (!l.complete() || truncated)
}

// newest reports whether an archive is newer than the current one.
func (v view) newest(r record) bool {
	current, recorded := v.records[v.holder.ArchiveKey]
	return !recorded || r.CreatedAt.After(current.CreatedAt)
}

// record is an archive in the database.
type record struct{ postgres.Record }

// known reports whether the archive was once known to be complete.
func (r record) known() bool { return r.VerifiedAt != nil || r.CompleteAt != nil || r.Found }

func (r record) wasCurrent() bool { return r.VerifiedAt != nil || r.SupersededAt != nil }

// before orders archives that were once current, the latest first. One without
// a successor was given up, and is newer than those with one.
func (r record) before(o record) int {
	a, b := r.SupersededAt, o.SupersededAt
	switch {
	case a == nil && b != nil:
		return -1
	case a != nil && b == nil:
		return 1
	case a != nil && !a.Equal(*b):
		return b.Compare(*a)
	}
	return cmp.Or(o.CreatedAt.Compare(r.CreatedAt), cmp.Compare(o.Key, r.Key))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }
