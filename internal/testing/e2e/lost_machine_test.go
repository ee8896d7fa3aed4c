package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/testing/harness"
)

// The machine is lost: its containers, volumes and data folder. The bucket brings the installation back by the
// steps of docs/backup.md#a-lost-machine: the database from its dump, an archived workspace from its archive, one that
// was in use from its last backup, which is newer than the dump. One without either is in ERROR. It takes a minute, for two servers with the embedded
// database and five starts of workspaces.
func TestLostMachine(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	bk := s3Bucket(t)
	settings := append(bk.settings, "CODEHUB_DEFAULT_IMAGE="+env.slimImage, "CODEHUB_DELETE_GRACE=0s", "COORDINATOR_IDLE_INTERVAL=2s", "MAX_RUNNING_PER_USER=0")
	m := &movable{start(t, settings...), bk, settings}
	s := m.server
	used, stored, fresh := s.create(api.CreateWorkspace{Name: "used"}), s.create(api.CreateWorkspace{Name: "archived"}), s.create(api.CreateWorkspace{Name: "without"})
	for _, id := range []string{used, stored, fresh} {
		s.awaitPhase(id, "RUNNING")
	}
	s.run(stored, "echo archived >a")
	s.setDesired(stored, "ARCHIVED")
	s.awaitPhase(stored, "ARCHIVED")
	s.run(used, "echo one >a; head -c 20000000 /dev/urandom >big")
	s.backUp(used, "before the dump")
	began := time.Now()
	took := func(what string) {
		t.Logf("%s: %s", what, time.Since(began).Round(100*time.Millisecond))
		began = time.Now()
	}
	command := func(args ...string) {
		t.Helper()
		if out, err := m.command(t.Context(), env.binary, args...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
	}
	command("database", "backup")
	s.run(used, "echo two >a; ln a linked")
	last := s.backUp(used, "after the dump")
	sums := s.run(used, "sha256sum a big linked; stat -c '%n %h %s %f %Y' a big linked")
	key, err := os.ReadFile(filepath.Join(s.home, "secret.key"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}

	s.Stop()
	s.sweep()
	if err := os.RemoveAll(s.home); err != nil {
		t.Fatal(err)
	}
	took("the machine was in use, and is lost")

	command("database", "restore", "latest")
	if len(key) > 0 {
		if err := os.WriteFile(filepath.Join(s.home, "secret.key"), key, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	took("database restore latest")
	s.restart()
	took("the server starts")
	// The marks in the bucket are those of the dump, so there is no hold.
	s.await(used, "ERROR", func(w api.Workspace) bool { return w.Phase == "ERROR" })
	took("the lost homes are found")
	var list []api.Backup
	s.until("the last backup is found in the bucket", func() bool {
		list, err = s.api.Backups(t.Context(), used)
		return err == nil && slices.ContainsFunc(list, func(b api.Backup) bool { return b.ID == last.ID })
	})
	if list[0].ID != last.ID || len(list) != 2 {
		t.Errorf("the backups are %+v", list)
	}
	took("the backups are listed")
	if _, err := s.api.Recover(t.Context(), used, api.Recover{Action: api.RecoverArchive, ArchiveOpID: list[0].ID, Confirm: "used"}); err != nil {
		t.Fatal(err)
	}
	s.await(used, "recovered", func(w api.Workspace) bool { return w.Phase != "ERROR" && w.Operation == "NONE" })
	s.setDesired(used, "RUNNING")
	s.awaitPhase(used, "RUNNING")
	if got := s.run(used, "sha256sum a big linked; stat -c '%n %h %s %f %Y' a big linked"); got != sums {
		t.Errorf("the home is\n%s, want that of the last backup\n%s", got, sums)
	}
	took("recovered from the last backup, and running")
	s.setDesired(stored, "RUNNING")
	s.awaitPhase(stored, "RUNNING")
	if got := s.run(stored, "cat a"); got != "archived\n" {
		t.Errorf("the archived home has %q", got)
	}
	w := s.await(fresh, "ERROR", func(w api.Workspace) bool { return w.Phase == "ERROR" })
	if list, err := s.api.Backups(t.Context(), fresh); err != nil || len(list) > 0 || str(w.ErrorReason) != "DataLost" {
		t.Errorf("the one without a copy: %s, %+v, %v", str(w.ErrorReason), list, err)
	}
	took("all are back")
	s.backUp(used, "again")
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	for _, id := range []string{used, stored, fresh} {
		if _, err := s.api.Delete(ctx, id, true); err != nil {
			t.Error(err)
		}
	}
}
