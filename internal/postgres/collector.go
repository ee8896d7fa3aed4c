package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// Session is a database session with one user at a time: the leader's (Controller), or a
// command's own.
type Session interface {
	Do(ctx context.Context, f func(ctx context.Context, conn *pgx.Conn) error) error
}

// Collector is the part of the store for garbage collection. It writes through the session that
// holds the lock of collections, so a collection that lost the lock cannot mark anything.
type Collector struct {
	session Session
}

// NewCollector returns the Collector of a session.
func NewCollector(s Session) *Collector { return &Collector{s} }

// answerWithin bounds each use of the session: others wait for it, and a session that does not
// respond is lost.
const answerWithin = 30 * time.Second

func (c *Collector) do(ctx context.Context, f func(ctx context.Context, conn *pgx.Conn) error) error {
	return c.session.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		ctx, cancel := context.WithTimeout(ctx, answerWithin)
		defer cancel()
		return f(ctx, conn)
	})
}

// Holder is a workspace as garbage collection sees it, with the archives that it protects.
type Holder struct {
	ID          workspace.ID
	Name        string
	Phase       workspace.Phase
	Home        workspace.HomeState
	Operation   workspace.Operation
	OpID        string
	ArchiveOpID string
	ArchiveKey  string
	RecoverKey  string   // of the archive to recover from
	ForkKeys    []string // of its archives that homes of other workspaces are restored from
	ErrorReason workspace.ErrorReason
	DeletedAt   *time.Time
}

// Record is a row of the table archives. Times are the database's.
type Record struct {
	Key              string
	WorkspaceID      workspace.ID
	OpID             string
	Found            bool
	Digest           string
	Size             int64
	Entries          int64
	CreatedAt        time.Time
	VerifiedAt       *time.Time // it was read back and became the current one
	CompleteAt       *time.Time // its .meta was read
	SupersededAt     *time.Time // another became the current one
	MissingSince     *time.Time
	UnprotectedSince *time.Time
	DeletingAt       *time.Time
}

// Holdings is a snapshot of the database for garbage collection.
type Holdings struct {
	Now        time.Time
	Workspaces map[workspace.ID]Holder
	Archives   map[workspace.ID][]Record // including those of removed workspaces
}

const (
	holderColumns = `id, name, phase, home_ctx ->> 'state', operation, op_id, archive_op_id, archive_key,
		recover_archive ->> 'key', error_reason, deleted_at,
		ARRAY(SELECT f.archive_key FROM archives a JOIN workspaces f ON f.archive_key = a.key
			WHERE a.workspace_id = workspaces.id AND f.id <> a.workspace_id AND f.phase <> 'DELETED' AND f.home_ctx ->> 'state' IS DISTINCT FROM 'live')`
	recordColumns = `key, workspace_id, archive_op_id, origin = 'found', digest, size, entries, created_at, verified_at, complete_at,
		superseded_at, missing_since, unprotected_since, deleting_at`
)

func (h *Holder) targets() []any {
	return []any{&h.ID, &h.Name, &h.Phase, &h.Home, &h.Operation, orEmpty(&h.OpID), orEmpty(&h.ArchiveOpID), orEmpty(&h.ArchiveKey),
		orEmpty(&h.RecoverKey), (*zeronull.Text)(&h.ErrorReason), &h.DeletedAt, &h.ForkKeys}
}

func (r *Record) targets() []any {
	return []any{&r.Key, &r.WorkspaceID, &r.OpID, &r.Found, &r.Digest, &r.Size, &r.Entries, &r.CreatedAt, &r.VerifiedAt, &r.CompleteAt,
		&r.SupersededAt, &r.MissingSince, &r.UnprotectedSince, &r.DeletingAt}
}

