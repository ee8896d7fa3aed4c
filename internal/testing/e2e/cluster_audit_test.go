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

	"codehub/internal/testing/e2e/proc"
)

// limits are the running limits that the audit checks at each commit; 0: none.
type limits struct {
	perUser, global int
	observed        bool // more workspaces than the limit are logged, not an error, if the leader observed them running
}

// auditSQL makes the database record violations, in the transaction that
// commits them. leaderKey is the leader's lock (internal/control/lease).
const (
	leaderKey = 0x636f646568756201
	auditSQL  = `
CREATE SCHEMA e2e;
CREATE TABLE e2e.violations (n bigint GENERATED ALWAYS AS IDENTITY, at timestamptz NOT NULL DEFAULT clock_timestamp(), pid int DEFAULT pg_backend_pid(), tolerated boolean NOT NULL DEFAULT false, what text, detail text);
CREATE SEQUENCE e2e.leader_writes;    -- updates of the controller's columns
CREATE SEQUENCE e2e.slots_taken; -- checks of the limits
CREATE TABLE e2e.maxima (total bigint, per_user bigint);
INSERT INTO e2e.maxima VALUES (0, 0);

CREATE VIEW e2e.holders AS SELECT pid FROM pg_locks
	WHERE locktype = 'advisory' AND granted AND objsubid = 1
	AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
	AND (classid::bigint << 32) | objid::bigint = %[1]d;

-- Only the session that holds the leader's lock writes the controller's columns
-- (docs/database.md).
CREATE FUNCTION e2e.controlled() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM nextval('e2e.leader_writes');
	IF NOT EXISTS (SELECT FROM e2e.holders WHERE pid = pg_backend_pid()) THEN
		INSERT INTO e2e.violations (what, detail) VALUES ('a server without the leader''s lock updated a workspace',
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

-- The limits hold at each commit. A transaction that takes a slot counts the slots
-- at its end, under a lock, so that it counts those of all transactions that
-- were committed before.
CREATE FUNCTION e2e.limited() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	of_all bigint;
	of_owner bigint;
	allowed bigint;
BEGIN
	PERFORM pg_advisory_xact_lock(4711);
	PERFORM nextval('e2e.slots_taken');
	SELECT count(*), count(*) FILTER (WHERE owner_user_id = NEW.owner_user_id) INTO of_all, of_owner FROM workspaces WHERE holds_slot;
	SELECT COALESCE(max_running, %[2]d) INTO allowed FROM users WHERE id = NEW.owner_user_id;
	UPDATE e2e.maxima SET total = GREATEST(total, of_all), per_user = GREATEST(per_user, of_owner);
	IF allowed > 0 AND of_owner > allowed OR %[3]d > 0 AND of_all > %[3]d THEN
		INSERT INTO e2e.violations (tolerated, what, detail) VALUES (%[4]t AND EXISTS (SELECT FROM e2e.holders WHERE pid = pg_backend_pid()), 'the running limit is exceeded',
			format('workspace %%s: %%s of its owner, of %%s; %%s in all, of %[3]d; %%s, %%s, desired %%s, container %%s; %%s', NEW.id, of_owner, allowed, of_all,
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

// audit checks a cluster for violations until the test ends.
type audit struct {
	*cluster
	stop         context.CancelFunc
	done         sync.WaitGroup
	reported     int64             // the last reported row of e2e.violations
	suspects     map[string]string // violations in the last check of Docker; "reported" if they were reported
	dockerChecks int               // checks of Docker
}

// installAudit installs the triggers in a migrated database; begin starts the
// checks.
func (c *cluster) installAudit(l limits) *audit {
	c.Helper()
	c.sql(fmt.Sprintf(auditSQL, uint64(leaderKey), l.perUser, l.global, l.observed))
	return &audit{cluster: c}
}

func (a *audit) begin() {
	ctx, stop := context.WithCancel(context.Background())
	a.stop = stop
	a.done.Go(func() {
		for ctx.Err() == nil {
			_ = a.checkDatabase(ctx) // the database may be unavailable; the check in end must succeed
			a.checkDocker(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	})
	a.Cleanup(a.end)
}

// end stops the checks after a last one of the database.
func (a *audit) end() {
	a.stop()
	a.done.Wait()
	if err := a.checkDatabase(context.Background()); err != nil {
		a.Errorf("read the audit's violations: %v", err)
	}
	if a.dockerChecks == 0 { // a short test on a busy machine
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		a.checkDocker(ctx)
	}
	if a.dockerChecks == 0 {
		a.Error("the audit has not checked Docker once")
	}
}

// checkDatabase reports the violations that the triggers recorded since the
// last check.
func (a *audit) checkDatabase(ctx context.Context) error {
	return a.trySQL(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `SELECT n, to_char(at, 'HH24:MI:SS.MS'), pid, tolerated, what, left(detail, 700) FROM e2e.violations WHERE n > $1 ORDER BY n LIMIT 20`, a.reported)
		if err != nil {
			return err
		}
		var at, what, detail string
		var pid uint32
		var tolerated bool
		_, err = pgx.ForEachRow(rows, []any{&a.reported, &at, &pid, &tolerated, &what, &detail}, func() error {
			server := "unknown server"
			for _, m := range a.members {
				if m.servesBackend(pid) {
					server = m.name
				}
			}
			report := a.Errorf
			if tolerated {
				report = a.Logf
			}
			report("at %s %s (%s): %s", at, what, server, detail)
			return nil
		})
		return err
	})
}

// counted returns how many writes of a leader and slots taken the triggers have
// counted, and the maximum number of slots in use, in all and of one user.
func (a *audit) counted() (leaderWrites, slotsTaken, total, perUser int) {
	a.Helper()
	err := a.trySQL(a.Context(), func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM e2e.leader_writes), (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM e2e.slots_taken), total, per_user FROM e2e.maxima`).
			Scan(&leaderWrites, &slotsTaken, &total, &perUser)
	})
	if err != nil {
		a.Fatal(err)
	}
	return leaderWrites, slotsTaken, total, perUser
}

