package server

import (
	"context"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"codehub/internal/postgres"
	"codehub/internal/running/service"
	"codehub/internal/server/config"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/pgtest"
	"codehub/internal/users/sealed"
)

// serveFails starts a server that is refused, and returns what it says.
func serveFails(t *testing.T, env ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "codehub", "serve")
	cmd.Env = append(append(os.Environ(), "CODEHUB_LISTEN=127.0.0.1:0", "CODEHUB_URL=http://localhost:8080", "CODEHUB_DATA_DIR="+t.TempDir()), env...)
	out, err := cmd.CombinedOutput()
	if err == nil || cmd.ProcessState.ExitCode() == -1 {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// A pooler that splits sessions stops a server with a message that says what to do.
func TestServerRefusesTransactionPooler(t *testing.T) {
	t.Parallel()
	pooled := pgtest.Pooler(t, pgtest.New(t, postgres.Migrate), "transaction")
	said := serveFails(t, "CODEHUB_DATABASE_URL="+pooled)
	if !strings.Contains(said, "CODEHUB_DATABASE_URL: a connection pooler") || !strings.Contains(said, "pool_mode = session") {
		t.Errorf("%s", said)
	}
}

// Through a pooler that keeps sessions together a server serves and leads. It
// is on the list while it is up, and leaves it in the end.
func TestServesThroughAPooler(t *testing.T) {
	t.Parallel()
	database := fixture.NewDatabase(t, postgres.Options{})
	dsn, db := database.DSN, database.DB
	binary, err := exec.LookPath("codehub")
	try(t, err)
	dir := t.TempDir()
	server, err := proc.New(proc.Options{Binary: binary, DataDir: dir, Env: []string{
		"CODEHUB_DATABASE_URL=" + pgtest.Pooler(t, dsn, "session"), "DOCKER_HOST=unix://" + filepath.Join(dir, "no-engine")}})
	try(t, err)
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	try(t, server.Start(ctx))
	harness.Await(t, 2*time.Minute, "one server, which leads", func() []postgres.Replica {
		list, err := db.Replicas(ctx)
		try(t, err)
		return list
	}, func(list []postgres.Replica) bool { return len(list) == 1 && list[0].Leads && list[0].Alive })
	server.Stop()
	if list, err := db.Replicas(ctx); err != nil || len(list) != 0 {
		t.Errorf("%v, %+v\n%s", err, list, server.Log())
	}
}

// A server that keeps archives elsewhere than one that is alive is refused; its
// row is not on the list.
func TestServerWithOtherArchivesIsRefused(t *testing.T) {
	t.Parallel()
	database := fixture.NewDatabase(t, postgres.Options{})
	dsn, db := database.DSN, database.DB
	other := postgres.Replica{ID: uuid.NewString(), Hostname: "elsewhere", Settings: map[string]string{"CODEHUB_ARCHIVE_URL": "s3://archives/"}}
	try(t, db.JoinReplica(t.Context(), other, func([]postgres.Replica) error { return nil }))
	said := serveFails(t, "CODEHUB_DATABASE_URL="+dsn, "CODEHUB_ARCHIVE_URL=file:///srv/archives")
	if !strings.Contains(said, `CODEHUB_ARCHIVE_URL: it is "file:///srv/archives" here and "s3://archives/" on the server on elsewhere`) {
		t.Errorf("%s", said)
	}
	if list, err := db.Replicas(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("%v, %+v", err, list)
	}
}

func TestSharedSettingsHoldNoSecrets(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"s3://bucket/prefix/?endpoint=https://user:pass@host:9000&region=eu-1&path-style=true": "s3://bucket/prefix?endpoint=https%3A%2F%2Fhost%3A9000",
		"s3://key:secret@bucket": "s3://bucket/",
		"file:///srv/archives/":  "file:///srv/archives",
	} {
		u, err := url.Parse(raw)
		try(t, err)
		if got := archivePlace(u); got != want {
			t.Errorf("%s: %s", raw, got)
		}
	}
	if got := redisPlace("redis://user:secret@host:6379/1"); got != "redis://host:6379/1" {
		t.Error(got)
	}
	if got := redisPlace(""); got != "" {
		t.Error(got)
	}
}

// Homes in folders are where the data folder is, for a server that keeps new
// ones elsewhere, too.
func TestHomesInFoldersAreShared(t *testing.T) {
	t.Parallel()
	db := fixture.NewDatabase(t, postgres.Options{}).DB
	homes := func(storage string) (dir string) {
		cfg := config.Config{DataDir: "/data", Defaults: service.Defaults{StorageBackend: storage}, Runtime: "docker", Archives: &url.URL{Scheme: "file", Path: "/a"}}
		s, err := sharedSettings(t.Context(), cfg, db, &sealed.Ring{})
		try(t, err)
		for name, v := range s.Must {
			if strings.HasPrefix(name, "CODEHUB_DATA_DIR") {
				dir = v
			}
		}
		return dir
	}
	if dir := homes("docker-volume"); dir != "" {
		t.Error(dir)
	}
	if dir := homes("local-dir"); dir != "/data" {
		t.Error(dir)
	}
}
