package e2e

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"codehub/api"
	"codehub/internal/archive"
)

// A missing or damaged archive puts its workspace in ERROR with a message that
// names the object. Nothing is started, created or deleted, and the home can be
// restored once the object is back.
func TestLostOrDamagedArchiveIsError(t *testing.T) {
	t.Parallel()
	for store, open := range stores {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			b := open(t)
			s := startQuick(t, append(b.settings, "CODEHUB_DELETE_GRACE=0s", "MAX_RUNNING_PER_USER=0")...)
			cases := []struct {
				name, reason string
				meta         bool // damages the .meta instead of the object
				damage       func(content []byte) []byte
			}{
				{"object gone", "DataLost", false, func([]byte) []byte { return nil }},
				{"meta gone", "DataLost", true, func([]byte) []byte { return nil }},
				{"object flipped", "ArchiveCorrupted", false, corrupt},
				{"object cut", "ArchiveCorrupted", false, func(c []byte) []byte { return c[:len(c)/2] }},
				{"meta flipped", "ArchiveCorrupted", true, corrupt},
				{"hostile", "ArchiveCorrupted", false, nil},
			}
			s.inParallel(len(cases), func(i int, s *server) {
				c := cases[i]
				id, home := s.createFilled(c.name, newRand(t, uint64(100+i)))
				s.setDesired(id, "ARCHIVED")
				key := *s.awaitArchived(b, id, home).ArchiveKey
				object, meta := b.object(key), b.object(archive.MetaKey(key))
				good := map[string][]byte{object: s.readObject(object), meta: s.readObject(meta)}
				which := object
				if c.meta {
					which = meta
				}
				if c.damage == nil {
					s.writeHostileArchive(object, meta)
				} else if bad := c.damage(slices.Clone(good[which])); bad != nil {
					s.writeObject(which, bad)
				} else if err := os.Remove(which); err != nil {
					s.Fatal(err)
				}
				before := s.files(filepath.Dir(object))

				s.setDesired(id, "RUNNING")
				w := s.await(id, "in ERROR", func(w api.Workspace) bool { return w.Phase == "ERROR" })
				if str(w.ErrorReason) != c.reason || !strings.Contains(str(w.ErrorMessage), key) {
					s.Errorf("%s: %s: %s; want %s and the key %s", c.name, str(w.ErrorReason), str(w.ErrorMessage), c.reason, key)
				}
				if w.ArchiveKey == nil || *w.ArchiveKey != key {
					s.Errorf("%s: the archive key was removed", c.name)
				}
				if status, page := s.visit(id); status != http.StatusBadGateway {
					s.Errorf("%s: opening the workspace: %d: %.200s", c.name, status, page)
				}
				if _, err := s.api.Want(s.Context(), id, "RUNNING", true); err == nil {
					s.Errorf("%s: a start was accepted", c.name)
				}
				s.expectNoContainers(id)
				if after := s.files(filepath.Dir(object)); !slices.Equal(before, after) {
					s.Errorf("%s: the bucket had the files %v, now it has %v", c.name, before, after)
				}
				// A recovery fails as long as the archive is damaged.
				s.recoverAndFail(id)

				for name, content := range good {
					s.writeObject(name, content)
				}
				s.recover(id, api.Recover{}) // the desired state is still RUNNING
				s.awaitPhase(id, "RUNNING")
				compareHomes(s.TB, "the home of "+c.name, withoutRoot(home), withoutRoot(s.readHome(id)))
				s.discard(id)
			})
		})
	}
}

func corrupt(content []byte) []byte {
	content[len(content)/2] ^= 0x55
	return content
}

func (s *server) readObject(name string) []byte {
	s.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		s.Fatal(err)
	}
	return b
}

// writeObject replaces a file of the bucket by a new one, as the store does.
func (s *server) writeObject(name string, content []byte) {
	s.Helper()
	_ = os.Remove(name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		s.Fatal(err)
	}
	if err := os.WriteFile(name, content, 0o644); err != nil {
		s.Fatal(err)
	}
}

