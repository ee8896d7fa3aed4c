package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/moby/moby/client"

	"codehub/api"
	codehub "codehub/client"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
)

// The server is killed at each step of the creation of a workspace with a repository, an extension,
// scripts, a secret and dotfiles: after the request, when Docker has made the volume, made the
// container, and started it without a setup, during the clone, while RUNNING is written, and during
// a script. The workspace runs, and everything in it was done once.
func TestKilledAtEachStepOfCreation(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	const port, at = "42122", "http://127.0.0.1:42122"
	template := `
repositories: [{url: "` + at + `/api.git", branch: main}]
extensions: [codehub-test.greet-gallery]
scripts:
  create: |
    cat hello >> ~/created
    echo "$TOKEN" >> ~/created
    echo began
    until [ -e ~/go ]; do sleep 0.1; done
  start: echo start >> ~/started
secrets: {required: [TOKEN]}
`
	dir, dsn, docker := scratch(t), database(t), newDockerProxy(t)
	if err := os.WriteFile(filepath.Join(dir, "team.yaml"), []byte(template), 0o644); err != nil {
		t.Fatal(err)
	}
	s := startMode(t, ownOrigins, "CODEHUB_DATABASE_URL="+dsn, "DOCKER_HOST="+docker.host, "CODEHUB_DEFAULT_IMAGE="+env.slimImage, "CODEHUB_TEMPLATES_DIR="+dir,
		"CODEHUB_SECRET_KEY_FILE="+secretKey(t), "CODEHUB_DELETE_GRACE=0s", fmt.Sprintf(`CODEHUB_EXTENSIONS_GALLERY={"serviceUrl": %q}`, at+"/gallery"))
	if _, err := s.api.CreateSecret(t.Context(), "", api.CreateSecret{Name: "token", Value: "hunter2", Env: "TOKEN", Template: "team"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.api.SetDotfiles(t.Context(), api.Dotfiles{URL: at + "/api.git"}); err != nil {
		t.Fatal(err)
	}

	running := holdRunning(t, dsn)
	reached := make(chan string)
	var mu sync.Mutex
	left := []string{madeVolume, madeContainer, startedContainer}
	did := func(ctx context.Context, what, _ string) {
		mu.Lock()
		stops := slices.Contains(left, what)
		mu.Unlock()
		if !stops {
			return
		}
		select {
		case reached <- what:
			<-ctx.Done()
		case <-ctx.Done():
		}
	}
	docker.did.Store(&did)
	id := s.create(api.CreateWorkspace{Name: "team", Template: "team"})
	s.Kill()
	var relay *gitRelay
	for relay == nil {
		s.restart()
		what := await(t, reached)
		if what == startedContainer {
			const files = `echo hello > hello && printf '%s\n' 'echo run >> ~/installed' > install.sh`
			s.awaitAgent(id)
			relay = s.serveRepository(t, id, port, files, func(git http.Handler) http.Handler {
				return gallery(extension(t, "gallery", "1.0.0", "gallery"), at, git)
			})
		}
		s.Kill()
		mu.Lock()
		left = left[slices.Index(left, what)+1:]
		mu.Unlock()
		t.Logf("killed at the %s", what)
	}

	s.restart()
	await(t, relay.asked)
	s.Kill()
	running.end(t)
	s.restart()
	running.await(t)
	s.Kill()
	running.end(t)
	running.release(t)
	s.restart()
	s.awaitPhase(id, "RUNNING")
	steps := func(what string, is func(kind, state, log string) bool) {
		t.Helper()
		s.until(what, func() bool {
			setup, err := s.api.Setup(t.Context(), id)
			return err == nil && slices.ContainsFunc(setup.Steps, func(st api.SetupStep) bool { return is(st.Kind, st.State, st.Log) })
		})
	}
	steps("the clone runs", func(kind, state, _ string) bool { return kind == "clone" && state == "running" })
	close(relay.answer)
	began := func(kind, state, log string) bool {
		return kind == "script" && state == "running" && strings.Contains(log, "began")
	}
	steps("the script runs", began)
	s.Kill()
	s.restart()
	steps("the script still runs", began)
	s.expectShell(id, "touch ~/go", "")
	steps("the dotfiles are there", func(kind, state, _ string) bool { return kind == "dotfiles" && state == "done" })

	setup, err := s.api.Setup(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var ended []string
	for _, st := range setup.Steps {
		ended = append(ended, st.Kind+" "+st.State)
	}
	if got, want := strings.Join(ended, ", "), "clone done, script done, script done, script done, dotfiles done"; got != want {
		t.Errorf("%s, not %s: %+v", got, want, setup.Steps)
	}
	s.expectShell(id, "cat ~/created ~/started ~/installed && cd $CODEHUB_FOLDER && git status --short --branch", "hello\nhunter2\nstart\nrun\n## main...origin/main")
	s.expectShell(id, "code-server --list-extensions; ls ~/.local/state/codehub | grep -c .; ls -A ~/project", "codehub-test.greet-gallery\n3\napi")
	s.expectNoError(id, "the creation")
	s.expectOneOfEach(id)
	s.remove(id)
	s.expectNothingLeft()
}

// await returns the next value of a channel, or its zero value once it is closed.
func await[T any](t *testing.T, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		t.Fatal("nothing happened")
	}
	return v
}

// expectOneOfEach expects one container and one home of a workspace, and no second one of what holds
// the home. A helper that a killed server has left may be there.
func (s *server) expectOneOfEach(id string) {
	s.Helper()
	mine := client.Filters{}.Add("label", "codehub.workspace="+id)
	containers, err := s.docker.ContainerList(s.Context(), client.ContainerListOptions{All: true, Filters: mine})
	if err != nil {
		s.Fatal(err)
	}
	volumes, err := s.docker.VolumeList(s.Context(), client.VolumeListOptions{Filters: mine})
	if err != nil {
		s.Fatal(err)
	}
	has := map[string]int{}
	for _, c := range containers.Items {
		if !endedHelper(c) {
			has["container "+c.Labels["codehub.role"]]++
		}
	}
	for _, v := range volumes.Items {
		has["volume "+v.Labels["codehub.role"]]++
	}
	if want := map[string]int{"container workspace": 1, "container holder": 1, "volume home": 1, "volume settled": 1}; !maps.Equal(has, want) {
		s.Errorf("the workspace has %v, not %v: %v", has, want, s.resourcesOf(id))
	}
}

// gallery answers as an extension gallery at this address with the one extension of a .vsix file, and
// passes all other requests on.
func gallery(vsix []byte, at string, other http.Handler) http.Handler {
	const manifest, archive, date = "Microsoft.VisualStudio.Code.Manifest", "Microsoft.VisualStudio.Services.VSIXPackage", "2026-11-01T00:00:00Z"
	type object = map[string]any
	file := func(name string) object { return object{"assetType": name, "source": at + "/" + name} }
	found := object{
		"extensionId": "11111111-1111-4111-8111-111111111111", "extensionName": "greet-gallery", "displayName": "Greet", "shortDescription": "", "flags": "validated, public",
		"publisher":   object{"publisherId": "22222222-2222-4222-8222-222222222222", "publisherName": "codehub-test", "displayName": "codehub-test", "flags": "verified"},
		"releaseDate": date, "publishedDate": date, "lastUpdated": date, "statistics": []any{}, "tags": []any{}, "categories": []any{}, "deploymentType": 0,
		"versions": []any{object{
			"version": "1.0.0", "flags": "validated", "lastUpdated": date, "assetUri": at, "fallbackAssetUri": at, "files": []any{file(manifest), file(archive)},
			"properties": []any{object{"key": "Microsoft.VisualStudio.Code.Engine", "value": "^1.80.0"}},
		}},
	}
	total := object{"metadataType": "ResultCount", "metadataItems": []any{object{"name": "TotalCount", "count": 1}}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		send := func(v any) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(v)
		}
		switch {
		case r.URL.Path == "/gallery/extensionquery":
			send(object{"results": []any{object{"extensions": []any{found}, "resultMetadata": []any{total}}}})
		case strings.HasPrefix(r.URL.Path, "/"+manifest):
			send(object{"name": "greet-gallery", "publisher": "codehub-test", "version": "1.0.0", "engines": object{"vscode": "^1.80.0"}})
		case strings.HasPrefix(r.URL.Path, "/"+archive):
			_, _ = w.Write(vsix)
		default:
			other.ServeHTTP(w, r)
		}
	})
}

