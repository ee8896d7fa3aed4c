package homebackup_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"
)

// generations makes n backups of a changing home, a day apart, so many of which expire, and stops.
func (w *world) generations(ws workspace.Workspace, n, expire int) {
	w.Helper()
	collect := w.cfg.Collect
	w.cfg.Collect = time.Hour
	defer func() { w.cfg.Collect = collect }()
	_, stop := w.lead()
	defer stop()
	for i := range n {
		if i > 0 {
			w.pass(24 * time.Hour)
			w.write(ws.ID, string(rune('a'+i)))
		}
		harness.EventuallyWithin(w, patience, "a generation", func() bool {
			return fixture.Query[bool](w, `SELECT count(*) = $2 AND bool_and(state = 'done') FROM home_backups WHERE workspace_id = $1`, ws.ID, i+1)
		})
	}
	harness.EventuallyWithin(w, patience, "some have expired", func() bool {
		return fixture.Query[int](w, `SELECT count(*) FROM home_backups WHERE expired_at IS NOT NULL`) == expire
	})
}

// Expired backups are removed after no job can need them, with the packs that no other one needs.
func TestExpiredBackupsAreRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ws := w.home("one", "first")
	w.cfg.Keep = "2d"
	w.generations(ws, 4, 2)
	all, packs := w.keys(ws.ID)
	if len(all) != 4 || len(packs) != 4 {
		t.Fatalf("%q, %q", all, packs)
	}
	w.Exec(`UPDATE workspaces SET phase = 'STANDBY', phase_changed_at = now() - interval '10 days', backup_interval_seconds = 0`)
	w.age(74 * time.Hour)
	w.Exec(`UPDATE home_backups SET expired_at = expired_at - interval '74 hours'`)
	w.lead()
	harness.EventuallyWithin(w, patience, "the rows of expired ones are removed", func() bool {
		return fixture.Query[int](w, `SELECT count(*) FROM home_backups`) == 2
	})
	manifests, packs := w.keys(ws.ID)
	if len(manifests) != 2 || manifests[0] != all[2] || len(packs) == 4 {
		t.Errorf("%q of %q, %q", manifests, all, packs)
	}
	for _, key := range manifests {
		m, get, err := w.bucket.Generation(t.Context(), key)
		check(t, err)
		_, err = m.Export(t.Context(), get, io.Discard)
		check(t, err)
	}
}

// A backup that a fork is restored from stays, also if its workspace is deleted. All others of a
// deleted workspace are removed once its deletion cannot be undone.
func TestDeletedWorkspace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ws, fork := w.home("one", "first"), w.AddWorkspace(w.owner, "fork")
	w.generations(ws, 2, 0)
	manifests, _ := w.keys(ws.ID)
	w.Change(`UPDATE workspaces SET archive_key = $2, home_ctx = '{"state": "absent"}' WHERE id = $1`, fork.ID, manifests[0])
	w.Change(`UPDATE workspaces SET phase = 'STANDBY', home_ctx = '{"state": "absent"}', deleted_at = now(), conditions = '{}' WHERE id = $1`, ws.ID)
	_, stop := w.lead()
	harness.EventuallyWithin(w, patience, "it has led", func() bool { return w.fake.Calls("Jobs") > 2 })
	w.pass(time.Second)
	stop()
	if all, _ := w.keys(ws.ID); len(all) != 2 {
		t.Fatalf("in the grace: %q", all)
	}
	w.Change(`UPDATE workspaces SET deleted_at = now() - interval '2 hours' WHERE id = $1`, ws.ID)
	led := w.fake.Calls("Jobs")
	_, stop = w.lead()
	harness.EventuallyWithin(w, patience, "it has led", func() bool { return w.fake.Calls("Jobs") > led })
	w.pass(time.Second)
	stop()
	if all, _ := w.keys(ws.ID); len(all) != 2 {
		t.Fatalf("while the deletion can be undone: %q", all)
	}
	w.Change(`UPDATE workspaces SET phase = 'DELETED' WHERE id = $1`, ws.ID)
	w.lead()
	w.await(ws.ID, "done schedule")
	left, packs := w.keys(ws.ID)
	if len(left) != 1 || left[0] != manifests[0] || len(packs) == 0 {
		t.Errorf("%q, %q", left, packs)
	}
	w.Change(`UPDATE workspaces SET home_ctx = '{"state": "live", "claim": "c"}' WHERE id = $1`, fork.ID)
	w.await(ws.ID, "")
	if left, packs := w.keys(ws.ID); len(left)+len(packs) > 0 {
		t.Errorf("%q, %q", left, packs)
	}
}

