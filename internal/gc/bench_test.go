package gc_test

import (
	"os"
	"path/filepath"
	"testing"

	"codehub/internal/gc"
	"codehub/internal/harness/fixture"
)

// A collection that finds nothing to do, of 2,000 workspaces with two archives
// each in a folder.
func BenchmarkCollect(b *testing.B) {
	store := fixture.NewFolder(b)
	w := newWorld(b, store)
	const n = 2000
	w.Exec(`INSERT INTO workspaces (id, owner_user_id, name, image_ref, storage_backend, desired_state, phase)
		SELECT gen_random_uuid(), $1, 'w' || i, 'i', 'docker-volume', 'ARCHIVED', 'ARCHIVED' FROM generate_series(1, $2::int) i`, w.user.UserID, n)
	w.Exec(`INSERT INTO archives (key, workspace_id, archive_op_id, verified_at, created_at, superseded_at)
		SELECT $1 || '/' || id || '/' || op || '/home.tar.zst', id, op, now(), now(), CASE WHEN i = 1 THEN now() END
		FROM workspaces, generate_series(1, 2) i, LATERAL (SELECT gen_random_uuid() op WHERE i > 0) o`, w.bucket.Installation)
	w.Exec(`UPDATE workspaces w SET archive_key = (SELECT key FROM archives WHERE workspace_id = w.id AND superseded_at IS NULL)`)
	rows, err := w.Raw.Query(b.Context(), `SELECT key FROM archives`)
	check(b, err)
	for rows.Next() {
		var key string
		check(b, rows.Scan(&key))
		path := filepath.Join(store.Dir, key)
		check(b, os.MkdirAll(filepath.Dir(path), 0o700))
		check(b, os.WriteFile(path, []byte("x"), 0o600))
		check(b, os.WriteFile(path+".meta", []byte("x"), 0o600))
	}
	check(b, rows.Err())
	if kept, _ := w.collect(gc.Options{}).Count(gc.Keep); kept != 2*n {
		b.Fatalf("%d kept", kept)
	}
	for b.Loop() {
		w.collect(gc.Options{})
	}
}