// checkDocker reports violations that it finds in two checks in a row. A list
// is not a snapshot, so that one check may find resources that are being
// removed.
func (a *audit) checkDocker(ctx context.Context) {
	installation := a.members[0].Installation()
	if installation == "" {
		return
	}
	violations, err := dockerViolations(ctx, installation)
	if err != nil {
		return // the next check repeats it
	}
	a.dockerChecks++
	for what := range violations {
		if _, was := a.suspects[what]; was && a.suspects[what] != "reported" {
			a.Errorf("in Docker: %s", what)
			violations[what] = "reported"
		} else if was {
			violations[what] = "reported"
		}
	}
	a.suspects = violations
}

// dockerViolations lists violations: two containers of a workspace, a container
// that runs without its volume or while a storage job runs that needs the home alone.
func dockerViolations(ctx context.Context, installation string) (map[string]string, error) {
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
	existing := map[string]bool{}
	for _, v := range volumes.Items {
		existing[v.Name] = true
	}
	workspaces, jobs := map[string][]container.Summary{}, map[string]bool{}
	for _, k := range containers.Items {
		id := k.Labels["codehub.workspace"]
		switch {
		case k.Labels["codehub.role"] == "workspace":
			workspaces[id] = append(workspaces[id], k)
		case k.Labels["codehub.role"] == "job" && k.State == "running":
			kind := k.Labels["codehub.kind"]
			jobs[id] = jobs[id] || kind == "archive" || kind == "restore"
		}
	}
	violations := map[string]string{}
	for _, id := range slices.Sorted(maps.Keys(workspaces)) {
		all := workspaces[id]
		if len(all) > 1 {
			violations[fmt.Sprintf("workspace %s has %d containers", id, len(all))] = ""
		}
		for _, k := range all {
			if k.State != "running" {
				continue
			}
			for _, m := range k.Mounts {
				if strings.HasPrefix(m.Name, "ws-") && !existing[m.Name] {
					violations[fmt.Sprintf("container %.12s of workspace %s runs without its volume %s", k.ID, id, m.Name)] = ""
				}
			}
			if jobs[id] {
				violations[fmt.Sprintf("container %.12s of workspace %s runs at the same time as an archive or restore", k.ID, id)] = ""
			}
		}
	}
	return violations, nil
}
