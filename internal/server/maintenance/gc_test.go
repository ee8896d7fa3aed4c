package maintenance

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"codehub/internal/arrivals"
	"codehub/internal/cli/terminal"
	"codehub/internal/control/gc"
	"codehub/internal/control/lease"
	"codehub/internal/postgres"
	"codehub/internal/storage/bucket"
	"codehub/internal/storage/store"
	"codehub/internal/testing/pgtest"
	"codehub/internal/workspace"
)

// bucketCommand runs the commands that work on the bucket.
type bucketCommand struct {
	testing.TB
	dsn, folder string
}

func (c bucketCommand) run(args ...string) (stdout, stderr string, exit int) {
	c.Helper()
	cmd := exec.CommandContext(c.Context(), "codehub", args...)
	cmd.Env = append(os.Environ(), "CODEHUB_DATABASE_URL="+c.dsn, "CODEHUB_ARCHIVE_URL=file://"+c.folder, "CODEHUB_DATA_DIR="+c.TempDir())
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		c.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func (c bucketCommand) json(v any, args ...string) {
	c.Helper()
	out, errs, exit := c.run(append(args, "-o", "json")...)
	if exit != terminal.ExitOK {
		c.Fatalf("%v: exit %d: %s", args, exit, errs)
	}
	if err := json.Unmarshal([]byte(out), v); err != nil {
		c.Fatalf("%v: %v in %s", args, err, out)
	}
}

// archivedThrice makes an installation with a workspace that was archived three
// times.
func archivedThrice(t *testing.T) (c bucketCommand, id workspace.ID, keys []string) {
	t.Helper()
	ctx := t.Context()
	c = bucketCommand{t, pgtest.New(t, postgres.Migrate), filepath.Join(t.TempDir(), "archives")}
	db, err := postgres.Open(ctx, c.dsn, postgres.Options{})
	try(t, err)
	defer db.Close()
	u, err := db.CreateUser(ctx, postgres.User{Username: "ann", PasswordHash: "x"})
	try(t, err)
	ws, err := db.CreateWorkspace(ctx, workspace.Caller{UserID: u.ID}, postgres.NewWorkspace{
		Name: "work", ImageRef: "i", Desired: workspace.DesiredArchived, StorageBackend: workspace.StorageDockerVolume,
	})
	try(t, err)
	installation, err := db.Installation(ctx)
	try(t, err)
	b, err := bucket.New(bucket.Config{Store: store.NewFolder(c.folder), Folder: c.folder, HostFolder: c.folder, Installation: installation, Version: "test"})
	try(t, err)
	try(t, b.Check(ctx, false))
	conn := session(t, c.dsn)
	for range 3 {
		claim := uuid.Must(uuid.NewV7()).String()
		_, err := conn.Exec(ctx, `UPDATE workspaces SET operation = 'CREATE_EMPTY_ARCHIVE', op_id = $2, archive_op_id = $2 WHERE id = $1`, ws.ID, claim)
		try(t, err)
		ctrl := postgres.NewController(postgres.NewSession(conn))
		key := b.Key(ws.ID, claim)
		_, err = ctrl.ClaimArchive(ctx, ws.ID, claim, key)
		try(t, err)
		ws.OpID = claim
		m, err := b.PutEmpty(ctx, ws, "ann")
		try(t, err)
		stored, err := ctrl.StoreArchive(ctx, postgres.Stored{ID: ws.ID, Claim: claim, Key: key, Digest: m.SHA256, Size: m.Size, Entries: m.Entries, Skipped: m.Skipped})
		if try(t, err); !stored {
			t.Fatal("not stored")
		}
		keys = append(keys, key)
	}
	_, err = conn.Exec(ctx, `UPDATE workspaces SET operation = 'NONE', op_id = NULL`)
	try(t, err)
	return c, ws.ID, keys
}

func session(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	cfg, err := postgres.ConnConfig(dsn, "test")
	try(t, err)
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	try(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func try(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestGCCommand(t *testing.T) {
	t.Parallel()
	c, _, keys := archivedThrice(t)
	conn := session(t, c.dsn)
	var r gc.Report
	c.json(&r, "gc", "--dry-run")
	if len(r.Items) != 3 || r.Items[0].Key != keys[0] || r.Items[0].Verdict != gc.Wait || r.Items[2].Verdict != gc.Keep || !r.DryRun {
		t.Errorf("%+v", r)
	}
	out, _, exit := c.run("gc")
	if exit != terminal.ExitOK || !strings.Contains(out, "removal on") || !strings.Contains(out, "keep: 2") || !strings.Contains(out, "work") {
		t.Errorf("exit %d: %s", exit, out)
	}
	_, err := conn.Exec(t.Context(), `UPDATE archives SET unprotected_since = unprotected_since - interval '1 day', superseded_at = superseded_at - interval '1 day'`)
	try(t, err)
	// Another collection is at it.
	collector := postgres.NewCollector(postgres.NewController(postgres.NewSession(conn)))
	try(t, collector.Lock(t.Context()))
	if _, errs, exit := c.run("gc"); exit != terminal.ExitError || !strings.Contains(errs, "another garbage collection") {
		t.Errorf("exit %d: %s", exit, errs)
	}
	try(t, collector.Unlock(t.Context()))
	out, _, _ = c.run("gc", "--dry-run")
	if !strings.Contains(out, "remove: 1") || !strings.Contains(out, "dry run") {
		t.Error(out)
	}
	c.json(&r, "gc")
	if n, _ := r.Removed(); n != 1 {
		t.Errorf("%+v", r)
	}
	if _, err := os.Stat(filepath.Join(c.folder, keys[0])); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(c.folder, keys[1])); err != nil {
		t.Error(err)
	}
	// Not the bucket that the database knows.
	c.folder = t.TempDir()
	if _, errs, exit := c.run("gc"); exit != terminal.ExitError || !strings.Contains(errs, "CODEHUB_ARCHIVE_URL") {
		t.Errorf("exit %d: %s", exit, errs)
	}
	if _, errs, exit := c.run("gc", "--gc-delay", "0"); exit != terminal.ExitUsage || !strings.Contains(errs, "CODEHUB_GC_DELAY") {
		t.Errorf("exit %d: %s", exit, errs)
	}
}

// A pooler that splits sessions stops a command with a message that says what to do.
func TestCommandRefusesTransactionPooler(t *testing.T) {
	t.Parallel()
	pooled := pgtest.Pooler(t, pgtest.New(t, postgres.Migrate), "transaction")
	_, said, exit := bucketCommand{t, pooled, t.TempDir()}.run("gc")
	if exit != terminal.ExitUsage || !strings.Contains(said, "CODEHUB_DATABASE_URL: a connection pooler") || !strings.Contains(said, "pool_mode = session") {
		t.Errorf("exit %d: %s", exit, said)
	}
}

func TestAdoptCommand(t *testing.T) {
	t.Parallel()
	c, id, keys := archivedThrice(t)
	c.dsn = pgtest.New(t, postgres.Migrate) // the database is lost
	if _, errs, exit := c.run("import", "bucket", "--all"); exit != terminal.ExitError || !strings.Contains(errs, "--admin") {
		t.Errorf("exit %d: %s", exit, errs)
	}
	var r arrivals.Report
	c.json(&r, "import", "bucket", "--all", "--admin", "ann", "--dry-run")
	if !r.DryRun || len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "takes the id") || len(r.Workspaces) != 1 || len(r.Users) != 1 || strings.Contains(strings.Join(r.Users[0].Notes, ""), "password") {
		t.Errorf("%+v", r)
	}
	// Beside a server it could not become another installation's.
	leads, stop := context.WithCancel(t.Context())
	cfg, err := postgres.ConnConfig(c.dsn, "codehub-leader")
	try(t, err)
	leading, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- lease.Run(leads, lease.Config{Conn: cfg, Log: slog.New(slog.DiscardHandler), Term: func(ctx context.Context, _ *lease.Session) error {
			close(leading)
			<-ctx.Done()
			return nil
		}})
	}()
	<-leading
	if _, errs, exit := c.run("import", "bucket", "--all", "--admin", "ann"); exit != terminal.ExitError || !strings.Contains(errs, "stop it first") {
		t.Errorf("exit %d: %s", exit, errs)
	}
	stop()
	try(t, <-ended)

	out, errs, exit := c.run("import", "bucket", "--all", "--admin", "ann")
	for _, want := range []string{"ann", "administrator", "shown only once", "1 workspaces added", string(id)} {
		if exit != terminal.ExitOK || !strings.Contains(out, want) {
			t.Errorf("exit %d, no %q in:\n%s\n%s", exit, want, out, errs)
		}
	}
	db, err := postgres.Open(t.Context(), c.dsn, postgres.Options{})
	try(t, err)
	defer db.Close()
	ws, err := db.Workspace(t.Context(), workspace.System, id)
	if err != nil || ws.ArchiveKey != keys[2] || ws.ImageRef != "codehub/workspace:latest" {
		t.Errorf("%v, %+v", err, ws)
	}
	c.json(&r, "import", "bucket", "--all")
	if r.Workspaces[0].Result != arrivals.Already || len(r.Warnings) != 0 {
		t.Errorf("%+v", r)
	}
	// On localhost a second account is refused elsewhere.
	_, err = db.CreateUser(t.Context(), postgres.User{Username: "bob", PasswordHash: "!"})
	try(t, err)
	if out, errs, _ := c.run("import", "bucket", "--all"); !strings.Contains(out, "Warning: 2 accounts can log in, and CODEHUB_URL is on localhost") {
		t.Errorf("%s%s", out, errs)
	}
	if _, errs, exit := c.run("import", "bucket", "--all", "--image", "no image"); exit != terminal.ExitUsage || !strings.Contains(errs, "--image") {
		t.Errorf("exit %d: %s", exit, errs)
	}
}

// The reports are read by people, and what is in them is not theirs to steer a
// terminal with.
func TestReportsAreSafeToPrint(t *testing.T) {
	t.Parallel()
	evil := "evil\x1b[2J\u202e\nx"
	when := time.Now()
	for _, text := range []string{
		collectionText(gc.Report{Restored: true, Items: []gc.Item{{Verdict: gc.Wait, Reason: evil, Key: evil, Name: evil, Due: &when}}}),
	} {
		if strings.ContainsAny(text, "\x1b\u202e") || strings.Contains(text, "\nx") {
			t.Errorf("%q", text)
		}
	}
}
