package gc_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"codehub/internal/control/gc"
	"codehub/internal/postgres"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"
)

// interrupted is a session that calls a function before its nth use.
type interrupted struct {
	postgres.Session
	at     int
	before func()
	uses   int
}

func (s *interrupted) Do(ctx context.Context, f func(ctx context.Context, conn *pgx.Conn) error) error {
	if s.uses++; s.uses == s.at {
		s.before()
	}
	return s.Session.Do(ctx, f)
}

// atEveryMoment runs collections that have something to remove. Each time, happens is
// called before another use of the database, or after the listing of the bucket. make check and
// make test leave out two of three moments.
func atEveryMoment(t *testing.T, prepare func(w *world) (happens func(), after func(t *testing.T))) {
	w := newWorld(t, nil)
	w.set.Keep = 0
	step := 3
	if harness.Verifying() {
		step = 1
	}
	for at := 0; ; at += step {
		w.Exec(`DELETE FROM archives`)
		w.Exec(`DELETE FROM workspaces`)
		for k := range w.there() {
			check(t, w.bucket.Delete(t.Context(), k))
		}
		happens, after := prepare(w)
		s := &interrupted{Session: w.ctrl, at: at, before: happens}
		w.session, w.store.listed = s, nil
		if at == 0 {
			w.store.listed = sync.OnceFunc(happens)
		}
		_, err := w.tryCollect(gc.Options{})
		check(t, err)
		if s.uses < at {
			happens() // after the collection
		}
		t.Run(fmt.Sprint("at ", at), after)
		w.session, w.store.listed = w.ctrl, nil
		// The next collection succeeds in every case.
		w.collect(gc.Options{})
		t.Run(fmt.Sprint("at ", at, ", and the next"), after)
		if s.uses < at {
			if at < 6 {
				t.Errorf("only %d moments", at)
			}
			return
		}
	}
}

func TestRecoveryDuringCollection(t *testing.T) {
	t.Parallel()
	atEveryMoment(t, func(w *world) (func(), func(*testing.T)) {
		id := w.workspace("one")
		keys := w.generations(id, 2)
		w.collect(gc.Options{})
		w.pass(delay)
		var asked error
		return func() {
				// The archive is found damaged, and its owner recovers.
				w.Exec(`UPDATE workspaces SET phase = 'ERROR', error_reason = 'DataLost' WHERE id = $1`, id)
				_, asked = w.DB.RequestRecoverArchive(w.Context(), w.user, id, opID(keys[0]))
			}, func(t *testing.T) {
				switch {
				case asked == nil && !w.there()[keys[0]]:
					t.Error("an archive that was chosen is gone")
				case asked != nil && workspace.CodeOf(asked) != workspace.CodeArchiveNotFound:
					t.Error(asked)
				case asked != nil && w.there()[keys[0]]:
					t.Error("refused, and the archive is there")
				case !w.there()[keys[1]]:
					t.Error("the current archive is gone")
				}
			}
	})
}

// The controller recovers from an earlier archive, on a request that it read before.
func TestControllerRecoversDuringCollection(t *testing.T) {
	t.Parallel()
	atEveryMoment(t, func(w *world) (func(), func(*testing.T)) {
		id := w.workspace("one")
		keys := w.generations(id, 2)
		w.collect(gc.Options{})
		w.pass(delay)
		ctrl := w.Controller()
		return func() {
				rows, err := ctrl.Candidates(w.Context())
				check(w, err)
				next := *rows[0]
				next.ArchiveKey = keys[0]
				_, err = ctrl.Apply(w.Context(), []postgres.Change{{Seen: *rows[0], Next: next, Claim: true}})
				var refused *postgres.Refused
				if err != nil && !errors.As(err, &refused) {
					w.Error(err)
				}
			}, func(t *testing.T) {
				if now := fixture.Query[string](w, `SELECT archive_key FROM workspaces WHERE id = $1`, id); !w.there()[now] {
					t.Error("the current archive is gone")
				}
			}
	})
}

