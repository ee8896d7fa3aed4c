package gc_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"codehub/internal/control/gc"
	"codehub/internal/control/mark"
	"codehub/internal/postgres"
	"codehub/internal/storage/bucket"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"
)

// In random histories with collections, no archive that a row names is removed, and the
// newest content of every workspace is available: in its home, in the current archive, or
// in an archive that its owner can recover from.
func TestRandomHistoriesKeepNewestContent(t *testing.T) {
	t.Parallel()
	histories := 4
	if harness.Verifying() {
		histories = 25
	}
	for seed := range histories {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			h := newHistory(t, uint64(seed))
			for range 80 {
				h.step()
				if t.Failed() {
					t.Log(strings.Join(h.told, "\n"))
					return
				}
			}
		})
	}
}

// history is an installation with its real state: the homes, and the content of each
// archive.
type history struct {
	*world
	r       *rand.Rand
	told    []string
	ids     []workspace.ID
	homes   map[workspace.ID]int // content of the existing volume
	newest  map[workspace.ID]int // content that must not be lost; 0: the owner has abandoned it
	content map[string]int       // of complete archives, by key
	late    []string             // keys whose job may still upload
	next    int
	restore func() // nil: there is no backup
	seen    map[workspace.ID]int
}

func newHistory(t *testing.T, seed uint64) *history {
	h := &history{
		world: newWorld(t, nil), r: rand.New(rand.NewPCG(seed, 7)),
		homes: map[workspace.ID]int{}, newest: map[workspace.ID]int{}, content: map[string]int{},
	}
	h.set.Keep = h.r.IntN(3)
	for i := range 3 {
		id := h.workspace(fmt.Sprint(i))
		h.ids = append(h.ids, id)
		h.write(id)
	}
	return h
}

func (h *history) tell(format string, args ...any) {
	h.told = append(h.told, fmt.Sprintf(format, args...))
}

// write changes the content of a live home, as its owner does.
func (h *history) write(id workspace.ID) {
	h.next++
	h.homes[id], h.newest[id] = h.next, h.next
}

// row is the state on which the next step depends.
type row struct {
	phase, op, home, claim, key string
	deleted                     bool
	recover                     string
}

func (h *history) row(id workspace.ID) (r row) {
	h.Helper()
	err := h.Raw.QueryRow(h.Context(), `SELECT phase, operation, home_ctx ->> 'state', COALESCE(op_id::text, ''), COALESCE(archive_key, ''),
		deleted_at IS NOT NULL, COALESCE(recover_archive ->> 'key', '') FROM workspaces WHERE id = $1`, id).
		Scan(&r.phase, &r.op, &r.home, &r.claim, &r.key, &r.deleted, &r.recover)
	check(h, err)
	return r
}

func (h *history) step() {
	id := h.ids[h.r.IntN(len(h.ids))]
	r := h.row(id)
	name := string(id)[30:]
	switch n := h.r.IntN(100); {
	case n < 25:
		h.work(id, r, name)
	case n < 35:
		d := time.Duration(h.r.IntN(300)) * time.Minute
		h.tell("%v pass", d)
		h.pass(d)
		if h.restore != nil {
			h.age(d)
		}
		h.expire()
	case n < 60:
		h.gc()
	case n < 65 && !r.deleted && r.op == "NONE" && r.home != "filling":
		h.tell("%s: deleted", name)
		h.delete(id)
	case n < 75 && r.deleted:
		_, err := h.DB.UndeleteWorkspace(h.Context(), h.user, id)
		h.tell("%s: undeleted: %v", name, err)
		if err == nil {
			h.Exec(`UPDATE workspaces SET phase = CASE WHEN home_ctx ->> 'state' = 'live' THEN 'STANDBY' ELSE 'ARCHIVED' END WHERE id = $1`, id)
		} else if workspace.CodeOf(err) != workspace.CodeGone {
			h.Error(err)
		}
	case n < 78:
		h.tell("backup")
		h.restore = h.backup()
		h.seen = maps.Clone(h.newest)
	case n < 82 && h.restore != nil:
		h.tell("restored from the backup")
		h.restore()
		h.observe()
		// The server compares the marks when its term begins.
		if err := h.mark(); mark.IsForeign(err) {
			h.restored()
			h.gc()
		} else if err != nil {
			h.Error(err)
		}
	case n < 86 && len(h.late) > 0:
		key := h.late[h.r.IntN(len(h.late))]
		h.tell("a late upload")
		// The home that the archive was made of is at least as new.
		h.upload(workspace.ID(bucket.ParseKey(key).Workspace), key, "late")
	case n < 88:
		h.store.listFailsAt = 1 + h.r.IntN(20)
		before := h.there()
		_, err := h.tryCollect(gc.Options{})
		h.tell("a collection fails: %v", err)
		if err != nil && !maps.Equal(before, h.there()) {
			h.Error("a collection that failed has removed something")
		}
		h.store.listFailsAt = 0
	default:
		h.work(id, r, name)
	}
	h.verify()
}

