package e2e

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	mathrand "math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/api"
	codehub "codehub/client"
	"codehub/internal/arrivals"
	"codehub/internal/testing/archivetest"
	"codehub/internal/testing/pgtest"
)

// m1 is the database and the homes of codehub's first version.
type m1 struct {
	testing.TB
	tag, dsn, homes string
}

// newM1 creates the rows that internal/arrivals/importm1 is tested with, and a home for
// each workspace that was ever started.
func newM1(t testing.TB, rng *mathrand.Rand) *m1 {
	t.Helper()
	v := &m1{
		TB: t, tag: strings.NewReplacer("I", "1", "L", "2", "O", "3", "U", "4").Replace(rand.Text()[:6]),
		dsn: pgtest.New(t, nil), homes: t.TempDir(),
	}
	conn, err := pgx.Connect(t.Context(), v.dsn)
	v.must(err)
	defer conn.Close(context.Background())
	for _, name := range []string{"m1_schema.sql", "m1_rows.sql"} {
		sql, err := os.ReadFile(filepath.Join("..", "..", "arrivals", "importm1", "testdata", name))
		v.must(err)
		_, err = conn.Exec(t.Context(), strings.ReplaceAll(string(sql), "@", v.tag))
		v.must(err)
	}
	rows, err := conn.Query(t.Context(), `SELECT home_store_key FROM workspaces WHERE status <> 'CREATED' ORDER BY id`)
	v.must(err)
	keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
	v.must(err)
	for _, key := range keys {
		dir := filepath.Join(v.homes, key)
		v.must(os.MkdirAll(dir, 0o755))
		if key == v.key("R0") {
			archivetest.Corpus(t, dir)
			continue
		}
		v.must(os.Chown(dir, 1000, 1000))
		fillHome(t, dir, rng)
	}
	return v
}

func (v *m1) must(err error) {
	v.Helper()
	if err != nil {
		v.Fatal(err)
	}
}

func (v *m1) id(short string) string { return "01JFB0000000000000" + short + v.tag }

// key returns the home_store_key of a workspace of the user kim.
func (v *m1) key(short string) string {
	return "users/01JFA0000000000000K0" + v.tag + "/workspaces/" + v.id(short) + "/home"
}

// run starts a container as the first version did.
func (v *m1) run(docker *client.Client, short string) {
	v.Helper()
	made, err := docker.ContainerCreate(v.Context(), client.ContainerCreateOptions{
		Name:   "codehub-ws-" + v.id(short),
		Config: &container.Config{Image: env.testImage, User: "1000:1000", Env: []string{"HOME=/home/coder"}},
		HostConfig: &container.HostConfig{
			NetworkMode: "none",
			Mounts:      []mount.Mount{{Type: mount.TypeBind, Source: filepath.Join(v.homes, v.key(short)), Target: "/home/coder"}},
		},
	})
	v.must(err)
	v.Cleanup(func() {
		_, _ = docker.ContainerRemove(context.Background(), made.ID, client.ContainerRemoveOptions{Force: true})
	})
	_, err = docker.ContainerStart(v.Context(), made.ID, client.ContainerStartOptions{})
	v.must(err)
}

// importM1 runs `codehub import first-version` on the server's installation.
func (s *server) importM1(v *m1, settings []string, flags ...string) (arrivals.Report, int) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, env.binary, append([]string{"import", "first-version", "--all", "--homes", v.homes, "--output", "json"}, flags...)...)
	cmd.Env = append(os.Environ(), append([]string{"CODEHUB_DATA_DIR=" + s.home, "CODEHUB_IMPORT_FROM=" + v.dsn}, settings...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.Fatal(err)
	}
	var report arrivals.Report
	if err := json.Unmarshal(out, &report); err != nil {
		s.Fatalf("import printed %q: %v\n%s", out, err, stderr.String())
	}
	return report, cmd.ProcessState.ExitCode()
}