// Holdings reads all workspaces and archives, or only those of ids, in one snapshot.
func (c *Collector) Holdings(ctx context.Context, ids []workspace.ID) (h Holdings, err error) {
	opts := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = c.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		h = Holdings{Workspaces: map[workspace.ID]Holder{}, Archives: map[workspace.ID][]Record{}}
		return pgx.BeginTxFunc(ctx, conn, opts, func(tx pgx.Tx) error {
			if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&h.Now); err != nil {
				return err
			}
			var holder Holder
			if err := each(ctx, tx, `SELECT `+holderColumns+` FROM workspaces`, `id`, ids, holder.targets(), func() {
				h.Workspaces[holder.ID] = holder
			}); err != nil {
				return err
			}
			var r Record
			return each(ctx, tx, `SELECT `+recordColumns+` FROM archives`, `workspace_id`, ids, r.targets(), func() {
				h.Archives[r.WorkspaceID] = append(h.Archives[r.WorkspaceID], r)
			})
		})
	})
	return h, failed("read what is held of archives", err)
}

// each calls f for each row of a query, limited to the workspaces ids unless that is nil.
func each(ctx context.Context, tx pgx.Tx, sql, column string, ids []workspace.ID, targets []any, f func()) error {
	var args []any
	if ids != nil {
		sql += ` WHERE ` + column + ` = ANY ($1::uuid[])`
		args = append(args, ids)
	}
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	_, err = pgx.ForEachRow(rows, targets, func() error { f(); return nil })
	return err
}

// Finding is the result of garbage collection for one archive.
type Finding struct {
	Key  string
	OpID string
	// Add records an archive that was found in the bucket, unless it is recorded already.
	Add bool
	// Digest, Size, Entries, Skipped and CreatedAt are those of its .meta and are written with
	// Complete; CreatedAt only with Add.
	Complete      bool
	Digest        string
	Size, Entries int64
	Skipped       int64
	CreatedAt     time.Time

	Missing     bool // the bucket does not have it
	Unprotected bool // nothing protects it
	// Delete marks it as being removed. The mark is final: nothing may reference the archive
	// from then on.
	Delete bool
}

// Settle locks a workspace and its archives, calls decide with them, and writes its findings in
// the same transaction, so that no recovery, archiving or undeletion comes between a decision
// to remove an archive and its mark. decide is not called if the workspace does not exist, and
// is called again after a conflict.
func (c *Collector) Settle(ctx context.Context, id workspace.ID, decide func(now time.Time, w Holder, archives []Record) []Finding) error {
	err := c.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		var err error
		for range attempts {
			err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return settle(ctx, tx, id, decide) })
			if !abortedForAnother(err) {
				break
			}
		}
		return err
	})
	return failed("settle the archives of workspace "+string(id), err)
}

func settle(ctx context.Context, tx pgx.Tx, id workspace.ID, decide func(now time.Time, w Holder, archives []Record) []Finding) error {
	var w Holder
	// Lock the row before reading the rest, so that the snapshot has the changes of
	// transactions that held it.
	err := tx.QueryRow(ctx, `SELECT `+holderColumns+` FROM workspaces WHERE id = $1 FOR NO KEY UPDATE`, id).Scan(w.targets()...)
	if missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	var now time.Time
	if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
		return err
	}
	var r Record
	var records []Record
	err = each(ctx, tx, `SELECT `+recordColumns+` FROM archives`, `workspace_id`, []workspace.ID{id}, r.targets(), func() { records = append(records, r) })
	if err != nil {
		return err
	}
	var batch pgx.Batch
	for _, f := range decide(now, w, records) {
		f.queue(&batch, id, now)
	}
	if batch.Len() == 0 {
		return nil
	}
	return tx.SendBatch(ctx, &batch).Close()
}