// work performs one step of a workspace.
func (h *history) work(id workspace.ID, r row, name string) {
	switch {
	case r.deleted:
		// The controller removes the home once the grace is over.
		over := fixture.Query[bool](h, `SELECT deleted_at + $2::interval <= now() FROM workspaces WHERE id = $1`, id, grace)
		if over && r.home == "live" {
			h.tell("%s: home of the deleted removed", name)
			delete(h.homes, id)
			h.Exec(`UPDATE workspaces SET home_ctx = '{"state": "absent"}', conditions = '{}' WHERE id = $1`, id)
			h.give(id)
		}
	case r.phase == "ERROR":
		h.recover(id, r, name)
	case r.op == "ARCHIVING":
		h.archiving(id, r, name)
	case r.home == "live" && h.r.IntN(2) == 0:
		h.tell("%s: written", name)
		h.write(id)
	case r.home == "live":
		key, _ := h.claim(id)
		h.tell("%s: archiving %s", name, opID(key)[30:])
	case r.key != "":
		if !h.there()[r.key] {
			h.tell("%s: its archive %s is lost", name, opID(r.key)[30:])
			h.Exec(`UPDATE workspaces SET phase = 'ERROR', error_reason = 'DataLost' WHERE id = $1`, id)
			return
		}
		h.tell("%s: restored from %s", name, opID(r.key)[30:])
		h.live(id)
		h.homes[id] = h.content[r.key]
	default:
		h.tell("%s: provisioned", name)
		h.live(id)
		h.write(id)
	}
}

func (h *history) archiving(id workspace.ID, r row, name string) {
	key := h.bucket.Key(id, r.claim)
	switch h.r.IntN(5) {
	case 0:
		h.tell("%s: half an upload", name)
		h.putHome(id, key, fmt.Sprint(h.homes[id]))
	case 1:
		h.tell("%s: cancelled", name)
		h.cancel(id)
		h.late = append(h.late, key)
	case 2:
		h.tell("%s: uploaded, and cancelled", name)
		h.upload(id, key, fmt.Sprint(h.homes[id]))
		h.content[key] = h.homes[id]
		h.cancel(id)
	default:
		h.tell("%s: archived", name)
		a := h.upload(id, key, fmt.Sprint(h.homes[id]))
		h.content[key] = h.homes[id]
		stored, err := h.ctrl.StoreArchive(h.Context(), a)
		check(h, err)
		if stored {
			delete(h.homes, id)
			h.archived(id)
			// The server stores a mark within seconds.
			check(h, h.mark())
		} else {
			h.cancel(id)
		}
	}
}

// recover recovers with the newest content on offer, as the owner would.
func (h *history) recover(id workspace.ID, r row, name string) {
	if r.recover != "" {
		h.tell("%s: recovered from %s", name, opID(r.recover)[30:])
		h.Exec(`UPDATE workspaces SET archive_key = $2, phase = 'ARCHIVED', error_reason = NULL, home_ctx = '{"state": "absent"}',
			recover_requested_at = NULL, recover_action = NULL, recover_archive = NULL WHERE id = $1`, id, r.recover)
		return
	}
	best := h.best(id)
	if best == nil {
		if h.newest[id] == 0 {
			h.tell("%s: started empty", name)
			h.Exec(`UPDATE workspaces SET archive_key = NULL, phase = 'PENDING', error_reason = NULL, home_ctx = '{"state": "absent"}' WHERE id = $1`, id)
		}
		return
	}
	_, err := h.DB.RequestRecoverArchive(h.Context(), h.user, id, best.OpID)
	check(h, err)
	h.tell("%s: to be recovered from %s", name, best.OpID[30:])
	if h.newest[id] == 0 && h.there()[best.Key] {
		h.newest[id] = h.content[best.Key]
	}
}