// Nothing of a workspace is removed while one of its manifests cannot be read. The backup is shown as
// damaged, and the other homes are collected, however many are unreadable.
func TestUnreadableManifestKeepsItsHome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Keep = "1d"
	const bad = 7
	damage := func(key string) {
		file := filepath.Join(w.bucket.Folder, key)
		check(t, os.MkdirAll(filepath.Dir(file), 0o700))
		check(t, os.WriteFile(file, []byte("damaged"), 0o600))
	}
	for i := range bad - 1 { // their ids come before that of the intact home
		ws := w.AddWorkspace(w.owner, string(rune('a'+i)))
		damage(w.bucket.ManifestKey(ws.ID, time.Now(), uuid.NewString()))
	}
	intact := w.home("intact", "first")
	w.generations(intact, 3, 2)
	w.Exec(`UPDATE workspaces SET phase = 'STANDBY', phase_changed_at = now() - interval '10 days', backup_interval_seconds = 0`)
	damaged := w.home("damaged", "first")
	w.generations(damaged, 3, 4)
	manifests, packs := w.keys(damaged.ID)
	damage(manifests[2])
	_, before := w.keys(intact.ID)
	w.Exec(`UPDATE workspaces SET phase = 'STANDBY', phase_changed_at = now() - interval '10 days', backup_interval_seconds = 0`)
	w.age(74 * time.Hour)
	w.Exec(`UPDATE home_backups SET expired_at = expired_at - interval '74 hours'`)
	w.lead()
	harness.EventuallyWithin(w, patience, "the condition", func() bool {
		err := w.health.Err("backup-damaged")
		return err != nil && strings.HasPrefix(err.Error(), fmt.Sprintf("%d homes ", bad))
	})
	if err := w.health.Err("garbage-collection"); err != nil {
		t.Errorf("the collection has failed: %v", err)
	}
	if _, left := w.keys(damaged.ID); len(left) != len(packs) {
		t.Errorf("%q of %q", left, packs)
	}
	if n := fixture.Query[int](w, `SELECT count(*) FROM home_backups WHERE workspace_id = $1 AND damage <> ''`, damaged.ID); n != 1 {
		t.Errorf("%d backups are damaged", n)
	}
	if _, left := w.keys(intact.ID); len(left) >= len(before) {
		t.Errorf("of the intact home %q of %q are left", left, before)
	}
}

// Nothing is removed while codehub is on hold.
func TestHoldStopsCollection(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ws := w.home("one", "first")
	w.cfg.Keep = "1d"
	w.generations(ws, 2, 1)
	w.lead()
	w.Exec(`UPDATE gc_state SET hold = 'another database', hold_since = now()`)
	w.age(74 * time.Hour)
	w.Exec(`UPDATE home_backups SET expired_at = expired_at - interval '74 hours'`)
	harness.EventuallyWithin(w, patience, "the condition", func() bool { return w.health.Err("garbage-collection") != nil })
	if manifests, _ := w.keys(ws.ID); len(manifests) != 2 {
		t.Errorf("%q", manifests)
	}
}

// A backup that the database does not know, as after its restore, is found in the bucket.
func TestUnknownBackupIsFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ws := w.home("one", "first")
	w.generations(ws, 2, 0)
	before := fixture.Query[string](w, `SELECT string_agg(id || ' ' || digest || ' ' || size || ' ' || entries, ', ' ORDER BY id) FROM home_backups`)
	w.Exec(`UPDATE workspaces SET backup_interval_seconds = 0`)
	w.Exec(`DELETE FROM home_backups WHERE created_at < now() - interval '1 hour'`)
	w.Exec(`INSERT INTO home_backups (id, workspace_id, state, cause, ended_at, created_at) VALUES (gen_random_uuid(), $1, 'failed', 'schedule', now(), now() - interval '1 hour')`, ws.ID)
	w.lead()
	w.await(ws.ID, "failed schedule, done schedule, done schedule")
	if after := fixture.Query[string](w, `SELECT string_agg(id || ' ' || digest || ' ' || size || ' ' || entries, ', ' ORDER BY id) FROM home_backups WHERE state = 'done'`); after != before {
		t.Errorf("before %s\nafter %s", before, after)
	}
}