// heldRunning keeps the database from writing that a workspace is RUNNING.
type heldRunning struct{ conn *pgx.Conn }

// runningLock is the key of the lock for which the write waits.
const runningLock = 47_113_700

func holdRunning(t *testing.T, dsn string) heldRunning {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	h := heldRunning{conn}
	h.exec(t, fmt.Sprintf(`
		CREATE FUNCTION hold_running() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock(%[1]d); RETURN NEW; END';
		CREATE TRIGGER hold_running BEFORE UPDATE ON workspaces FOR EACH ROW WHEN (NEW.phase = 'RUNNING' AND OLD.phase <> 'RUNNING') EXECUTE FUNCTION hold_running();
		SELECT pg_advisory_lock(%[1]d)`, runningLock))
	return h
}

func (h heldRunning) exec(t *testing.T, sql string) {
	t.Helper()
	if _, err := h.conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatal(err)
	}
}

const runningWaits = `FROM pg_locks WHERE locktype = 'advisory' AND objid = 47113700 AND NOT granted`

// await waits until the write waits.
func (h heldRunning) await(t *testing.T) {
	t.Helper()
	harness.Eventually(t, "RUNNING is being written", func() bool {
		var waits bool
		if err := h.conn.QueryRow(t.Context(), `SELECT count(*) > 0 `+runningWaits).Scan(&waits); err != nil {
			t.Fatal(err)
		}
		return waits
	})
}