// best returns the archive on offer with the newest content.
func (h *history) best(id workspace.ID) (best *workspace.Archive) {
	list, _, err := h.DB.Archives(h.Context(), h.user, id, postgres.Page{})
	check(h, err)
	for _, a := range list {
		if best == nil || h.content[a.Key] > h.content[best.Key] {
			best = &a
		}
	}
	return best
}

// observe is the first observation after a restore: homes in the database may not exist,
// and existing homes may not be in the database (and are kept).
func (h *history) observe() {
	for _, id := range h.ids {
		r := h.row(id)
		_, home := h.homes[id]
		switch {
		case r.deleted:
		case r.home == "live" && !home:
			h.Exec(`UPDATE workspaces SET phase = 'ERROR', error_reason = 'DataLost', operation = 'NONE', op_id = NULL WHERE id = $1`, id)
		case r.home != "live" && home:
			// The volume stays: an administrator repairs this by hand.
			h.live(id)
		}
		if h.newest[id] == 0 && !r.deleted && h.seen[id] != 0 {
			h.newest[id] = 0 // abandoned: it may be available or not
		}
	}
}

// give records that the owner has abandoned the workspace's content.
func (h *history) give(id workspace.ID) { h.newest[id] = 0 }

// expire abandons the content of workspaces whose grace is over in this database.
func (h *history) expire() {
	for _, id := range h.ids {
		if fixture.Query[bool](h, `SELECT deleted_at IS NOT NULL AND GREATEST(deleted_at, (SELECT restored_at FROM gc_state)) + $2::interval <= now()
			FROM workspaces WHERE id = $1`, id, grace) {
			h.give(id)
		}
	}
}

func (h *history) gc() {
	held := map[string]string{}
	for _, id := range h.ids {
		r := h.row(id)
		if r.deleted {
			continue
		}
		held[r.key], held[r.recover] = "current", "to be recovered from"
		if r.op == "ARCHIVING" {
			held[h.bucket.Key(id, r.claim)] = "being created"
		}
		if r.phase == "ERROR" {
			for key := range h.there() {
				going := fixture.Query[bool](h, `SELECT EXISTS (SELECT FROM archives WHERE key = $1 AND deleting_at IS NOT NULL)`, key)
				if bucket.ParseKey(key).Workspace == string(id) && !going {
					held[key] = "in ERROR"
				}
			}
		}
	}
	objects := h.objects()
	report := h.collect(gc.Options{})
	n, _ := report.Removed()
	h.tell("collected: %d removed, restored %v", n, report.Restored)
	after := h.objects()
	for _, o := range objects {
		if slices.Contains(after, o) {
			continue
		}
		if why := held[strings.TrimSuffix(o, ".meta")]; why != "" {
			h.Errorf("%s is gone, and it was %s", o, why)
		}
		if report.Restored {
			// Only archives whose removal was recorded before may be removed.
			if !fixture.Query[bool](h, `SELECT EXISTS (SELECT FROM archives WHERE key = $1 AND deleting_at < $2)`, strings.TrimSuffix(o, ".meta"), report.Started) {
				h.Errorf("%s went at once after a restore", o)
			}
		}
	}
	h.expire()
}

func (h *history) objects() (keys []string) {
	for o, err := range h.store.Store.List(h.Context(), h.bucket.Installation+"/") {
		check(h, err)
		if k := bucket.ParseKey(o.Key).Kind; k == bucket.Home || k == bucket.Meta {
			keys = append(keys, o.Key)
		}
	}
	return keys
}

// verify checks that the newest content of every workspace is available.
func (h *history) verify() {
	there := h.there()
	for _, id := range h.ids {
		want := h.newest[id]
		if want == 0 || h.homes[id] == want {
			continue
		}
		ok := false
		for key := range there {
			k := bucket.ParseKey(key)
			ok = ok || k.Workspace == string(id) && h.content[key] >= want
		}
		if !ok {
			h.Errorf("content %d of %s is nowhere; its home has %d", want, string(id)[30:], h.homes[id])
		}
		// After a collection it can be chosen for a recovery, unless it is current.
		r := h.row(id)
		if h.collected() && r.phase == "ERROR" && !r.deleted {
			if best := h.best(id); best == nil || h.content[best.Key] < want {
				h.Errorf("content %d of %s is not offered", want, string(id)[30:])
			}
		}
	}
}

// collected is whether the last step was a collection.
func (h *history) collected() bool {
	return strings.HasPrefix(h.told[len(h.told)-1], "collected")
}