// What remains of packs that are mostly unused is moved, and the backups keep their ids and content. The former
// manifests are removed after no job can need them.
func TestBackupsAreCompacted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ws := w.home("one", "first")
	random := rand.NewChaCha8([32]byte{})
	fill := func(name string, size int) {
		check(t, w.fake.Edit(ws.ID, func(folder string) error {
			content := make([]byte, size)
			_, _ = random.Read(content)
			return os.WriteFile(filepath.Join(folder, name), content, 0o600)
		}))
	}
	fill("changing", 900<<10)
	fill("lasting", 100<<10)
	w.cfg.Keep = "1d"
	w.generations(ws, 1, 0)
	fill("changing", 10)
	w.pass(24 * time.Hour)
	w.generations(ws, 2, 1)
	w.Exec(`UPDATE workspaces SET phase = 'STANDBY', phase_changed_at = now() - interval '10 days', backup_interval_seconds = 0`)
	before := fixture.Query[string](w, `SELECT id || ' ' || entries || ' ' || cause FROM home_backups WHERE expired_at IS NULL`)
	archived := func() []byte {
		key := fixture.Query[string](w, `SELECT key FROM home_backups WHERE expired_at IS NULL`)
		m, get, err := w.bucket.Generation(t.Context(), key)
		check(t, err)
		var b bytes.Buffer
		_, err = m.Export(t.Context(), get, &b)
		check(t, err)
		if row := fixture.Query[string](w, `SELECT digest || ' ' || size FROM home_backups WHERE key = $1`, key); row != fmt.Sprint(m.Digest(), " ", m.Size()) {
			t.Errorf("the database has %s, the bucket %s %d", row, m.Digest(), m.Size())
		}
		return b.Bytes()
	}
	content := archived()
	first, _ := w.keys(ws.ID)
	w.age(74 * time.Hour)
	w.Exec(`UPDATE home_backups SET expired_at = expired_at - interval '74 hours'`)
	w.lead()
	harness.EventuallyWithin(w, patience, "a manifest is rewritten", func() bool {
		all, _ := w.keys(ws.ID)
		return len(all) == 2 && !slices.Contains(all, first[0]) && slices.Contains(all, first[1])
	})
	harness.EventuallyWithin(w, patience, "the database has it", func() bool {
		return fixture.Query[int](w, `SELECT count(*) FROM home_backups WHERE expired_at IS NOT NULL AND key = $1`, first[1]) == 1
	})
	_, packs := w.keys(ws.ID)
	if after := fixture.Query[string](w, `SELECT id || ' ' || entries || ' ' || cause FROM home_backups WHERE expired_at IS NULL`); after != before {
		t.Errorf("before %s, after %s", before, after)
	}
	if !bytes.Equal(archived(), content) {
		t.Error("the backup has another content")
	}
	w.age(74 * time.Hour)
	w.Exec(`UPDATE home_backups SET expired_at = expired_at - interval '74 hours'`)
	harness.EventuallyWithin(w, patience, "the former manifest and its packs are removed", func() bool {
		manifests, left := w.keys(ws.ID)
		return len(manifests) == 1 && !slices.Contains(manifests, first[1]) && len(left) < len(packs) &&
			fixture.Query[int](w, `SELECT count(*) FROM home_backups`) == 1
	})
	if !bytes.Equal(archived(), content) {
		t.Error("the backup has another content")
	}
	// A restored database has the former key.
	w.Exec(`UPDATE home_backups SET key = $1, digest = 'former'`, first[1])
	harness.EventuallyWithin(w, patience, "the manifest is found", func() bool {
		return fixture.Query[bool](w, `SELECT count(*) = 1 AND bool_and(key <> $1 AND digest <> 'former') FROM home_backups`, first[1])
	})
	if !bytes.Equal(archived(), content) {
		t.Error("the backup has another content")
	}
}
