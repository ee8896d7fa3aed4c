package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"codehub/internal/e2e/proc"
)

// limits are those that the audit checks at each commit; 0: none.
type limits struct {
	perUser, global int
	observed        bool // what a leader has found running may be more: it is told, and is no error
}

// auditSQL has the database itself record what must never be, in the
// transaction that does it. leaderKey is the leader's lock (internal/lease).
const (
	leaderKey = 0x636f646568756201
	auditSQL  = `
CREATE SCHEMA e2e;
CREATE TABLE e2e.broken (n bigint GENERATED ALWAYS AS IDENTITY, at timestamptz NOT NULL DEFAULT clock_timestamp(), pid int DEFAULT pg_backend_pid(), mild boolean NOT NULL DEFAULT false, what text, detail text);
CREATE SEQUENCE e2e.led;    -- writes by a leader
CREATE SEQUENCE e2e.let_in; -- checks of the limits
CREATE TABLE e2e.most (everybody bigint, mine bigint);
INSERT INTO e2e.most VALUES (0, 0);

CREATE VIEW e2e.holders AS SELECT pid FROM pg_locks
	WHERE locktype = 'advisory' AND granted AND objsubid = 1
	AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
	AND (classid::bigint << 32) | objid::bigint = %[1]d;

-- What the controller alone writes (docs/database.md) comes from the session that
-- holds the leader's lock at that moment.
CREATE FUNCTION e2e.controlled() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM nextval('e2e.led');
	IF NOT EXISTS (SELECT FROM e2e.holders WHERE pid = pg_backend_pid()) THEN
		INSERT INTO e2e.broken (what, detail) VALUES ('somebody who does not lead has written',
			format('workspace %%s: %%s %%s, then %%s %%s; %%s', NEW.id, OLD.phase, OLD.operation, NEW.phase, NEW.operation, current_query()));
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER e2e_controlled AFTER UPDATE ON workspaces FOR EACH ROW WHEN (
	(OLD.home_ctx, OLD.conditions, OLD.phase, OLD.phase_changed_at, OLD.operation, OLD.op_id, OLD.op_started_at, OLD.progress, OLD.archive_op_id,
	 OLD.archive_key, OLD.archive_digest, OLD.archive_size, OLD.error_reason, OLD.error_message, OLD.error_count, OLD.retry_at, OLD.stop_reason)
	IS DISTINCT FROM
	(NEW.home_ctx, NEW.conditions, NEW.phase, NEW.phase_changed_at, NEW.operation, NEW.op_id, NEW.op_started_at, NEW.progress, NEW.archive_op_id,
	 NEW.archive_key, NEW.archive_digest, NEW.archive_size, NEW.error_reason, NEW.error_message, NEW.error_count, NEW.retry_at, NEW.stop_reason)
) EXECUTE FUNCTION e2e.controlled();

-- The limits hold at each commit: whoever takes a slot counts at the end of the
-- transaction, one after the other, so that none is counted without those that
-- were committed just before.
CREATE FUNCTION e2e.limited() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	of_all bigint;
	of_owner bigint;
	allowed bigint;
BEGIN
	PERFORM pg_advisory_xact_lock(4711);
	PERFORM nextval('e2e.let_in');
	SELECT count(*), count(*) FILTER (WHERE owner_user_id = NEW.owner_user_id) INTO of_all, of_owner FROM workspaces WHERE holds_slot;
	SELECT COALESCE(max_running, %[2]d) INTO allowed FROM users WHERE id = NEW.owner_user_id;
	UPDATE e2e.most SET everybody = GREATEST(everybody, of_all), mine = GREATEST(mine, of_owner);
	IF allowed > 0 AND of_owner > allowed OR %[3]d > 0 AND of_all > %[3]d THEN
		INSERT INTO e2e.broken (mild, what, detail) VALUES (%[4]t AND EXISTS (SELECT FROM e2e.holders WHERE pid = pg_backend_pid()), 'more run than may',
			format('workspace %%s: %%s of its owner, of %%s; %%s in all, of %[3]d; %%s, %%s, wanted %%s, container %%s; %%s', NEW.id, of_owner, allowed, of_all,
				NEW.phase, NEW.operation, NEW.desired_state, NEW.conditions #>> '{infra.container_ready,reason}', current_query()));
	END IF;
	RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER e2e_limited_insert AFTER INSERT ON workspaces DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW WHEN (NEW.holds_slot) EXECUTE FUNCTION e2e.limited();
CREATE CONSTRAINT TRIGGER e2e_limited_update AFTER UPDATE ON workspaces DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW WHEN (NEW.holds_slot AND NOT OLD.holds_slot) EXECUTE FUNCTION e2e.limited();
`
)

// audit watches a cluster for what must never be, until the test ends.
type audit struct {
	*cluster
	stop context.CancelFunc
	done sync.WaitGroup
	told int64             // of e2e.broken
	odd  map[string]string // what the last look at the engine found wrong
	seen int               // looks at the engine
}