// queue writes a finding. now is the SQL expression of the current time.
func (f Finding) queue(b *pgx.Batch, id workspace.ID, now time.Time) {
	if f.Add {
		at := f.CreatedAt
		if at.IsZero() {
			at = now
		}
		b.Queue(`
			INSERT INTO archives (key, workspace_id, archive_op_id, origin, created_at) VALUES ($1, $2, $3, 'found', $4)
			ON CONFLICT (key) DO NOTHING`, f.Key, id, f.OpID, at)
	}
	if f.Complete {
		b.Queue(`
			UPDATE archives SET digest = $2, size = $3, entries = $4, skipped = $5, complete_at = COALESCE(complete_at, $6)
			WHERE key = $1 AND verified_at IS NULL`, f.Key, f.Digest, f.Size, f.Entries, f.Skipped, now)
	}
	b.Queue(`
		UPDATE archives SET
			missing_since = CASE WHEN $2 THEN COALESCE(missing_since, $5::timestamptz) END,
			unprotected_since = CASE WHEN $3 THEN COALESCE(unprotected_since, $5::timestamptz) END,
			deleting_at = CASE WHEN $4 THEN COALESCE(deleting_at, $5::timestamptz) ELSE deleting_at END
		WHERE key = $1`, f.Key, f.Missing, f.Unprotected, f.Delete, now)
}

// RecheckArchive requests a new observation of an archive (lifecycle.RecheckArchive)
// and reports whether it did.
func (c *Collector) RecheckArchive(ctx context.Context, id workspace.ID, key string, complete, verified bool) (requested bool, err error) {
	err = c.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			w, now, err := lockWorkspace(ctx, tx, workspace.System, id)
			if err != nil {
				return err
			}
			intent := lifecycle.RecheckArchive(w, now, key, complete, verified)
			if requested = intent.Changed; !requested {
				return nil
			}
			if _, err := saveWorkspace(ctx, tx, intent.Workspace, false); err != nil {
				return err
			}
			return audit(ctx, tx, workspace.System, intent.Audit.Action, string(id), intent.Audit.Details)
		})
	})
	if workspace.CodeOf(err) == workspace.CodeNotFound {
		return false, nil
	}
	return requested, failed("request a check of an archive", err)
}

// Release marks a deleted workspace as DELETED after the removal of its archive, or if its home is in a
// backup or in the archive of another one. It returns false if the row no longer allows it.
func (c *Collector) Release(ctx context.Context, id workspace.ID, key string) (released bool, err error) {
	err = c.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		tag, err := conn.Exec(ctx, `
			UPDATE workspaces SET archive_key = NULL, archive_digest = '', archive_size = 0, updated_at = clock_timestamp()
			WHERE id = $1 AND archive_key = $2 AND deleted_at IS NOT NULL AND `+onlyArchives+`
				AND ($3 OR EXISTS (SELECT FROM archives WHERE key = $2 AND deleting_at IS NOT NULL))`, id, key, workspace.SharedArchive(id, key))
		released = err == nil && tag.RowsAffected() == 1
		return err
	})
	return released, failed("let a deleted workspace go", err)
}

// DueDeletions lists deleted workspaces whose grace is over and which have only an archive
// left: at most limit, without except.
func (c *Collector) DueDeletions(ctx context.Context, grace time.Duration, except []workspace.ID, limit int) (ids []workspace.ID, err error) {
	err = c.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `
			SELECT id FROM workspaces
			WHERE deleted_at IS NOT NULL AND phase <> 'DELETED' AND `+onlyArchives+`
				AND archive_key IS NOT NULL AND `+graceBegan+` + make_interval(secs => $1) <= clock_timestamp()
				AND (id = ANY ($2::uuid[])) IS NOT TRUE
			ORDER BY deleted_at LIMIT $3`, grace.Seconds(), except, limit)
		if err != nil {
			return err
		}
		ids, err = pgx.CollectRows(rows, pgx.RowTo[workspace.ID])
		return err
	})
	return ids, failed("look for deleted workspaces", err)
}

