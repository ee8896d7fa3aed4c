package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"codehub/api"
	codehub "codehub/client"
	"codehub/internal/arrivals"
	"codehub/internal/testing/archivetest"
	"codehub/internal/testing/harness"
)

// movable is a server whose settings maintenance commands use, too.
type movable struct {
	*server
	bucket   *bucket
	settings []string
}

func startMovable(t *testing.T, b *bucket, settings ...string) *movable {
	t.Helper()
	settings = slices.Concat(b.settings, settings, []string{"CODEHUB_DATABASE_URL=" + database(t), "CODEHUB_DELETE_GRACE=0s"})
	return &movable{start(t, settings...), b, settings}
}

// command prepares a maintenance command with the server's settings.
func (m *movable) command(ctx context.Context, binary string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), append([]string{"CODEHUB_DATA_DIR=" + m.home}, m.settings...)...)
	return cmd
}

func (m *movable) allowMoves() {
	m.Helper()
	if out, err := m.command(m.Context(), env.binary, "allow-moves", "--for", "1h").CombinedOutput(); err != nil {
		m.Fatalf("allow-moves: %v: %s", err, out)
	}
}

// moveCommand prepares `codehub import installation` from another server here.
func (m *movable) moveCommand(ctx context.Context, binary string, from *movable, flags ...string) *exec.Cmd {
	cmd := m.command(ctx, binary, append([]string{"import", "installation", "--output", "json"}, flags...)...)
	cmd.Env = append(cmd.Env, "CODEHUB_IMPORT_FROM="+from.URL, "CODEHUB_IMPORT_TOKEN="+from.token)
	return cmd
}

// move runs `codehub import installation` and returns its report and its exit code.
func (m *movable) move(from *movable, flags ...string) (report arrivals.Report, code int) {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), 3*time.Minute)
	defer cancel()
	cmd := m.moveCommand(ctx, env.binary, from, flags...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		m.Fatal(err)
	}
	if err := json.Unmarshal(out, &report); err != nil {
		m.Fatalf("move printed %q: %v\n%s", out, err, stderr.String())
	}
	if strings.Contains(string(out)+stderr.String(), from.token) || strings.Contains(string(out)+stderr.String(), movedSecret) {
		m.Errorf("move printed a secret:\n%s\n%s", out, stderr.String())
	}
	return report, cmd.ProcessState.ExitCode()
}

const movedSecret = "s3cret-of-ann"

// A home with every kind of entry that is hard to preserve moves between two servers, from a
// folder to S3 and back the other way, and is the same there.
func TestMoveBetweenServers(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	for name, c := range map[string]struct {
		from, to                     func(testing.TB) *bucket
		sourceStorage, targetStorage string
	}{
		"folder to S3": {folderBucket, s3Bucket, "docker-volume", "local-dir"},
		"S3 to folder": {s3Bucket, folderBucket, "local-dir", "docker-volume"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source := startMovable(t, c.from(t), "CODEHUB_STORAGE="+c.sourceStorage)
			target := startMovable(t, c.to(t), "CODEHUB_STORAGE="+c.targetStorage)
			ann := source.as("ann")
			odd := ann.create(api.CreateWorkspace{Name: "odd"})
			ann.awaitPhase(odd, "RUNNING")
			ann.setDesired(odd, "STANDBY") // what belongs to others from now on stays theirs
			ann.awaitPhase(odd, "STANDBY")
			archivetest.Corpus(t, ann.homeFolder(odd))
			home := ann.readHome(odd)
			busy := ann.create(api.CreateWorkspace{Name: "busy", Env: map[string]string{"TOKEN": movedSecret}})
			ann.awaitPhase(busy, "RUNNING")
			ann.write(busy, "ann's work")

			if _, err := source.api.WorkspacesToMove(t.Context()); codehub.CodeOf(err) != "forbidden" {
				t.Errorf("an administrator lists workspaces without allow-moves: %v", err)
			}
			source.allowMoves()
			would, code := target.move(source, "--user", "ann", "--dry-run")
			w, err := ann.api.Get(t.Context(), busy)
			if code != 0 || would.Left != 0 || len(would.Workspaces) != 2 || err != nil || w.DesiredState != "RUNNING" {
				t.Errorf("dry run: exit code %d, %+v", code, would)
			}
			report, code := target.move(source, "--user", "ann", "--remove")
			if code != 0 || report.Left != 0 || len(report.Users) != 1 || len(report.Workspaces) != 2 {
				t.Fatalf("move: exit code %d, %+v", code, report)
			}

			accounts, err := target.api.Accounts(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			password := "another password"
			moved := accounts[slices.IndexFunc(accounts, func(a api.Account) bool { return a.Username == "ann" })]
			if _, err := target.api.PatchAccount(t.Context(), moved.ID, api.PatchAccount{Password: &password}); err != nil {
				t.Fatal(err)
			}
			there := target.enterAs("ann", password)
			w = there.awaitArchived(target.bucket, odd, home)
			if got := report.Workspaces[0]; got.ID != odd || got.Home.Key != *w.ArchiveKey || got.Home.Skipped != archivetest.Skipped || got.Source != arrivals.Removed {
				t.Errorf("%+v", got)
			}
			if _, meta, err := target.bucket.unpack(t, *w.ArchiveKey); err != nil || meta.SHA256 != report.Workspaces[0].Home.SHA256 || meta.Owner != "ann" {
				t.Errorf("the archive's .meta: %+v, %v", meta, err)
			}
			ann.expectDeleted(odd)
			ann.expectDeleted(busy)
			there.setDesired(odd, "STANDBY")
			there.awaitRestored(odd, home)
			there.setDesired(busy, "RUNNING")
			if w := there.awaitPhase(busy, "RUNNING"); w.Env["TOKEN"] != movedSecret {
				t.Errorf("%v", w.Env)
			}
			there.expect(busy, "ann's work")
		})
	}
}

// expectDeleted checks that the deletion of a workspace has been requested. Its archives are
// removed by the next garbage collection.
func (s *server) expectDeleted(id string) {
	s.Helper()
	w, err := s.api.Get(s.Context(), id)
	if codehub.CodeOf(err) != "not_found" && (err != nil || w.DeletedAt == nil) {
		s.Errorf("the workspace %s is not deleted: %+v, %v", id, w.DesiredState, err)
	}
}
