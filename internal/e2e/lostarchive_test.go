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

// An archive that is missing or damaged puts its workspace in ERROR with words
// that name the object. Nothing is started, made or deleted, and once it is
// back the home comes back with it.
func TestLostOrDamagedArchiveIsError(t *testing.T) {
	t.Parallel()
	for store, open := range stores {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			b := open(t)
			s := startQuick(t, append(b.settings, "CODEHUB_DELETE_GRACE=0s", "MAX_RUNNING_PER_USER=0")...)
			cases := []struct {
				name, reason string
				meta         bool // what is damaged
				damage       func(content []byte) []byte
			}{
				{"object gone", "DataLost", false, func([]byte) []byte { return nil }},
				{"meta gone", "DataLost", true, func([]byte) []byte { return nil }},
				{"object flipped", "ArchiveCorrupted", false, flipped},
				{"object cut", "ArchiveCorrupted", false, func(c []byte) []byte { return c[:len(c)/2] }},
				{"meta flipped", "ArchiveCorrupted", true, flipped},
				{"hostile", "ArchiveCorrupted", false, nil},
			}
			s.abreast(len(cases), func(i int, s *server) {
				c := cases[i]
				id, home := s.filled(c.name, seeded(t, uint64(100+i)))
				s.want(id, "ARCHIVED")
				key := *s.archived(b, id, home).ArchiveKey
				object, meta := b.object(key), b.object(archive.MetaKey(key))
				good := map[string][]byte{object: s.content(object), meta: s.content(meta)}
				which := object
				if c.meta {
					which = meta
				}
				if c.damage == nil {
					s.hostile(object, meta)
				} else if bad := c.damage(slices.Clone(good[which])); bad != nil {
					s.put(which, bad)
				} else if err := os.Remove(which); err != nil {
					s.Fatal(err)
				}
				before := s.files(filepath.Dir(object))

				s.want(id, "RUNNING")
				w := s.await(id, "in ERROR", func(w api.Workspace) bool { return w.Phase == "ERROR" })
				if str(w.ErrorReason) != c.reason || !strings.Contains(str(w.ErrorMessage), key) {
					s.Errorf("%s: %s: %s; want %s and the key %s", c.name, str(w.ErrorReason), str(w.ErrorMessage), c.reason, key)
				}
				if w.ArchiveKey == nil || *w.ArchiveKey != key {
					s.Errorf("%s: the archive is forgotten", c.name)
				}
				if status, page := s.visit(id); status != http.StatusBadGateway {
					s.Errorf("%s: a visitor gets %d: %.200s", c.name, status, page)
				}
				if _, err := s.api.Want(s.Context(), id, "RUNNING", true); err == nil {
					s.Errorf("%s: it could be started", c.name)
				}
				s.nothingRuns(id)
				if after := s.files(filepath.Dir(object)); !slices.Equal(before, after) {
					s.Errorf("%s: the bucket held %v, and holds %v", c.name, before, after)
				}
				// As long as it is so, a fresh look says the same.
				s.recoverInVain(id)

				for name, content := range good {
					s.put(name, content)
				}
				s.recover(id, api.Recover{}) // it is wanted RUNNING still
				s.awaitPhase(id, "RUNNING")
				same(s.TB, "the home of "+c.name, withoutRoot(home), withoutRoot(s.look(id)))
				s.discard(id)
			})
		})
	}
}

func flipped(content []byte) []byte {
	content[len(content)/2] ^= 0x55
	return content
}

func (s *server) content(name string) []byte {
	s.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		s.Fatal(err)
	}
	return b
}

// put writes a file of the bucket as the store itself would: a new one.
func (s *server) put(name string, content []byte) {
	s.Helper()
	_ = os.Remove(name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		s.Fatal(err)
	}
	if err := os.WriteFile(name, content, 0o644); err != nil {
		s.Fatal(err)
	}
}

// files are the names below a folder of the bucket, but for what a store keeps
// for itself.
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

