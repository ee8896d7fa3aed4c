package postgres

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// Spent is what a workspace used of the server in some days.
type Spent struct {
	RunningSeconds float64
	CPUSeconds     float64 // of processors
	MemorySeconds  float64 // bytes times seconds
}

// UsageDays is the number of days, today included, that lists sum up.
const UsageDays = 30

// UsageDay is what a workspace used on one day.
type UsageDay struct {
	Day         time.Time // midnight, UTC
	WorkspaceID workspace.ID
	Name        string // of the workspace now
	OwnerID     string // on that day
	Owner       string
	Spent
	HomeBytes     int64 // the largest measurement of the day
	ArchivesBytes int64
}

// UsageSettings are how use is measured and kept, as codehub serve declares them.
type UsageSettings struct {
	Keep         time.Duration `name:"usage-keep" env:"CODEHUB_USAGE_KEEP" min:"24h" max:"87600h" default:"9600h" help:"How long the daily use of workspaces is kept."`
	SizeInterval time.Duration `name:"size-interval" env:"CODEHUB_SIZE_INTERVAL" min:"0" max:"168h" default:"1h" help:"Time between two measurements of the sizes of homes (0 = never)."`
}

// readSpent adds the use of the last UsageDays days to the workspaces.
func readSpent(ctx context.Context, in querier, list []AnyWorkspace) error {
	if len(list) == 0 {
		return nil
	}
	at, ids := make(map[workspace.ID]int, len(list)), make([]workspace.ID, len(list))
	for i, w := range list {
		at[w.ID], ids[i] = i, w.ID
	}
	rows, err := in.Query(ctx, `
		SELECT workspace_id, sum(running_seconds), sum(cpu_seconds), sum(memory_seconds) FROM workspace_usage
		WHERE workspace_id = ANY ($1) AND day > (now() AT TIME ZONE 'UTC')::date - $2::int GROUP BY workspace_id`, ids, UsageDays)
	if err != nil {
		return err
	}
	var id workspace.ID
	var s Spent
	_, err = pgx.ForEachRow(rows, []any{&id, &s.RunningSeconds, &s.CPUSeconds, &s.MemorySeconds}, func() error {
		list[at[id]].Spent = s
		return nil
	})
	return err
}

// usagePage is the number of rows of a report that are read at a time.
const usagePage = 1000

// UsageOf passes to each what workspaces used from a day through another, by day, workspace and
// owner; of all workspaces if id is empty. It holds no connection while each runs, which may
// wait for a slow reader. Only administrators may call it, and it ends with CodeForbidden when
// the caller is none any more.
func (db *DB) UsageOf(ctx context.Context, caller workspace.Caller, id workspace.ID, from, through time.Time, each func(UsageDay) error) error {
	if id != "" && !workspace.ValidID(string(id)) {
		return notFound("workspace")
	}
	for after := (UsageDay{}); ; {
		list, err := db.usageAfter(ctx, caller, id, from, through, after)
		if err != nil {
			return err
		}
		for _, d := range list {
			if err := each(d); err != nil {
				return err
			}
		}
		if len(list) < usagePage {
			return nil
		}
		after = list[len(list)-1]
	}
}

// usageAfter returns the rows of UsageOf that follow after, at most usagePage. The zero value of
// after is before all.
func (db *DB) usageAfter(ctx context.Context, caller workspace.Caller, id workspace.ID, from, through time.Time, after UsageDay) ([]UsageDay, error) {
	if err := db.administers(ctx, caller); err != nil {
		return nil, err
	}
	var q where
	q.add(`d.day BETWEEN ?::date AND ?::date`, from.UTC(), through.UTC())
	if id != "" {
		q.add(`d.workspace_id = ?`, id)
	}
	if after.WorkspaceID != "" {
		q.add(`(d.day, d.workspace_id, d.owner_user_id) > (?::date, ?, ?)`, after.Day, after.WorkspaceID, after.OwnerID)
	}
	const verb = "read the use of workspaces"
	rows, err := db.pool.Query(ctx, `
		SELECT d.day, d.workspace_id, COALESCE(w.name, ''), d.owner_user_id, COALESCE(u.username, ''),
			d.running_seconds, d.cpu_seconds, d.memory_seconds, d.home_bytes, d.archives_bytes
		FROM workspace_usage d LEFT JOIN workspaces w ON w.id = d.workspace_id LEFT JOIN users u ON u.id = d.owner_user_id
		WHERE `+strings.Join(q.parts, ` AND `)+`
		ORDER BY d.day, d.workspace_id, d.owner_user_id LIMIT `+strconv.Itoa(usagePage), q.args...)
	if err != nil {
		return nil, failed(verb, err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d UsageDay, err error) {
		return d, row.Scan(&d.Day, &d.WorkspaceID, &d.Name, &d.OwnerID, &d.Owner,
			&d.RunningSeconds, &d.CPUSeconds, &d.MemorySeconds, &d.HomeBytes, &d.ArchivesBytes)
	})
	return list, failed(verb, err)
}

