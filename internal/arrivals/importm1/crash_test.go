package importm1

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/arrivals"
	"codehub/internal/postgres"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"
)

// checkFinished checks that an import is complete: each workspace was imported once, with its whole
// home, and no temporary objects are left.
func (w *world) checkFinished(imported ...string) {
	w.Helper()
	report := w.bring()
	if report.Left != 0 {
		w.Errorf("left: %+v", report)
	}
	var keys []string
	for _, short := range imported {
		r := report.of(w, w.id(short))
		ws := w.row(r.ID)
		w.holds(ws, homeOf(w, r.OldID))
		keys = append(keys, ws.ArchiveKey, ws.ArchiveKey+".meta")
	}
	slices.Sort(keys)
	equal(w, "objects in the bucket", keys, w.objects())
	equal(w, "old containers", map[string]string{}, w.containers())
	for what, want := range map[string]int{
		`SELECT count(*) FROM workspaces`:                                                     len(imported),
		`SELECT count(*) FROM archives`:                                                       len(imported),
		`SELECT count(*) FROM arrivals WHERE kind = 'workspace' AND arrived_at IS NULL`:       0,
		`SELECT count(*) FROM arrivals WHERE kind = 'workspace' AND abandoned <> '{}'`:        0,
		`SELECT count(*) FROM users`:                                                          1 + len(report.Users),
		`SELECT count(*) FROM audit_log WHERE action = 'workspace.import'`:                    len(imported),
		`SELECT count(*) FROM workspaces WHERE desired_state = 'RUNNING'`:                     1,
		`SELECT count(*) FROM workspaces WHERE archive_key NOT IN (SELECT key FROM archives)`: 0,
	} {
		if got := fixture.Query[int](w, what); got != want {
			w.Errorf("%s: %d, want %d", what, got, want)
		}
	}
}

// smallWorld has three workspaces, one of them running.
func smallWorld(t testing.TB) *world {
	w := newWorld(t)
	w.sql(`DELETE FROM workspaces WHERE id NOT IN ($1, $2, $3)`, w.id("wR0"), w.id("wT0"), w.id("wT1"))
	for _, short := range []string{"wR0", "wT0", "wT1"} {
		w.home(w.id(short), func(dir string) {
			for i := range 20 {
				w.file(filepath.Join(dir, strings.Repeat("f", i+1)), strings.Repeat(short, 1000*i))
			}
		})
	}
	w.run(w.id("wR0"), true)
	w.run(w.id("wT0"), false)
	return w
}

// Killed after its first step, then after its second, and so on, the import has the same
// result.
func TestKilledAfterEveryStep(t *testing.T) {
	t.Parallel()
	w := smallWorld(t)
	kills := 0
	for n := 1; w.apart(spec{Nth: n}); n++ {
		if kills++; kills > 100 {
			t.Fatal("the import does not finish")
		}
	}
	t.Logf("killed %d times", kills)
	if kills < 9 {
		t.Errorf("killed only %d times", kills)
	}
	w.checkFinished("wR0", "wT0", "wT1")
}

// A failing bucket would fail every home, so only one container is stopped for it.
func TestImportBucketError(t *testing.T) {
	t.Parallel()
	w := smallWorld(t)
	w.home(w.id("wT1"), nil)
	w.sql(`UPDATE workspaces SET status = 'RUNNING' WHERE id = $1`, w.id("wT1"))
	w.run(w.id("wT1"), true)
	c := w.config()
	away := w.bucket.Folder + ".away"
	c.Step = func(step string) error {
		if step == "claimed" {
			return errors.Join(os.Rename(w.bucket.Folder, away), os.WriteFile(w.bucket.Folder, nil, 0o600))
		}
		return nil
	}
	report, err := c.bring(t.Context())
	if err == nil || report.Left != 3 {
		t.Fatalf("%v; %+v", err, report)
	}
	states := w.containers()
	if states[w.id("wR0")] != "exited" || states[w.id("wT1")] != "running" {
		t.Errorf("containers: %v", states)
	}
	ok(t, os.Remove(w.bucket.Folder))
	ok(t, os.Rename(away, w.bucket.Folder))
	if report := w.bring(); report.Left != 0 {
		t.Errorf("after the bucket is back: %+v", report)
	}
	equal(t, "old containers", map[string]string{}, w.containers())
}