func TestUndeleteDuringCollection(t *testing.T) {
	t.Parallel()
	atEveryMoment(t, func(w *world) (func(), func(*testing.T)) {
		id := w.workspace("one")
		keys := w.generations(id, 2)
		w.delete(id)
		w.set.DeleteGrace = 0 // another clock or setting than that of the undelete
		var err error
		return func() { _, err = w.DB.UndeleteWorkspace(w.Context(), w.user, id) }, func(t *testing.T) {
			there := w.there()
			switch {
			case err == nil && (!there[keys[0]] || !there[keys[1]]):
				t.Errorf("taken back, and %d archives are left", len(there))
			case err == nil && fixture.Query[string](w, `SELECT archive_key FROM workspaces WHERE id = $1`, id) != keys[1]:
				t.Error("taken back, and it has no archive")
			case err != nil && workspace.CodeOf(err) != workspace.CodeGone:
				t.Error(err)
			case err != nil && len(there) != 0:
				t.Errorf("gone, and %d archives are left", len(there))
			}
		}
	})
}

// A concurrent deletion has just started its grace.
func TestDeletionDuringCollection(t *testing.T) {
	t.Parallel()
	atEveryMoment(t, func(w *world) (func(), func(*testing.T)) {
		w.set.DeleteGrace = grace
		id := w.workspace("one")
		keys := w.generations(id, 2)
		w.collect(gc.Options{})
		w.pass(delay)
		return func() { w.delete(id) }, func(t *testing.T) {
			if !w.there()[keys[1]] {
				t.Error("the archive is gone")
			}
			if _, err := w.DB.UndeleteWorkspace(w.Context(), w.user, id); err != nil {
				t.Error(err)
			}
			w.Exec(`UPDATE workspaces SET deleted_at = now() WHERE id = $1`, id)
		}
	})
}

// An archive becomes current during a collection.
func TestStoreArchiveDuringCollection(t *testing.T) {
	t.Parallel()
	atEveryMoment(t, func(w *world) (func(), func(*testing.T)) {
		id := w.workspace("one")
		w.generations(id, 2)
		w.collect(gc.Options{})
		w.pass(delay)
		w.live(id)
		key, _ := w.claim(id)
		stored := w.upload(id, key, "new")
		ctrl := w.Controller()
		return func() {
				ok, err := ctrl.StoreArchive(w.Context(), stored)
				if !ok || err != nil {
					w.Errorf("not stored: %v", err)
				}
			}, func(t *testing.T) {
				if now := fixture.Query[string](w, `SELECT archive_key FROM workspaces WHERE id = $1`, id); now != key || !w.there()[key] {
					t.Error("the current archive is gone")
				}
				if fixture.Query[bool](w, `SELECT missing_since IS NOT NULL FROM archives WHERE key = $1`, key) {
					t.Error("an archive that the listing could not show counts as missing")
				}
			}
	})
}

// Claims end and start during a collection.
func TestClaimsDuringCollection(t *testing.T) {
	t.Parallel()
	atEveryMoment(t, func(w *world) (func(), func(*testing.T)) {
		id := w.workspace("one")
		keys := w.generations(id, 2)
		w.live(id)
		first, _ := w.claim(id)
		w.upload(id, first, "first")
		var second, third string
		ctrl := w.Controller()
		return func() {
				w.cancel(id)
				second, _ = w.claimBy(ctrl, id)
				w.upload(id, second, "second")
				w.cancel(id)
				third, _ = w.claimBy(ctrl, id)
				ok, err := ctrl.StoreArchive(w.Context(), w.upload(id, third, "third"))
				if !ok || err != nil {
					w.Errorf("not stored: %v", err)
				}
			}, func(t *testing.T) {
				there := w.there()
				if !there[first] || !there[second] || !there[third] || !there[keys[1]] {
					t.Error("an archive is gone")
				}
				// Archives that are newer than the listing are not missing.
				if fixture.Query[bool](w, `SELECT missing_since IS NOT NULL FROM archives WHERE key = $1`, third) {
					t.Error("the current archive counts as missing")
				}
			}
	})
}