// Usage records what workspaces use, through the leader's session.
type Usage struct{ session Session }

// NewUsage returns the Usage of the leader's session.
func NewUsage(s Session) *Usage { return &Usage{s} }

// RunningWorkspace is a workspace that runs, and whose it is.
type RunningWorkspace struct {
	ID      workspace.ID
	OwnerID string
	Size    string // the name of its container's size; empty: the default one
}

// Running lists the workspaces that run.
func (u *Usage) Running(ctx context.Context) (list []RunningWorkspace, err error) {
	err = inSession(ctx, u.session, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT id, owner_user_id, COALESCE(running_size, '') FROM workspaces WHERE holds_slot AND phase = 'RUNNING' ORDER BY id`)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, pgx.RowToStructByPos[RunningWorkspace])
		return err
	})
	return list, failed("list running workspaces", err)
}

// Used is what a workspace has used since the last Add.
type Used struct {
	RunningWorkspace
	Spent
}

// Add adds to the use of today.
func (u *Usage) Add(ctx context.Context, list []Used) error {
	ids, owners := make([]workspace.ID, len(list)), make([]string, len(list))
	running, cpu, memory := make([]float64, len(list)), make([]float64, len(list)), make([]float64, len(list))
	for i, l := range list {
		ids[i], owners[i], running[i], cpu[i], memory[i] = l.ID, l.OwnerID, l.RunningSeconds, l.CPUSeconds, l.MemorySeconds
	}
	return failed("record the use of workspaces", inSession(ctx, u.session, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO workspace_usage AS d (day, workspace_id, owner_user_id, running_seconds, cpu_seconds, memory_seconds)
			SELECT (now() AT TIME ZONE 'UTC')::date, * FROM unnest($1::uuid[], $2::uuid[], $3::float8[], $4::float8[], $5::float8[])
			ON CONFLICT (workspace_id, day, owner_user_id) DO UPDATE SET running_seconds = d.running_seconds + EXCLUDED.running_seconds,
				cpu_seconds = d.cpu_seconds + EXCLUDED.cpu_seconds, memory_seconds = d.memory_seconds + EXCLUDED.memory_seconds`,
			ids, owners, running, cpu, memory)
		return err
	}))
}