// files returns the names in a folder of the bucket.
func (s *server) files(dir string) []string {
	s.Helper()
	var out []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		s.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// writeHostileArchive replaces an archive by one with a matching .meta whose
// entries point outside the home.
func (s *server) writeHostileArchive(object, meta string) {
	s.Helper()
	var b bytes.Buffer
	z, err := zstd.NewWriter(&b)
	if err != nil {
		s.Fatal(err)
	}
	w := tar.NewWriter(z)
	for _, h := range []*tar.Header{
		{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "./out", Typeflag: tar.TypeSymlink, Linkname: "/object", Mode: 0o777},
		{Name: "./out/../../../codehub-was-here", Typeflag: tar.TypeReg, Mode: 0o644},
	} {
		if err := w.WriteHeader(h); err != nil {
			s.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		s.Fatal(err)
	}
	if err := z.Close(); err != nil {
		s.Fatal(err)
	}
	m, err := archive.ReadMeta(bytes.NewReader(s.readObject(meta)))
	if err != nil {
		s.Fatal(err)
	}
	m.Describe(archive.Stats{Entries: 3, Files: 1, Size: int64(b.Len()), SHA256: digest(b.String())})
	raw, err := m.Encode()
	if err != nil {
		s.Fatal(err)
	}
	s.writeObject(object, b.Bytes())
	s.writeObject(meta, raw)
}

func (s *server) recover(id string, how api.Recover) {
	s.Helper()
	if _, err := s.api.Recover(s.Context(), id, how); err != nil {
		s.Fatal(err)
	}
}

// recoverAndFail recovers a workspace whose archive is still damaged, and waits
// until the check of the bucket or the restore fails again.
func (s *server) recoverAndFail(id string) {
	s.Helper()
	found := func() (n int) {
		for line := range strings.Lines(s.Server.Log()) {
			if !strings.Contains(line, "workspace="+id) {
				continue
			}
			looked := strings.Contains(line, `msg="recovery requested"`) && !strings.Contains(line, `reason=""`)
			failed := strings.Contains(line, `msg="operation ended"`) && strings.Contains(line, "phase=ERROR")
			if looked || failed {
				n++
			}
		}
		return n
	}
	before := found()
	s.recover(id, api.Recover{})
	s.await(id, "found lost again", func(api.Workspace) bool { return found() > before })
	s.await(id, "ERROR without an operation", func(w api.Workspace) bool { return w.Phase == "ERROR" && w.Operation == "NONE" })
}

// visit opens a workspace with the headers of a browser.
func (s *server) visit(id string) (int, string) {
	s.Helper()
	resp, body := s.ask(http.MethodGet, "/w/"+id+"/", "", "Cookie", s.loginCookie("admin"),
		"Accept", "text/html", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document")
	return resp.StatusCode, body
}

// expectNoContainers checks that a workspace has no container and no running
// storage job.
func (s *server) expectNoContainers(id string) {
	s.Helper()
	if s.jobRuns("archive", id) || s.jobRuns("restore", id) {
		s.Errorf("workspace %s has a running storage job", id)
	}
	if _, err := s.docker.ContainerInspect(s.Context(), "codehub-ws-"+id, client.ContainerInspectOptions{}); err == nil {
		s.Errorf("workspace %s has a container", id)
	}
}

// archives returns a workspace's archives, newest first.
func (s *server) archives(id string) []api.Archive {
	s.Helper()
	resp, body := s.ask(http.MethodGet, "/api/v1/workspaces/"+id+"/archives", "", api.TokenHeader, s.token)
	var list api.ArchiveList
	if err := json.Unmarshal([]byte(body), &list); err != nil || resp.StatusCode != 200 {
		s.Fatalf("the archives of %s: %d %v: %s", id, resp.StatusCode, err, body)
	}
	return list.Archives
}

// Recovery after an archive is lost for good: from an earlier generation, or
// with an empty home. Each is confirmed by the workspace's name.
func TestRecoveryFromLostArchive(t *testing.T) {
	t.Parallel()
	b, rng := folderBucket(t), newRand(t, 9)
	s := startQuick(t, append(b.settings, "CODEHUB_DELETE_GRACE=0s", "CODEHUB_ARCHIVE_KEEP=1")...)
	id, first := s.createFilled("one", rng)
	s.setDesired(id, "ARCHIVED")
	s.awaitArchived(b, id, first)
	s.setDesired(id, "STANDBY")
	s.awaitRestored(id, first)
	fillHome(t, s.homeFolder(id), rng)
	second := s.readHome(id)
	s.setDesired(id, "ARCHIVED")
	key := *s.awaitArchived(b, id, second).ArchiveKey
	generations := s.archives(id)
	if len(generations) != 2 || !generations[0].Current || generations[1].Current {
		t.Fatalf("archives: %+v, want two of which the first is current", generations)
	}

	if err := os.RemoveAll(filepath.Dir(b.object(key))); err != nil {
		t.Fatal(err)
	}
	s.setDesired(id, "STANDBY")
	s.await(id, "in ERROR", func(w api.Workspace) bool { return w.Phase == "ERROR" })
	earlier := api.Recover{Action: api.RecoverArchive, ArchiveOpID: generations[1].OpID, Confirm: "another"}
	if _, err := s.api.Recover(t.Context(), id, earlier); err == nil {
		t.Error("an earlier archive was restored without confirmation")
	}
	earlier.Confirm = "one"
	s.recover(id, earlier)
	s.awaitRestored(id, first)

	// The same after all archives are lost.
	fillHome(t, s.homeFolder(id), rng)
	s.setDesired(id, "ARCHIVED")
	s.await(id, "ARCHIVED", func(w api.Workspace) bool { return w.Phase == "ARCHIVED" && w.Operation == "NONE" })
	for _, key := range b.keys(t, id) {
		if err := os.RemoveAll(filepath.Dir(b.object(key))); err != nil {
			t.Fatal(err)
		}
	}
	s.setDesired(id, "RUNNING")
	s.await(id, "in ERROR", func(w api.Workspace) bool { return w.Phase == "ERROR" })
	if _, err := s.api.Recover(t.Context(), id, api.Recover{Action: api.RecoverEmpty, Confirm: "another"}); err == nil {
		t.Error("an empty home was created without confirmation")
	}
	s.recover(id, api.Recover{Action: api.RecoverEmpty, Confirm: "one"}) // the desired state is still RUNNING
	s.awaitPhase(id, "RUNNING")
	for name := range s.readHome(id) {
		if strings.HasPrefix(name, "./work") {
			t.Fatalf("the home is not empty: it has %q", name)
		}
	}
	s.discard(id)
}

// Garbage collection finds that the archive of an ARCHIVED workspace is
// missing. The owner and the administrators see it until the object is back.
// While the whole bucket is unavailable nothing changes.
func TestGarbageCollectionNoticesLostArchive(t *testing.T) {
	t.Parallel()
	for store, open := range stores {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			b := open(t)
			s := startQuick(t, append(b.settings, "CODEHUB_DELETE_GRACE=0s", "CODEHUB_GC_INTERVAL=5s")...)
			id := s.createStandby("lost")
			fillHome(t, s.homeFolder(id), newRand(t, 33))
			if err := unix.Mkfifo(filepath.Join(s.homeFolder(id), "work", "pipe"), 0o600); err != nil {
				t.Fatal(err)
			}
			home := s.readHome(id)
			s.setDesired(id, "ARCHIVED")
			key := *s.awaitArchived(b, id, home).ArchiveKey
			object := b.object(key)
			content := s.readObject(object)

			if err := os.Remove(object); err != nil {
				t.Fatal(err)
			}
			w := s.await(id, "in ERROR", func(w api.Workspace) bool { return w.Phase == "ERROR" })
			c := w.Conditions["storage.archive_ready"]
			if str(w.ErrorReason) != "DataLost" || !strings.Contains(str(w.ErrorMessage), key) || c.Status != "False" || c.Reason != "ArchiveMissing" {
				t.Errorf("error %s: %s; condition archive_ready: %+v", str(w.ErrorReason), str(w.ErrorMessage), c)
			}
			cookie := s.loginCookie("admin")
			pages := map[string][]string{
				"/workspaces/" + id: {"The archive is missing", "/workspaces/" + id + "/start-empty"},
				"/admin":            {"Lost archives", id, key},
				"/":                 {"The archive is missing"},
			}
			for path, wants := range pages {
				_, page := s.ask(http.MethodGet, path, "", "Cookie", cookie, "Accept", "text/html")
				for _, want := range wants {
					if !strings.Contains(page, want) {
						t.Errorf("page %s does not have %q", path, want)
					}
				}
			}

			s.writeObject(object, content)
			w = s.await(id, "ARCHIVED again", func(w api.Workspace) bool { return w.Phase == "ARCHIVED" })
			if c := w.Conditions["storage.archive_ready"]; w.ErrorReason != nil || c.Status != "True" {
				t.Errorf("error %q; condition archive_ready: %+v", str(w.ErrorReason), c)
			}
			_, page := s.ask(http.MethodGet, "/admin", "", "Cookie", cookie, "Accept", "text/html")
			if strings.Contains(page, "Lost archives") {
				t.Error("the administrators' page still lists the archive")
			}
			_, page = s.ask(http.MethodGet, "/workspaces/"+id, "", "Cookie", cookie, "Accept", "text/html")
			if n := s.archives(id)[0].Skipped; n != 1 || !strings.Contains(page, "1 socket, FIFO or device was not archived") {
				t.Errorf("the API reports %d skipped entries, want 1, or the page does not name them", n)
			}
			s.setDesired(id, "STANDBY")
			s.awaitRestored(id, home)
			s.discard(id)
		})
	}
}
