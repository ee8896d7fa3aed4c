package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"codehub/api"
	"codehub/internal/testing/harness"
)

// Archives and backups are encrypted, and all that owners do with them works. The key file and the files of the bucket
// restore a home without a server; without the key file the server does not start, and nothing but a .meta can be read.
// With a workspace, its key goes. It takes up to 90 s: archives, restores, and a minute until the backups are removed.
func TestEncryptedHomes(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bk := open(t)
			keys := filepath.Join(scratch(t), "archive.key")
			lines, err := exec.CommandContext(t.Context(), env.binary, "archive-key", "new").Output()
			if err == nil {
				err = os.WriteFile(keys, lines, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			s := startQuick(t, append(bk.settings, "CODEHUB_ARCHIVE_KEY_FILE="+keys, "CODEHUB_DEFAULT_IMAGE="+env.slimImage, "CODEHUB_DELETE_GRACE=0s", "COORDINATOR_IDLE_INTERVAL=2s", "CODEHUB_GC_INTERVAL=5s")...)
			id := s.create(api.CreateWorkspace{Name: "alpha"})
			s.awaitPhase(id, "RUNNING")
			s.run(id, "mkdir src && echo one >src/a && head -c 9000000 /dev/urandom >big && sleep 3")
			sums := s.run(id, "sha256sum big src/a")
			first := s.backUp(id, "first")
			s.run(id, "echo two >src/a")
			second := s.backUp(id, "")
			if second.StoredBytes > 1e6 || second.Modified < 1 {
				t.Errorf("the second backup has %+v", second)
			}
			if got := s.backupFile(id, first.ID, "src/a"); got != "one\n" {
				t.Errorf("src/a of the first backup is %q", got)
			}
			if _, err := s.api.RestoreBackup(s.Context(), id, api.RestoreBackup{Backup: first.ID}); err != nil {
				t.Fatal(err)
			}
			s.await(id, "RUNNING with the backup", func(w api.Workspace) bool {
				return w.Phase == "RUNNING" && w.Operation == "NONE" && w.RestoreFrom == nil
			})
			if got := s.run(id, "sha256sum big src/a"); got != sums {
				t.Errorf("the home is\n%s, want that of the first backup\n%s", got, sums)
			}
			made, err := s.api.Fork(s.Context(), id, api.Fork{Backup: first.ID, Count: 1, Start: true})
			if err != nil || len(made) != 1 {
				t.Fatal(made, err)
			}
			fork := made[0].ID
			s.awaitPhase(fork, "RUNNING")
			if got := s.run(fork, "sha256sum big src/a"); got != sums {
				t.Errorf("the fork is\n%s, want that of the first backup\n%s", got, sums)
			}
			s.setDesired(id, "ARCHIVED")
			s.awaitPhase(id, "ARCHIVED")

			d, err := s.api.Download(s.Context(), id, "", 0, "")
			if err != nil {
				t.Fatal(err)
			}
			sum := sha256.New()
			size, err := io.Copy(sum, d.Body)
			d.Body.Close()
			if archives, failed := s.api.Archives(s.Context(), id); err != nil || failed != nil || len(archives) == 0 || archives[0].Digest != hex.EncodeToString(sum.Sum(nil)) || archives[0].Size != size {
				t.Errorf("downloaded are %d bytes with %x, and %+v are listed: %v, %v", size, sum.Sum(nil), archives, err, failed)
			}

			objects := encryptedObjects(t, bk, id)
			for what, key := range map[string]string{"an archive": "home.tar.zst", "a manifest": ".manifest.zst", "a key": ".age"} {
				if !strings.Contains(strings.Join(objects, "\n"), key) {
					t.Errorf("%s is not encrypted: %v", what, objects)
				}
			}
			archives := bk.keys(t, id)
			for i, object := range append(archives, manifestsOf(t, bk, id)...) {
				dir := filepath.Join(t.TempDir(), "home")
				if out, err := exec.CommandContext(t.Context(), env.binary, "unpack", "--key", keys, bk.object(object), dir).CombinedOutput(); err != nil {
					t.Errorf("unpack %s: %v\n%s", object, err, out)
					continue
				}
				if b, err := os.ReadFile(filepath.Join(dir, "src/a")); err != nil || len(b) != 4 {
					t.Errorf("%d: src/a is %q, %v", i, b, err)
				}
			}
			s.setDesired(id, "RUNNING")
			s.awaitPhase(id, "RUNNING")
			if got := s.run(id, "sha256sum big src/a"); got != sums {
				t.Errorf("the restored home is\n%s, want\n%s", got, sums)
			}
			s.discard(id)
			s.discard(fork)
			harness.EventuallyWithin(t, patience, "all objects of the workspace are removed", func() bool {
				left, err := filepath.Glob(filepath.Join(bk.dir, "*", id, "*", "*"))
				return err == nil && len(left) == 0
			})
		})
	}
}

// encryptedObjects returns the objects of a workspace, all of which must be encrypted except for those of .meta.
func encryptedObjects(t *testing.T, bk *bucket, id string) (names []string) {
	t.Helper()
	roots, err := filepath.Glob(filepath.Join(bk.dir, "*", id))
	if err != nil || len(roots) != 1 {
		t.Fatal(roots, err)
	}
	err = filepath.WalkDir(roots[0], func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || strings.HasSuffix(name, ".meta") {
			return err
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if !bytes.HasPrefix(b, []byte("age-encryption.org/v1\n")) {
			t.Errorf("%s is not encrypted", name)
		}
		names = append(names, name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func manifestsOf(t *testing.T, bk *bucket, id string) (keys []string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(bk.dir, "*", id, "backups", "*.manifest.zst"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		rel, err := filepath.Rel(bk.dir, name)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, filepath.ToSlash(rel))
	}
	return keys
}