// If a home is used while it is copied, or the first version still runs, nothing is recorded.
func TestContainerStartedDuringCopy(t *testing.T) {
	t.Parallel()
	w := smallWorld(t)
	for _, at := range []string{"stopped", "verified"} {
		c := w.config()
		c.Step = func(step string) error {
			if step == at {
				w.start("codehub-ws-" + w.id("wR0"))
			}
			return nil
		}
		report, err := c.bring(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if r := report.of(t, w.id("wR0")); r.Result != arrivals.Left || !strings.Contains(r.Reason, "stop the first version") {
			t.Errorf("started when it was %s: %+v", at, r)
		}
		if w.containers()[w.id("wR0")] != "running" {
			t.Error("it was stopped again")
		}
	}
	w.checkFinished("wR0", "wT0", "wT1")
}

// A container of an imported workspace that runs again means that its old home is in use: the
// import reports it and leaves it running.
func TestContainerStartedAfterImport(t *testing.T) {
	t.Parallel()
	w := smallWorld(t)
	w.bring()
	w.run(w.id("wR0"), true)
	w.run(w.id("wT1"), false)
	report := w.bring()
	if r := report.of(t, w.id("wR0")); r.Result != arrivals.Left || !strings.Contains(r.Reason, "running again") || report.Left != 1 {
		t.Errorf("%+v", report)
	}
	equal(t, "containers", map[string]string{w.id("wR0"): "running"}, w.containers())
}

// An attempt that another one has replaced cannot finish.
func TestClaimReplacedByAnotherImport(t *testing.T) {
	t.Parallel()
	w := smallWorld(t)
	c := w.config()
	c.Step = func(step string) error {
		if step == "verified" {
			w.Exec(`UPDATE arrivals SET archive_op_id = gen_random_uuid(), abandoned = abandoned || archive_op_id WHERE arrived_at IS NULL`)
		}
		return nil
	}
	report, err := c.bring(t.Context())
	if err != nil || report.Left != 3 || !strings.Contains(report.Workspaces[0].Reason, "Another import") {
		t.Errorf("%v; %+v", err, report)
	}
	if n := fixture.Query[int](w, `SELECT count(*) FROM workspaces`); n != 0 {
		t.Errorf("%d workspaces", n)
	}
	w.checkFinished("wR0", "wT0", "wT1")
}

func TestImportRunsOnce(t *testing.T) {
	t.Parallel()
	w := smallWorld(t)
	release, err := w.DB.LockImport(t.Context())
	ok(t, err)
	if _, err := w.config().bring(t.Context()); workspace.CodeOf(err) != workspace.CodeOperationInProgress {
		t.Errorf("a second import: %v", err)
	}
	release()

	// An import does not begin during a garbage collection.
	conn, err := pgx.Connect(t.Context(), w.DSN)
	ok(t, err)
	defer conn.Close(t.Context())
	collector := postgres.NewCollector(session{conn})
	ok(t, collector.Lock(t.Context()))
	c, waits := w.config(), make(chan Report)
	go func() {
		report, _ := c.bring(t.Context())
		waits <- report
	}()
	select {
	case report := <-waits:
		t.Errorf("during a collection: %+v", report)
	case <-time.After(300 * time.Millisecond):
	}
	ok(t, collector.Unlock(t.Context()))
	if report := <-waits; report.Left != 0 || len(report.Workspaces) != 3 {
		t.Errorf("after a collection: %+v", report)
	}
	w.checkFinished("wR0", "wT0", "wT1")
}

type session struct{ conn *pgx.Conn }

func (s session) Do(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	return f(ctx, s.conn)
}

// The running limits hold, and the most recently used workspaces run.
func TestImportRespectsRunningLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.allHomes()
	w.sql(`UPDATE workspaces SET status = 'RUNNING' WHERE status <> 'DELETED'`)
	w.sql(`UPDATE workspaces SET updated_at = '2026-03-01Z' WHERE id IN ($1, $2)`, w.id("wG0"), w.id("wE0"))
	w.home(w.id("wC0"), nil)
	report := w.bring()
	var running []string
	for _, r := range report.Workspaces {
		if r.Result == arrivals.Added && w.row(r.ID).DesiredState == workspace.DesiredRunning {
			running = append(running, r.OldID)
		}
	}
	slices.Sort(running)
	want := []string{w.id("wG0"), w.id("wE0"), w.id("wT1")} // two of kim, one of lee
	slices.Sort(want)
	equal(t, "running", want, running)
	if r := report.of(t, w.id("wR0")); r.DesiredState != "STANDBY" || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "running limit is reached") {
		t.Errorf("one above the limit: %+v", r)
	}
}
