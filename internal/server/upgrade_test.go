package server

import (
	"context"
	"strings"
	"testing"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/testing/harness/fixture"
)

// Servers run on and start while a newer version has migrated their database, as long as it keeps
// what they use. Otherwise they end and do not start, and say why.
func TestServersOnNewerDatabase(t *testing.T) {
	t.Parallel()
	database := fixture.NewDatabase(t, postgres.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	servers := twoServers(t, database, func(int) string { return "CODEHUB_WORKSPACE_URL=path" })
	for _, s := range servers {
		try(t, s.Start(ctx))
	}
	database.Exec(`ALTER TABLE workspaces ADD COLUMN color text NOT NULL DEFAULT 'red'`)
	database.Exec(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (90000, true)`)
	servers[0].Stop()
	try(t, servers[0].Start(ctx))

	// A migration that servers have to be stopped for, although these were suspended meanwhile.
	database.Exec(`UPDATE compatibility SET works_since = 90000`)
	for i, s := range servers {
		select {
		case <-s.Done():
		case <-ctx.Done():
			t.Fatalf("server %d runs on with a database that it does not work with", i)
		}
		if log := s.Log(); s.Err() == nil || !strings.Contains(log, "a newer codehub has migrated the database") {
			t.Errorf("server %d ended with %v:\n%s", i, s.Err(), log)
		}
	}
	if err := servers[1].Start(ctx); err == nil || !strings.Contains(err.Error(), "Run the newer version") {
		t.Errorf("started on a database that it does not work with: %v", err)
	}
}