// hostile puts an archive in the place of another that says of itself that it
// is right, and leads out of the home.
func (s *server) hostile(object, meta string) {
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
	m, err := archive.ReadMeta(bytes.NewReader(s.content(meta)))
	if err != nil {
		s.Fatal(err)
	}
	m.Describe(archive.Stats{Entries: 3, Files: 1, Size: int64(b.Len()), SHA256: digest(b.String())})
	raw, err := m.Encode()
	if err != nil {
		s.Fatal(err)
	}
	s.put(object, b.Bytes())
	s.put(meta, raw)
}

func (s *server) recover(id string, how api.Recover) {
	s.Helper()
	if _, err := s.api.Recover(s.Context(), id, how); err != nil {
		s.Fatal(err)
	}
}

// recoverInVain recovers what is still lost, and waits until that is found: by
// a look at the bucket, or by a restore that fails again.
func (s *server) recoverInVain(id string) {
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
	s.await(id, "found to be lost again", func(api.Workspace) bool { return found() > before })
	s.await(id, "in ERROR still", func(w api.Workspace) bool { return w.Phase == "ERROR" && w.Operation == "NONE" })
}

// visit opens a workspace as a browser does.
func (s *server) visit(id string) (int, string) {
	s.Helper()
	resp, body := s.ask(http.MethodGet, "/w/"+id+"/", "", "Cookie", s.signIn("admin"),
		"Accept", "text/html", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document")
	return resp.StatusCode, body
}

// nothingRuns: no container of a workspace, and no volume with anything in it
// that somebody could be let in to.
func (s *server) nothingRuns(id string) {
	s.Helper()
	if s.jobRuns("archive", id) || s.jobRuns("restore", id) {
		s.Errorf("a storage job of %s runs", id)
	}
	if _, err := s.docker.ContainerInspect(s.Context(), "codehub-ws-"+id, client.ContainerInspectOptions{}); err == nil {
		s.Errorf("a container of %s is there", id)
	}
}

// archives are a workspace's generations, newest first.
func (s *server) archives(id string) []api.Archive {
	s.Helper()
	resp, body := s.ask(http.MethodGet, "/api/v1/workspaces/"+id+"/archives", "", api.TokenHeader, s.token)
	var list api.ArchiveList
	if err := json.Unmarshal([]byte(body), &list); err != nil || resp.StatusCode != 200 {
		s.Fatalf("the archives of %s: %d %v: %s", id, resp.StatusCode, err, body)
	}
	return list.Archives
}

// The ways out where the archive is gone for good: an earlier generation, or an
// empty home, each confirmed by the workspace's name.
func TestRecoveryFromLostArchive(t *testing.T) {
	t.Parallel()
	b, rng := folderBucket(t), seeded(t, 9)
	s := startQuick(t, append(b.settings, "CODEHUB_DELETE_GRACE=0s", "CODEHUB_ARCHIVE_KEEP=1")...)
	id, first := s.filled("one", rng)
	s.want(id, "ARCHIVED")
	s.archived(b, id, first)
	s.want(id, "STANDBY")
	s.restored(id, first)
	furnish(t, s.folder(id), rng)
	second := s.look(id)
	s.want(id, "ARCHIVED")
	key := *s.archived(b, id, second).ArchiveKey
	generations := s.archives(id)
	if len(generations) != 2 || !generations[0].Current || generations[1].Current {
		t.Fatalf("generations: %+v", generations)
	}

	if err := os.RemoveAll(filepath.Dir(b.object(key))); err != nil {
		t.Fatal(err)
	}
	s.want(id, "STANDBY")
	s.await(id, "in ERROR", func(w api.Workspace) bool { return w.Phase == "ERROR" })
	earlier := api.Recover{Action: api.RecoverArchive, ArchiveOpID: generations[1].OpID, Confirm: "another"}
	if _, err := s.api.Recover(t.Context(), id, earlier); err == nil {
		t.Error("an earlier archive was taken without being confirmed")
	}
	earlier.Confirm = "one"
	s.recover(id, earlier)
	s.restored(id, first)

	// And once more, with nothing left at all.
	furnish(t, s.folder(id), rng)
	s.want(id, "ARCHIVED")
	s.await(id, "ARCHIVED", func(w api.Workspace) bool { return w.Phase == "ARCHIVED" && w.Operation == "NONE" })
	for _, key := range b.keys(t, id) {
		if err := os.RemoveAll(filepath.Dir(b.object(key))); err != nil {
			t.Fatal(err)
		}
	}
	s.want(id, "RUNNING")
	s.await(id, "in ERROR", func(w api.Workspace) bool { return w.Phase == "ERROR" })
	if _, err := s.api.Recover(t.Context(), id, api.Recover{Action: api.RecoverEmpty, Confirm: "another"}); err == nil {
		t.Error("starting empty was not confirmed, and done")
	}
	s.recover(id, api.Recover{Action: api.RecoverEmpty, Confirm: "one"}) // it is wanted RUNNING still
	s.awaitPhase(id, "RUNNING")
	for name := range s.look(id) {
		if strings.HasPrefix(name, "./work") {
			t.Fatalf("the home is not new: %q", name)
		}
	}
	s.discard(id)
}

// The archive of a workspace at rest is removed: garbage collection notices, the
// owner and the administrators see it, and it heals when the object is back. While
// the whole bucket is away nothing changes.
func TestGarbageCollectionNoticesLostArchive(t *testing.T) {
	t.Parallel()
	for store, open := range stores {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			b := open(t)
			s := startQuick(t, append(b.settings, "CODEHUB_DELETE_GRACE=0s", "CODEHUB_GC_INTERVAL=5s")...)
			id := s.standby("lost")
			furnish(t, s.folder(id), seeded(t, 33))
			if err := unix.Mkfifo(filepath.Join(s.folder(id), "work", "pipe"), 0o600); err != nil {
				t.Fatal(err)
			}
			home := s.look(id)
			s.want(id, "ARCHIVED")
			key := *s.archived(b, id, home).ArchiveKey
			object := b.object(key)
			content := s.content(object)

			if err := os.Remove(object); err != nil {
				t.Fatal(err)
			}
			w := s.await(id, "in ERROR", func(w api.Workspace) bool { return w.Phase == "ERROR" })
			c := w.Conditions["storage.archive_ready"]
			if str(w.ErrorReason) != "DataLost" || !strings.Contains(str(w.ErrorMessage), key) || c.Status != "False" || c.Reason != "ArchiveMissing" {
				t.Errorf("%s: %s; archive ready: %+v", str(w.ErrorReason), str(w.ErrorMessage), c)
			}
			cookie := s.signIn("admin")
			pages := map[string][]string{
				"/workspaces/" + id: {"The archive is missing", "/workspaces/" + id + "/start-empty"},
				"/admin":            {"Lost archives", id, key},
				"/":                 {"The archive is missing"},
			}
			for path, wants := range pages {
				_, page := s.ask(http.MethodGet, path, "", "Cookie", cookie, "Accept", "text/html")
				for _, want := range wants {
					if !strings.Contains(page, want) {
						t.Errorf("%s does not say %q", path, want)
					}
				}
			}

			s.put(object, content)
			w = s.await(id, "ARCHIVED again", func(w api.Workspace) bool { return w.Phase == "ARCHIVED" })
			if c := w.Conditions["storage.archive_ready"]; w.ErrorReason != nil || c.Status != "True" {
				t.Errorf("%s is left; archive ready: %+v", str(w.ErrorReason), c)
			}
			_, page := s.ask(http.MethodGet, "/admin", "", "Cookie", cookie, "Accept", "text/html")
			if strings.Contains(page, "Lost archives") {
				t.Error("the administrators still see it")
			}
			_, page = s.ask(http.MethodGet, "/workspaces/"+id, "", "Cookie", cookie, "Accept", "text/html")
			if n := s.archives(id)[0].Skipped; n != 1 || !strings.Contains(page, "1 socket, FIFO or device was not archived") {
				t.Errorf("the API says that %d entries are not archived, not 1, or the page does not say so", n)
			}
			s.want(id, "STANDBY")
			s.restored(id, home)
			s.discard(id)
		})
	}
}