// end ends the session of a killed server that waits, so that it writes nothing.
func (h heldRunning) end(t *testing.T) {
	t.Helper()
	h.exec(t, `SELECT pg_terminate_backend(pid) `+runningWaits)
}

// release lets all later writes pass.
func (h heldRunning) release(t *testing.T) {
	t.Helper()
	h.exec(t, `DROP TRIGGER hold_running ON workspaces`)
}

// 50 workspaces are created at once from a repository, and more of them than may run. Each runs in its
// turn, and clones the repository; those that run clone at the same time. The limit holds, and the
// server stays as quick and small as before.
func TestManyClonesAtOnce(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	const many, limit, port = 50, 25, "42123"
	dsn, docker, image := database(t), newDockerProxy(t), imageWithGit(t)
	s := startMode(t, ownOrigins, "CODEHUB_DATABASE_URL="+dsn, "DOCKER_HOST="+docker.host, "CODEHUB_DEFAULT_IMAGE="+image, fmt.Sprint("MAX_RUNNING_PER_USER=", limit))
	var clones, most atomic.Int32
	all := make(chan struct{}) // closed once as many clones run as workspaces may
	var once sync.Once
	address := gitServer(t, "head -c 1000000 /dev/urandom > data && echo hello > hello", func(git http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n := clones.Add(1)
			defer clones.Add(-1)
			for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
			}
			if n == limit {
				once.Do(func() { close(all) })
			}
			select {
			case <-all:
				git.ServeHTTP(w, r)
			case <-r.Context().Done():
			}
		})
	})
	relayAtStart(s, docker, port, address)
	before := residentPeak(t, s.Pid())
	count := watchLimit(t, s, dsn)
	began := time.Now()
	var last atomic.Int64
	s.inParallel(many, func(i int, on *server) {
		// As many clients as there are workspaces would keep the server busy with their questions alone.
		until := func(what string, ok func() bool) {
			on.Helper()
			on.until(what, func() bool {
				if ok() {
					return true
				}
				time.Sleep(450 * time.Millisecond)
				return false
			})
		}
		var w api.Workspace
		until("the workspace may run", func() (ok bool) {
			var err error
			w, err = on.api.Create(t.Context(), api.CreateWorkspace{Name: fmt.Sprint("api", i), Repositories: []api.Repository{{URL: "http://127.0.0.1:" + port + "/api.git"}}})
			if err != nil && codehub.CodeOf(err) != "workspace_limit_exceeded" {
				on.Fatal(err)
			}
			return err == nil
		})
		until("the clone has ended", func() bool {
			setup, err := on.api.Setup(t.Context(), w.ID)
			if err == nil && len(setup.Steps) == 1 && setup.Steps[0].State == "failed" {
				on.Fatalf("%+v", setup.Steps)
			}
			return err == nil && len(setup.Steps) == 1 && setup.Steps[0].State == "done"
		})
		last.Store(int64(time.Since(began)))
		if got, err := os.ReadFile(filepath.Join(on.homeFolder(w.ID), "project/api/hello")); err != nil || string(got) != "hello\n" {
			on.Errorf("%s: %q, %v", w.ID, got, err)
		}
		on.setDesired(w.ID, "STANDBY")
		until("it has stopped", func() bool {
			now, err := on.api.Get(t.Context(), w.ID)
			return err == nil && now.Phase == "STANDBY" && now.Operation == "NONE"
		})
		on.expectNoError(w.ID, "its clone")
	})
	slots, containers := count()
	mean, slowest := ticks(s)
	after := residentPeak(t, s.Pid())
	t.Logf("%d clones in %.1f s, with the stops %.1f s; at most %d workspaces, %d containers and %d requests of clones at once; mean tick %v, slowest below %v; peak memory %d MB, before %d MB",
		many, time.Duration(last.Load()).Seconds(), time.Since(began).Seconds(), slots, containers, most.Load(), mean, slowest, after/1e6, before/1e6)
	if slots != limit || containers > limit || most.Load() != limit {
		t.Errorf("the limit is %d", limit)
	}
	if mean > 2*time.Second || after-before > 100e6 {
		t.Error("the server is slow or large")
	}
}

