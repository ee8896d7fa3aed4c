package postgres_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"codehub/internal/bus/activity"
	"codehub/internal/postgres"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// statements records the SQL that is sent, with its arguments.
type statements struct {
	mu   sync.Mutex
	args map[string][]any
	list []string
}

func (s *statements) add(sql string, args []any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.args[sql]; !known {
		s.list = append(s.list, sql)
	}
	s.args[sql] = args
}

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	s.add(d.SQL, d.Args)
	return ctx
}
func (*statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (*statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (s *statements) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	s.add(d.SQL, d.Args)
}
func (*statements) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// plan is a node of the output of EXPLAIN.
type plan struct {
	Node     string  `json:"Node Type"`
	Relation string  `json:"Relation Name"`
	Rows     float64 `json:"Plan Rows"`
	Plans    []plan  `json:"Plans"`
}

// large are the tables that grow with the installation.
var large = map[string]bool{"workspaces": true, "archives": true, "users": true, "sessions": true, "audit_log": true}

// problems are the nodes whose cost grows with the installation: sequential scans of large
// tables, and sorts of many rows.
func (p plan) problems() (out []string) {
	switch {
	case p.Node == "Seq Scan" && large[p.Relation]:
		out = append(out, "sequential scan of "+p.Relation)
	case strings.Contains(p.Node, "Sort") && p.Rows > 1000:
		out = append(out, fmt.Sprintf("%s of %.0f rows", p.Node, p.Rows))
	}
	for _, child := range p.Plans {
		out = append(out, child.problems()...)
	}
	return out
}

// TestFrequentStatementsUseIndexes: with many workspaces, no statement of a tick, of
// the idle timeouts, of an operation or of a list reads a whole table or sorts one.
// The statements are those that the methods send.
func TestFrequentStatementsUseIndexes(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{PerUser: 2, Global: 5000}})
	e.exec(`INSERT INTO users (id, username, username_key, password_hash) SELECT gen_random_uuid(), 'u' || i, 'u' || i, '' FROM generate_series(1, 2000) i`)
	e.exec(`ALTER TABLE workspaces DISABLE TRIGGER USER`) // notifications of all rows take long
	e.exec(`
		INSERT INTO workspaces (id, owner_user_id, name, image_ref, storage_backend, desired_state, phase, deleted_at, archive_key, conditions, home_ctx, last_access_at, created_at, phase_changed_at)
		SELECT gen_random_uuid(), u.ids[1 + i % 2000], 'w' || i, 'i', 'docker-volume',
			CASE WHEN i % 50 = 0 THEN 'RUNNING' WHEN i % 20 = 1 THEN 'STANDBY' ELSE 'ARCHIVED' END,
			CASE WHEN i % 50 = 0 THEN 'RUNNING' WHEN i % 20 = 1 THEN 'STANDBY' WHEN i % 7 = 2 THEN 'DELETED' ELSE 'ARCHIVED' END,
			CASE WHEN i % 50 <> 0 AND i % 20 <> 1 AND i % 7 = 2 THEN now() - interval '30 days' END,
			'key' || i, '{"infra.container_ready": {"status": "False", "reason": "NoContainer"}}', '{"state": "absent"}',
			now() - i * interval '1 minute', now() - i * interval '1 minute', now() - i * interval '1 minute'
		FROM generate_series(1, 20000) i, (SELECT array_agg(id) AS ids FROM users) u`)
	e.exec(`ALTER TABLE workspaces ENABLE TRIGGER USER`)
	e.exec(`
		INSERT INTO archives (key, workspace_id, archive_op_id, verified_at)
		SELECT archive_key, id, gen_random_uuid(), now() FROM workspaces WHERE archive_key IS NOT NULL`)
	e.exec(`INSERT INTO audit_log (username, action, target) SELECT 'u', 'a', id::text FROM workspaces`)
	ann := e.user("ann")
	ours := make([]workspace.Workspace, 4)
	for i := range ours {
		ours[i] = e.workspace(ann, state{"phase": "STANDBY"})
	}
	e.exec(`VACUUM ANALYZE`)

	ctx := t.Context()
	seen := &statements{args: map[string][]any{}}
	if err := e.Trace(ctx, seen); err != nil {
		t.Fatal(err)
	}
	cfg, err := postgres.ConnConfig(e.dsn, "test")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Tracer = seen
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	session := postgres.NewSession(conn)
	c := postgres.NewController(session)
	must(c.Candidates(ctx))(t)
	seen.list, seen.args = nil, map[string][]any{} // the first read of a term reads everything

	// A tick.
	e.exec(`UPDATE workspaces SET memo = 'changed' WHERE id = $1`, ours[0].ID)
	must(c.Candidates(ctx))(t)
	next := ours[0]
	next.Operation, next.OpID = workspace.OpArchiving, uuid.NewString()
	apply(t, c, postgres.Change{Seen: ours[0], Next: next, Claim: true})
	must(c.SaveOrphans(ctx, []postgres.Orphan{{Kind: "container", Name: "c"}}))(t)
	must(c.Owned(ctx, ours[0].ID))(t)
	must(e.ApplyQueued(ctx, ours[1].ID))(t)
	// An operation.
	must(c.Owner(ctx, ours[0].ID))(t)
	must(c.ClaimArchive(ctx, ours[0].ID, next.OpID, "new"))(t)
	must(c.StoreArchive(ctx, postgres.Stored{ID: ours[0].ID, Claim: next.OpID, Key: "new"}))(t)
	must(c.KeepHome(ctx, ours[0].ID, next.OpID, "home"))(t)
	// The idle timeouts.
	clock, idle := postgres.NewActivityClock(session), postgres.NewIdleness(session)
	must(clock.State(ctx))(t)
	for _, err := range []error{
		clock.SaveAccesses(ctx, []activity.Access{{ID: ours[1].ID, At: time.Now()}}),
		clock.Take(ctx, activity.Step{WatchedUntil: time.Now()}),
		e.BeatReplica(ctx, postgres.Replica{ID: uuid.NewString()}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(idle.EndIdle(ctx, 100*24*time.Hour, 500))(t)
	must(idle.EndUnused(ctx, 100*24*time.Hour, 500))(t)
	// A user's list and event stream, and a start.
	_, _, err = e.ListWorkspaces(ctx, ann, postgres.Filter{})
	must(0, err)(t)
	_, _, err = e.ListWorkspaces(ctx, ann, postgres.Filter{Recent: true})
	must(0, err)(t)
	must(e.RecentlyDeleted(ctx, ann))(t)
	must(e.Reload(ctx, []string{ann.UserID}, []workspace.ID{ours[0].ID}))(t)
	must(e.RunningOf(ctx, ann.UserID))(t)
	must(e.Wake(ctx, ann, ours[2].ID))(t)

	// Every row's version is compared in each tick (see Candidates).
	const readsAll = `SELECT id, xmin FROM workspaces WHERE phase <> 'DELETED'`
	explained := 0
	for _, sql := range seen.list {
		switch strings.ToUpper(strings.Fields(sql)[0]) {
		case "SELECT", "INSERT", "UPDATE", "DELETE", "WITH":
		default:
			continue
		}
		if sql == readsAll {
			explained++
			continue
		}
		var got []struct{ Plan plan }
		err := pgx.BeginFunc(ctx, e.raw, func(tx pgx.Tx) error {
			var text []byte
			if err := tx.QueryRow(ctx, `EXPLAIN (FORMAT JSON) `+sql, seen.args[sql]...).Scan(&text); err != nil {
				return err
			}
			return json.Unmarshal(text, &got)
		})
		if err != nil || len(got) != 1 {
			t.Errorf("explain %s: %v", sql, err)
			continue
		}
		explained++
		for _, p := range got[0].Plan.problems() {
			t.Errorf("%s in:\n%s", p, sql)
		}
	}
	if explained < 25 {
		t.Errorf("only %d statements were explained", explained)
	}
	t.Logf("%d statements", explained)
}
