package e2e

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/api"
)

// backup makes a backup of the database and returns a function that restores
// it. The server must be stopped during the restore.
func (s *server) backup(dsn string) (restore func()) {
	s.Helper()
	file := filepath.Join(s.TempDir(), fmt.Sprintf("backup-%d.sql", rand.Uint64()))
	run := func(name string, args ...string) {
		s.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			s.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	run("pg_dump", "--format=custom", "--file="+file, dsn)
	return func() {
		s.Helper()
		ctx := context.Background()
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			s.Fatal(err)
		}
		defer conn.Close(ctx)
		// A server that was killed may have left a statement that still runs.
		s.until("no other connection to the database", func() bool {
			var others int
			err := conn.QueryRow(ctx, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`).Scan(&others)
			return err == nil && others == 0
		})
		if _, err := conn.Exec(ctx, `DROP SCHEMA public CASCADE; CREATE SCHEMA public`); err != nil {
			s.Fatal(err)
		}
		run("pg_restore", "--exit-on-error", "--no-owner", "--dbname="+dsn, file)
	}
}

// awaitHold waits until the server is on hold, or with false until it is not.
func (s *server) awaitHold(on bool) {
	s.Helper()
	s.until(fmt.Sprintf("on hold: %v", on), func() bool {
		st, err := s.api.AdminStatus(s.Context())
		return err == nil && (st.Hold != "") == on && strings.Contains(s.readyz(), `"hold":"failed"`) == on
	})
}

func (s *server) until(what string, ok func() bool) {
	s.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatalf("not reached: %s; /readyz: %s", what, s.readyz())
		}
	}
}

func (s *server) readyz() string {
	resp, err := http.Get(s.URL + "/readyz")
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return string(b)
}

// mark returns the id of the last mark in the database.
func (s *server) mark(dsn string) (id string) {
	s.Helper()
	conn, err := pgx.Connect(s.Context(), dsn)
	if err != nil {
		s.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := conn.QueryRow(s.Context(), `SELECT COALESCE(run::text, '') FROM gc_state`).Scan(&id); err != nil {
		s.Fatal(err)
	}
	return id
}

// awaitMark waits until the server has written another mark.
func (s *server) awaitMark(dsn, before string) {
	s.Helper()
	s.until("another mark", func() bool { return s.mark(dsn) != before })
}

// plan returns the steps of the take-over without applying them, by workspace
// name.
func (s *server) plan() map[string]api.RestoreStep {
	s.Helper()
	p, err := s.api.RestorePlan(s.Context(), api.ApplyRestore{})
	if err != nil {
		s.Fatal(err)
	}
	return byName(p)
}

func byName(p api.RestorePlan) map[string]api.RestoreStep {
	out := map[string]api.RestoreStep{}
	for _, w := range p.Workspaces {
		out[w.Name] = w
	}
	return out
}

func (s *server) takeOver(in api.ApplyRestore) {
	s.Helper()
	if _, err := s.api.ApplyRestore(s.Context(), in); err != nil {
		s.Fatal(err)
	}
	s.awaitHold(false)
}

// refillHome changes a home whose workspace is in STANDBY.
func (s *server) refillHome(id string, rng *rand.Rand) homeState {
	s.Helper()
	fillHome(s.TB, s.homeFolder(id), rng)
	return s.readHome(id)
}

// The database is restored from an old backup. The server is on hold and
// changes nothing; after the take-over every workspace has its newest copy. It takes a
// minute or more, for eight histories of workspaces and three marks.
func TestDatabaseRollback(t *testing.T) {
	t.Parallel()
	b := folderBucket(t)
	dsn := database(t)
	settings := append(b.settings, "CODEHUB_DATABASE_URL="+dsn, "MAX_RUNNING_PER_USER=0", "CODEHUB_ORPHAN_DELAY=1s", "COORDINATOR_IDLE_INTERVAL=1s")
	s := start(t, settings...)
	var mu sync.Mutex
	ids, homes := map[string]string{}, map[string]homeState{}
	names := []string{"live then archived", "archived then live", "archived twice", "deleted since", "undeleted since", "same"}
	s.inParallel(len(names), func(i int, s *server) {
		id, home := s.createFilled(names[i], newRand(t, uint64(400+i)))
		mu.Lock()
		defer mu.Unlock()
		ids[names[i]], homes[names[i]] = id, home
	})
	archive := func(name string) {
		s.setDesired(ids[name], "ARCHIVED")
		s.awaitArchived(b, ids[name], homes[name])
	}
	archive("archived then live")
	archive("archived twice")
	if _, err := s.api.Delete(t.Context(), ids["undeleted since"], false); err != nil {
		t.Fatal(err)
	}
	restore := s.backup(dsn)
	before := s.mark(dsn)

	// These changes are not in the backup.
	archive("live then archived")
	s.setDesired(ids["archived then live"], "STANDBY")
	s.awaitPhase(ids["archived then live"], "STANDBY")
	homes["archived then live"] = s.refillHome(ids["archived then live"], newRand(t, 411))
	s.setDesired(ids["archived twice"], "STANDBY")
	s.awaitPhase(ids["archived twice"], "STANDBY")
	homes["archived twice"] = s.refillHome(ids["archived twice"], newRand(t, 412))
	archive("archived twice")
	if _, err := s.api.Delete(t.Context(), ids["deleted since"], false); err != nil {
		t.Fatal(err)
	}
	if _, err := s.api.Do(t.Context(), ids["undeleted since"], "undelete"); err != nil {
		t.Fatal(err)
	}
	s.setDesired(ids["undeleted since"], "RUNNING")
	s.awaitPhase(ids["undeleted since"], "RUNNING")
	s.write(ids["undeleted since"], "after the undelete")
	ids["made since"] = s.create(api.CreateWorkspace{Name: "made since"})
	s.awaitPhase(ids["made since"], "RUNNING")
	s.write(ids["made since"], "made since the backup")
	ids["made and archived"], homes["made and archived"] = s.createFilled("made and archived", newRand(t, 413))
	archive("made and archived")
	s.awaitMark(dsn, before)
	running := s.containerOf(ids["made since"])

	s.Stop()
	restore()
	s.restart()
	s.awaitHold(true)
	s.expectNothingRemoved(func() {
		plan := s.plan()
		for name, want := range map[string]api.RestoreStep{
			"live then archived": {Action: api.RestoreArchive}, "archived then live": {Action: api.RestoreVolume},
			"archived twice":    {Action: api.RestoreArchive},
			"undeleted since":   {Action: api.RestoreVolume, Undelete: true, Running: true},
			"made since":        {Action: api.RestoreVolume, New: true, Running: true, Owner: "admin"},
			"made and archived": {Action: api.RestoreArchive, New: true, Owner: "admin"},
		} {
			got := plan[name]
			if got.Action != want.Action || got.New != want.New || got.Undelete != want.Undelete || got.Running != want.Running || got.Lost ||
				got.ID != ids[name] || want.Owner != "" && got.Owner != want.Owner {
				t.Errorf("plan for %q: %+v, want %+v", name, got, want)
			}
			delete(plan, name)
		}
		if len(plan) > 0 {
			t.Errorf("the plan also lists %+v", plan)
		}
	})
	s.takeOver(api.ApplyRestore{})

	for _, name := range []string{"made since", "undeleted since"} {
		s.awaitPhase(ids[name], "RUNNING")
	}
	s.expect(ids["made since"], "made since the backup")
	s.expect(ids["undeleted since"], "after the undelete")
	if now := s.containerOf(ids["made since"]); now != running {
		t.Errorf("the running container was %s, now it is %s", running, now)
	}
	for _, name := range []string{"archived then live", "deleted since", "same"} {
		s.awaitPhase(ids[name], "STANDBY")
		compareHomes(s.TB, "the home of "+name, homes[name], s.readHome(ids[name]))
	}
	for _, name := range []string{"live then archived", "archived twice", "made and archived"} {
		s.awaitPhase(ids[name], "ARCHIVED")
		s.setDesired(ids[name], "STANDBY")
		s.awaitRestored(ids[name], homes[name])
	}
	if _, err := s.api.ApplyRestore(t.Context(), api.ApplyRestore{}); err == nil {
		t.Error("a second take-over was accepted")
	}
}

// expectNothingRemoved checks that no container or volume is removed while f
// runs and for some ticks afterwards.
func (s *server) expectNothingRemoved(f func()) {
	s.Helper()
	list := func() map[string]bool {
		there := map[string]bool{}
		for _, name := range s.runtime.all(s) {
			if !strings.Contains(name, "codehub-helper-") { // it ends, such as one that measures a home
				there[name] = true
			}
		}
		return there
	}
	before := list()
	f()
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		after := list()
		for name := range before {
			if !after[name] {
				s.Fatalf("%s was removed", name)
			}
		}
	}
}