// imageWithGit makes an image with git, whose IDE is the quick one of the tests' image.
func imageWithGit(t *testing.T) (ref string) {
	t.Helper()
	ref = "codehub-test/git:" + uuid.NewString()
	build := exec.CommandContext(t.Context(), "docker", "build", "--quiet", "--tag", ref, "-")
	build.Stdin = strings.NewReader("FROM " + env.slimImage + "\nCOPY --from=" + env.testImage + " /testserver /testserver\nLABEL codehub.ide=included\nENTRYPOINT [\"/testserver\"]\n")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cleanup(t, func() {
		if _, err := env.docker.ImageRemove(context.Background(), ref, client.ImageRemoveOptions{Force: true}); err != nil {
			t.Error(err)
		}
	})
	return ref
}

// relayAtStart leads a port of each workspace to an address of this machine, from before its setup.
func relayAtStart(s *server, docker *dockerProxy, port, address string) {
	on := *s
	on.test = test{parallelTB{s.TB}}
	did := func(_ context.Context, what, id string) {
		if what == startedContainer {
			on.awaitAgent(id)
			on.relay(id, port, address)
		}
	}
	docker.did.Store(&did)
}

// watchLimit counts the workspaces that the running limit counts, and the containers that run, until
// the returned function is called, which returns the most that it has seen.
func watchLimit(t *testing.T, s *server, dsn string) (most func() (slots, containers int)) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	stop, done := make(chan struct{}), make(chan struct{})
	var slots, containers int
	filter := client.Filters{}.Add("label", proc.Label(s.Installation())).Add("label", "codehub.role=workspace").Add("status", "running")
	go func() {
		defer close(done)
		for {
			var n int
			err := conn.QueryRow(t.Context(), `SELECT count(*) FROM workspaces WHERE holds_slot`).Scan(&n)
			list, listed := env.docker.ContainerList(t.Context(), client.ContainerListOptions{Filters: filter})
			if err := errors.Join(err, listed); err != nil {
				t.Error(err)
				return
			}
			slots, containers = max(slots, n), max(containers, len(list.Items))
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	return func() (int, int) {
		close(stop)
		<-done
		return slots, containers
	}
}

// ticks returns how long the ticks of the server took on average, and a bound of the slowest one.
func ticks(s *server) (mean, slowest time.Duration) {
	s.Helper()
	_, metrics := s.ask(http.MethodGet, "/metrics", "")
	number := func(of string) float64 {
		m := regexp.MustCompile(`(?m)^codehub_tick_seconds` + of + ` (\S+)$`).FindStringSubmatch(metrics)
		if m == nil {
			s.Fatalf("no %s of the ticks", of)
		}
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			s.Fatal(err)
		}
		return n
	}
	count := number("_count")
	for _, bound := range []string{"0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10"} {
		if slowest == 0 && number(`_bucket\{le="`+bound+`"\}`) == count {
			slowest, _ = time.ParseDuration(bound + "s")
		}
	}
	return time.Duration(number("_sum") / count * 1e9).Round(time.Millisecond), slowest
}