// The first version is imported with and without a running server. Users find
// their homes at the old addresses and log in with the old passwords. It takes 35 s,
// to fill the homes of the first version, import and start them.
func TestImportFromFirstVersion(t *testing.T) {
	t.Parallel()
	for _, storage := range []string{"docker-volume", "local-dir"} {
		t.Run(storage, func(t *testing.T) {
			t.Parallel()
			v := newM1(t, newRand(t, 5))
			settings := []string{"CODEHUB_STORAGE=" + storage}
			s := start(t, append(settings, "CODEHUB_DELETE_GRACE=0s")...)
			v.run(s.docker, "R0")
			if storage == "local-dir" {
				s.Stop() // the command then starts the database
			}
			flags := []string{"--join-users", "--image", env.testImage}
			dryRun, code := s.importM1(v, settings, append(flags, "--dry-run")...)
			if code != 0 || dryRun.Left != 0 || !dryRun.DryRun {
				t.Errorf("dry run: exit code %d, %+v", code, dryRun)
			}
			report, code := s.importM1(v, settings, flags...)
			if code != 0 || report.Left != 0 {
				t.Fatalf("import: exit code %d, %+v", code, report)
			}
			if storage == "local-dir" {
				s.restart()
			}
			s.expectM1Imported(v, report)
			again, code := s.importM1(v, settings, flags...)
			if code != 0 || again.Left != 0 {
				t.Errorf("second import: exit code %d, %+v", code, again)
			}
			for _, w := range again.Workspaces {
				if w.Result != arrivals.Already && w.Result != arrivals.Deleted {
					t.Errorf("second import: %+v", w)
				}
			}
		})
	}
}

func (s *server) expectM1Imported(v *m1, report arrivals.Report) {
	s.Helper()
	kim, _, err := codehub.Login(s.Context(), s.URL, api.Login{Username: "kim", Password: "testpassword"})
	v.must(err)
	mine, err := kim.List(s.Context(), codehub.Filter{})
	v.must(err)
	if len(mine) != 7 {
		s.Errorf("kim has %d workspaces, want 7", len(mine))
	}
	token, err := kim.CreateToken(s.Context(), api.CreateToken{Name: "kim"})
	v.must(err)
	homes := map[string]homeState{}
	for _, w := range report.Workspaces {
		if w.Result == arrivals.Added && w.Home != nil {
			homes[w.ID] = archivetest.Snapshot(s.TB, filepath.Join(v.homes, "users", ownerOf(v, w.OldID), "workspaces", w.OldID, "home"))
		}
	}
	asKim := *s // as the user kim
	asKim.token = token.Token
	if asKim.api, err = codehub.New(s.URL, token.Token); err != nil {
		s.Fatal(err)
	}
	for _, w := range report.Workspaces {
		if w.Result != arrivals.Added || w.Owner != "kim" {
			continue
		}
		asKim.awaitPhase(w.ID, w.DesiredState)
		if home, ok := homes[w.ID]; ok {
			compareHomes(s.TB, "the home of "+w.Name, archivetest.WithoutAtimes(home), archivetest.WithoutAtimes(asKim.readHome(w.ID)))
		}
		// A running server reads the imported addresses within seconds.
		res := s.anonymous("/w/" + w.OldID + "/some/file?x=1")
		for deadline := time.Now().Add(patience); res.StatusCode == http.StatusNotFound && time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
			res = s.anonymous("/w/" + w.OldID + "/some/file?x=1")
		}
		if want := "/w/" + w.ID + "/some/file?x=1"; res.StatusCode != http.StatusPermanentRedirect || res.Header.Get("Location") != want {
			s.Errorf("the old address of %s: %d %s", w.Name, res.StatusCode, res.Header.Get("Location"))
		}
	}
	// The second import must not overwrite this change.
	for _, w := range report.Workspaces {
		if w.OldID == v.id("R0") {
			asKim.write(w.ID, "since")
		}
	}
}

func ownerOf(v *m1, id string) string {
	if id == v.id("T1") {
		return "01JFA0000000000000M0" + v.tag
	}
	return "01JFA0000000000000K0" + v.tag
}

// anonymous requests a page without a session and follows no redirect.
func (s *server) anonymous(path string) *http.Response {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), http.MethodGet, s.URL+path, nil)
	if err != nil {
		s.Fatal(err)
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		s.Fatal(err)
	}
	res.Body.Close()
	return res
}