// SetSizes records the sizes of homes as they were measured, those of archives as they are
// recorded, and both as the use of today. Without homes (nil) their sizes stay.
func (u *Usage) SetSizes(ctx context.Context, homes map[workspace.ID]int64) error {
	var ids []workspace.ID
	var sizes []int64
	for id, n := range homes {
		ids, sizes = append(ids, id), append(sizes, n)
	}
	return failed("record the sizes of homes", inSession(ctx, u.session, func(tx pgx.Tx) error {
		// A row that a request holds is measured the next time.
		_, err := tx.Exec(ctx, `
			WITH sized AS (
				SELECT w.id, CASE WHEN $3 THEN COALESCE(h.bytes, CASE WHEN w.home_ctx ->> 'state' = 'absent' THEN 0 ELSE w.home_bytes END) ELSE w.home_bytes END AS home,
					COALESCE(a.bytes, 0)::bigint AS archives
				FROM workspaces w LEFT JOIN unnest($1::uuid[], $2::bigint[]) AS h (id, bytes) ON h.id = w.id
				LEFT JOIN (SELECT workspace_id, sum(size) AS bytes FROM archives WHERE missing_since IS NULL AND deleting_at IS NULL GROUP BY workspace_id) a ON a.workspace_id = w.id
				WHERE w.phase <> 'DELETED'
			), changed AS (
				SELECT w.id, s.home, s.archives FROM workspaces w JOIN sized s ON s.id = w.id
				WHERE (w.home_bytes, w.archives_bytes) IS DISTINCT FROM (s.home, s.archives) ORDER BY w.id FOR NO KEY UPDATE OF w SKIP LOCKED
			)
			UPDATE workspaces w SET home_bytes = c.home, archives_bytes = c.archives FROM changed c WHERE c.id = w.id`, ids, sizes, homes != nil)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO workspace_usage AS d (day, workspace_id, owner_user_id, home_bytes, archives_bytes)
			SELECT (now() AT TIME ZONE 'UTC')::date, id, owner_user_id, COALESCE(home_bytes, 0), COALESCE(archives_bytes, 0)
			FROM workspaces WHERE total_bytes > 0 AND phase <> 'DELETED'
			ON CONFLICT (workspace_id, day, owner_user_id) DO UPDATE SET home_bytes = GREATEST(d.home_bytes, EXCLUDED.home_bytes),
				archives_bytes = GREATEST(d.archives_bytes, EXCLUDED.archives_bytes)
			WHERE d.home_bytes < EXCLUDED.home_bytes OR d.archives_bytes < EXCLUDED.archives_bytes`)
		return err
	}))
}

// FilledHome is a home that may be at a limit, and when it may have changed last.
type FilledHome struct {
	ID       workspace.ID
	Size     string // the name of the workspace's size; empty: the default one
	Bytes    int64  // as last measured
	Enforced bool   // its volume has the limit
	Running  bool
	Now      time.Time // the database's clock
	PhasedAt time.Time // when the phase changed
	// OwnerFull: the workspaces of its owner use as much as they may; see lifecycle.OwnedSpace.
	OwnerFull bool
}

// Filled lists the present homes without a limit of their volumes that were measured with at least
// so many bytes (0: none), and all homes of owners at their limit of bytes, which is ofOwner unless
// the owner has another one (0: none).
func (u *Usage) Filled(ctx context.Context, least, ofOwner int64) (list []FilledHome, err error) {
	err = inSession(ctx, u.session, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			WITH full_owners AS (
				SELECT w.owner_user_id FROM workspaces w LEFT JOIN user_limits l ON l.user_id = w.owner_user_id
				WHERE w.deleted_at IS NULL AND COALESCE(l.max_bytes, $2) > 0 GROUP BY w.owner_user_id, l.max_bytes
				HAVING `+ownedBytes+` >= COALESCE(l.max_bytes, $2)
			)
			SELECT id, COALESCE(size, ''), COALESCE(home_bytes, 0), home_limit > 0, phase = 'RUNNING', now(), phase_changed_at, o.owner_user_id IS NOT NULL
			FROM workspaces LEFT JOIN full_owners o USING (owner_user_id)
			WHERE phase IN ('RUNNING', 'STANDBY') AND (o.owner_user_id IS NOT NULL OR $1 > 0 AND home_limit = 0 AND home_bytes >= $1) ORDER BY id`, least, ofOwner)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, pgx.RowToStructByPos[FilledHome])
		return err
	})
	return list, failed("list filled homes", err)
}

// Unmeasured lists the workspaces whose homes were not measured since they were created or
// restored.
func (u *Usage) Unmeasured(ctx context.Context) (list []workspace.ID, err error) {
	err = inSession(ctx, u.session, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT id FROM workspaces WHERE phase IN ('RUNNING', 'STANDBY') AND COALESCE(home_bytes, 0) = 0 ORDER BY id`)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, pgx.RowTo[workspace.ID])
		return err
	})
	return list, failed("list homes that are not measured", err)
}

// SetSize records the size of one home.
func (u *Usage) SetSize(ctx context.Context, id workspace.ID, bytes int64) error {
	return failed("record the size of a home", inSession(ctx, u.session, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE workspaces SET home_bytes = $2 WHERE id = $1 AND phase IN ('RUNNING', 'STANDBY') AND home_bytes IS DISTINCT FROM $2`, id, bytes)
		return err
	}))
}

// Trim removes the use of days that are older than keep.
func (u *Usage) Trim(ctx context.Context, keep time.Duration) error {
	return failed("remove old use of workspaces", inSession(ctx, u.session, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `DELETE FROM workspace_usage WHERE day < (now() AT TIME ZONE 'UTC' - make_interval(secs => $1))::date`, keep.Seconds())
		return err
	}))
}