// residentPeak returns the largest resident memory that a process has had, in bytes.
func residentPeak(t *testing.T, pid int) (n int64) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(status, []byte("VmHWM:"))
	if _, err := fmt.Sscanf(string(rest), "%d kB", &n); err != nil {
		t.Fatal(err)
	}
	return n << 10
}

// A repository of gigabytes fills the home while the IDE starts, and a script of the creation never
// ends. Both workspaces run, the clone says why it failed and leaves nothing, and a stop ends the
// script, which the next start runs again.
func TestHostileCreation(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	const port = "42124"
	dir, docker := scratch(t), newDockerProxy(t)
	template := `
scripts:
  create: |
    trap '' TERM HUP INT
    echo began
    until [ -e ~/ready ]; do sleep 0.2; done
    echo run >> ~/created
`
	if err := os.WriteFile(filepath.Join(dir, "never.yaml"), []byte(template), 0o644); err != nil {
		t.Fatal(err)
	}
	s := startQuick(t, "DOCKER_HOST="+docker.host, "CODEHUB_DEFAULT_IMAGE="+env.slimImage, "CODEHUB_TEMPLATES_DIR="+dir, "CODEHUB_DELETE_GRACE=0s",
		"CODEHUB_STORAGE=local-dir", "CODEHUB_HOME_QUOTA=image", "CODEHUB_WORKSPACE_DISK=96m")
	// 2 GiB in 128 files that are the same.
	relayAtStart(s, docker, port, gitServer(t, `same=$(head -c 16777216 /dev/zero | tr '\0' x | git hash-object -w --stdin) &&
		seq -f "100644 $same 0$(printf '\t')%g" 128 | git update-index --index-info && git ls-files | git update-index --skip-worktree --stdin && echo hello > hello`))
	big := s.create(api.CreateWorkspace{Name: "big", Repositories: []api.Repository{{URL: "http://127.0.0.1:" + port + "/api.git"}}})
	never := s.create(api.CreateWorkspace{Name: "never", Template: "never"})
	s.awaitPhase(big, "RUNNING")
	s.awaitPhase(never, "RUNNING")
	step := func(id, state, log string) (st api.SetupStep) {
		t.Helper()
		s.until("the step is "+state, func() bool {
			setup, err := s.api.Setup(t.Context(), id)
			if err != nil || len(setup.Steps) != 1 {
				return false
			}
			st = setup.Steps[0]
			return st.State == state && strings.Contains(st.Log, log)
		})
		return st
	}
	if st := step(big, "failed", ""); st.Reason != "space" || !strings.Contains(st.Error, "does not fit into the home folder, which has ") {
		t.Errorf("%s: %s", st.Reason, st.Error)
	}
	s.expectShell(big, "ls -A ~/project ~/project/api && head -c 40000000 /dev/zero > ~/mine && echo free", "/home/coder/project:\napi\n\n/home/coder/project/api:\nfree")

	step(never, "running", "began")
	began := time.Now()
	s.setDesired(never, "STANDBY")
	s.awaitPhase(never, "STANDBY")
	t.Logf("the script was ended in %v", time.Since(began).Round(time.Millisecond))
	s.setDesired(never, "RUNNING")
	s.awaitPhase(never, "RUNNING")
	step(never, "running", "began")
	s.expectShell(never, "touch ~/ready", "")
	step(never, "done", "")
	s.expectShell(never, "cat ~/created", "run")
	for _, id := range []string{big, never} {
		s.expectNoError(id, "a hostile creation")
		s.remove(id)
	}
	s.expectNothingLeft()
}