// UnderWay lists the ids of the claims that are making archives now.
func (c *Collector) UnderWay(ctx context.Context) (claims map[string]bool, err error) {
	claims = map[string]bool{}
	err = c.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `
			SELECT unnest(ARRAY[op_id, archive_op_id])::text FROM workspaces
			WHERE operation IN ('ARCHIVING', 'CREATE_EMPTY_ARCHIVE')`)
		if err != nil {
			return err
		}
		var id *string
		_, err = pgx.ForEachRow(rows, []any{&id}, func() error {
			if id != nil {
				claims[*id] = true
			}
			return nil
		})
		return err
	})
	return claims, failed("look for archives being made", err)
}

// Forget deletes the records of removed archives that no listing has shown for age.
func (c *Collector) Forget(ctx context.Context, age time.Duration) (n int64, err error) {
	err = c.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		tag, err := conn.Exec(ctx, `
			DELETE FROM archives a WHERE deleting_at IS NOT NULL
				AND GREATEST(deleting_at, missing_since) <= clock_timestamp() - make_interval(secs => $1) AND missing_since IS NOT NULL
				AND NOT EXISTS (SELECT FROM workspaces WHERE id = a.workspace_id AND archive_key = a.key)`, age.Seconds())
		n = tag.RowsAffected()
		return err
	})
	return n, failed("forget removed archives", err)
}

// CollectionSettings are how long a server keeps deleted and replaced archives, as
// codehub serve declares them.
type CollectionSettings struct {
	DeleteGrace time.Duration `name:"delete-grace" env:"CODEHUB_DELETE_GRACE" min:"0s" max:"87600h" default:"2h" help:"Minimum time for which a deletion can be undone (0 = not at all)."`
	Keep        int           `name:"archive-keep" env:"CODEHUB_ARCHIVE_KEEP" min:"0" max:"1000000" default:"1" help:"Earlier archives to keep for each workspace."`
	Delay       time.Duration `name:"gc-delay" env:"CODEHUB_GC_DELAY" min:"1m" max:"87600h" default:"2h" help:"How long an archive that no workspace uses any more is kept."`
}

// CollectionState is the state with which a collection begins.
type CollectionState struct {
	Now        time.Time
	RestoredAt *time.Time // when every wait was last restarted
	Settings   CollectionSettings
}

const selectState = `SELECT clock_timestamp(), restored_at, delete_grace, delay, keep FROM gc_state`

func (s *CollectionState) targets() []any {
	return []any{&s.Now, &s.RestoredAt, &s.Settings.DeleteGrace, &s.Settings.Delay, &s.Settings.Keep}
}

// ErrCollecting reports that another collection is running.
var ErrCollecting = errors.New("another garbage collection is running")

// collectionKey is the advisory lock of collections.
const collectionKey int64 = 0x636f646568756204

// Lock makes this session the only one that collects, until Unlock or the end of the session.
// ErrCollecting if another one holds the lock.
func (c *Collector) Lock(ctx context.Context) error {
	return c.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		var got bool
		err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, collectionKey).Scan(&got)
		if err == nil && !got {
			return ErrCollecting
		}
		return failed("take the lock of collections", err)
	})
}

// Unlock releases the lock.
func (c *Collector) Unlock(ctx context.Context) error {
	return c.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `SELECT pg_advisory_unlock($1)`, collectionKey)
		return failed("give up the lock of collections", err)
	})
}

// State reads the state with which a collection begins.
func (c *Collector) State(ctx context.Context) (s CollectionState, err error) {
	err = c.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, selectState).Scan(s.targets()...)
	})
	return s, failed("read the state of garbage collection", err)
}

// SaveSettings records a server's settings of garbage collection.
func (c *Collector) SaveSettings(ctx context.Context, set CollectionSettings) error {
	err := c.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `UPDATE gc_state SET delete_grace = $1, delay = $2, keep = $3`, set.DeleteGrace, set.Delay, set.Keep)
		return err
	})
	return failed("save the settings of garbage collection", err)
}