// watched installs the audit in a database that is migrated; begin has it look,
// until the test ends.
func (c *cluster) watched(l limits) *audit {
	c.Helper()
	c.sql(fmt.Sprintf(auditSQL, uint64(leaderKey), l.perUser, l.global, l.observed))
	return &audit{cluster: c}
}

func (a *audit) begin() {
	ctx, stop := context.WithCancel(context.Background())
	a.stop = stop
	a.done.Go(func() {
		for ctx.Err() == nil {
			_ = a.database(ctx) // the database may be away; the last look must succeed
			a.engine(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	})
	a.Cleanup(a.end)
}

// end takes a last look.
func (a *audit) end() {
	a.stop()
	a.done.Wait()
	if err := a.database(context.Background()); err != nil {
		a.Errorf("look at what the audit has found: %v", err)
	}
	if a.seen == 0 { // a short test on a busy machine
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		a.engine(ctx)
	}
	if a.seen == 0 {
		a.Error("the audit has never seen the engine")
	}
}

// database reports what the triggers have recorded since the last look.
func (a *audit) database(ctx context.Context) error {
	return a.trySQL(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `SELECT n, to_char(at, 'HH24:MI:SS.MS'), pid, mild, what, left(detail, 700) FROM e2e.broken WHERE n > $1 ORDER BY n LIMIT 20`, a.told)
		if err != nil {
			return err
		}
		var at, what, detail string
		var pid uint32
		var mild bool
		_, err = pgx.ForEachRow(rows, []any{&a.told, &at, &pid, &mild, &what, &detail}, func() error {
			who := "nobody known"
			for _, m := range a.members {
				if m.is(pid) {
					who = m.name
				}
			}
			say := a.Errorf
			if mild {
				say = a.Logf
			}
			say("at %s %s (%s): %s", at, what, who, detail)
			return nil
		})
		return err
	})
}

// counted is how many writes of a leader and how many takings of a slot the
// triggers have seen, and the most workspaces that ever held one, in all and
// of one user.
func (a *audit) counted() (led, letIn, everybody, mine int) {
	a.Helper()
	err := a.trySQL(a.Context(), func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM e2e.led), (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM e2e.let_in), everybody, mine FROM e2e.most`).
			Scan(&led, &letIn, &everybody, &mine)
	})
	if err != nil {
		a.Fatal(err)
	}
	return led, letIn, everybody, mine
}

// engine reports what is wrong in two looks in a row: a list is no moment, and
// what is in it may be on its way out.
func (a *audit) engine(ctx context.Context) {
	installation := a.members[0].Installation()
	if installation == "" {
		return
	}
	odd, err := lookAround(ctx, installation)
	if err != nil {
		return // the engine is the machine's: it answers the next time
	}
	a.seen++
	for what := range odd {
		if _, was := a.odd[what]; was && a.odd[what] != "told" {
			a.Errorf("on the engine: %s", what)
			odd[what] = "told"
		} else if was {
			odd[what] = "told"
		}
	}
	a.odd = odd
}

// lookAround lists what must not be: two containers of a workspace, one that
// runs without its volume, one that runs beside a storage job.
func lookAround(ctx context.Context, installation string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	mine := client.Filters{}.Add("label", proc.Label(installation))
	containers, err := env.docker.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: mine})
	if err != nil {
		return nil, err
	}
	volumes, err := env.docker.VolumeList(ctx, client.VolumeListOptions{Filters: mine})
	if err != nil {
		return nil, err
	}
	there := map[string]bool{}
	for _, v := range volumes.Items {
		there[v.Name] = true
	}
	ides, jobs := map[string][]container.Summary{}, map[string]bool{}
	for _, k := range containers.Items {
		id := k.Labels["codehub.workspace"]
		switch {
		case k.Labels["codehub.role"] == "workspace":
			ides[id] = append(ides[id], k)
		case k.Labels["codehub.role"] == "job" && k.State == "running":
			jobs[id] = true
		}
	}
	odd := map[string]string{}
	for _, id := range slices.Sorted(maps.Keys(ides)) {
		all := ides[id]
		if len(all) > 1 {
			odd[fmt.Sprintf("workspace %s has %d containers", id, len(all))] = ""
		}
		for _, k := range all {
			if k.State != "running" {
				continue
			}
			for _, m := range k.Mounts {
				if strings.HasPrefix(m.Name, "ws-") && !there[m.Name] {
					odd[fmt.Sprintf("container %.12s of workspace %s runs without its volume %s", k.ID, id, m.Name)] = ""
				}
			}
			if jobs[id] {
				odd[fmt.Sprintf("container %.12s of workspace %s runs beside a storage job", k.ID, id)] = ""
			}
		}
	}
	return odd, nil
}
