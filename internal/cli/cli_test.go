package cli

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/internal/archive"
	"codehub/internal/control/admin"
	"codehub/internal/gateway/origin"
	"codehub/internal/postgres"
	"codehub/internal/running/attach"
	"codehub/internal/running/dotfiles"
	"codehub/internal/running/frominside"
	"codehub/internal/running/ports"
	"codehub/internal/running/service"
	"codehub/internal/running/templates"
	"codehub/internal/runtime"
	"codehub/internal/runtime/agent"
	"codehub/internal/server/maintenance"
	"codehub/internal/storage/store"
	"codehub/internal/testing/agenttest"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/harness/web"
	"codehub/internal/users/auth"
	"codehub/internal/users/gitaccess"
	"codehub/internal/users/gitidentity"
	"codehub/internal/users/sealed"
	"codehub/internal/users/secrets"
	"codehub/internal/web/httpapi"
	"codehub/internal/workspace"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5"
	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"codehub": func() {
		var commands struct {
			Commands      `embed:""`
			Maintenance   maintenance.Commands `embed:""`
			PrintsVersion kong.VersionFlag     `name:"version"`
		}
		os.Exit(Main(&commands, "test", os.Args[1:]))
	}})
}

const clientPassword = "correct horse"

// apiServer is a server of the API on a real database, without a controller:
// scripts write the observations with the command settle.
type apiServer struct {
	auth     *auth.Auth
	url, dsn string
	bucket   string // a folder
	agents   *agenttest.Agents
	api      http.Handler
}

func serveAPI(t testing.TB) apiServer {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	dir := t.TempDir()
	sizes := workspace.Sizes{
		Default: workspace.Size{Name: workspace.DefaultSize, NanoCPUs: 2e9, Memory: 4 << 30},
		Offered: []workspace.Size{{Name: "small", NanoCPUs: 5e8, Memory: 512 << 20}},
	}
	srv := web.New(t, fixture.NewDatabase(t, postgres.Options{Log: log, Limits: postgres.Limits{PerUser: 2}, Sizes: sizes, Sharing: true}), log)
	gate := openGate(t, srv)
	agents := agenttest.New(t)
	attacher := attach.New(attach.Config{Store: srv.DB, Runtime: agents, Sessions: srv.Auth, CheckInterval: 50 * time.Millisecond})
	layout, err := origin.Parse(&url.URL{Scheme: "http", Host: "localhost:8080"}, "")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := sealed.OpenOrCreate(filepath.Join(t.TempDir(), "secret.key"))
	if err != nil {
		t.Fatal(err)
	}
	api := httpapi.Outer(log, nil, srv.Streams, httpapi.New(httpapi.Config{
		Settings: service.Settings{
			URL: srv.URL, DeleteGrace: time.Hour, Idle: service.Idle{StandbyTTL: 600, ArchiveTTL: 1800},
			Defaults: service.Defaults{DefaultImage: "codehub/workspace:latest", StorageBackend: workspace.StorageDockerVolume, Sizes: sizes},
			SSH:      service.SSHServer{HostKey: gate.HostKey()},
		},
		Gate: gate, Store: srv.DB, Auth: srv.Auth, Hub: srv.Hub, Logs: oneLine{}, Log: log, Archives: cutBucket{store.NewFolder(dir), dir},
		Admin:  admin.New(admin.Config{Store: srv.DB, Passwords: srv.Auth, URL: srv.URL, OrphanDelay: 10 * time.Minute}),
		Attach: attacher, Secrets: secrets.New(srv.DB, keys), Git: gitaccess.New(srv.DB, keys), Dotfiles: &dotfiles.Service{Store: srv.DB, Agents: attacher},
		GitIdentities: gitidentity.New(srv.DB, keys),
		Templates:     templates.New(templates.Config{Store: srv.DB, DefaultImage: "codehub/workspace:latest", Sizes: sizes, Log: log}),
		Ports: ports.New(ports.Config{Store: srv.DB, Runtime: agents, Attacher: attacher, Layout: layout,
			Settings: ports.Settings{PortVisibilityMax: "public", PortShareMax: 24 * time.Hour}}),
	}))
	srv.Serve(api)
	srv.AddAccount("ann", clientPassword, true)
	return apiServer{auth: srv.Auth, url: srv.HTTP.URL, dsn: srv.DSN, bucket: dir, agents: agents, api: api}
}

// startAgent NAME starts the agent of a workspace, and sets CODEHUB_BUSY_SOCKET as inside it.
func startAgent(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: agent NAME")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, ts.Getenv("DSN"))
	ts.Check(err)
	defer conn.Close(context.Background())
	var id workspace.ID
	ts.Check(conn.QueryRow(ctx, `SELECT id FROM workspaces WHERE name = $1`, args[0]).Scan(&id))
	a := ts.Value(agentsKey{}).(*agenttest.Agents).Start(id)
	ts.Setenv("CODEHUB_BUSY_SOCKET", a.BusySocket)
}

// sendSetup NAME URL has the agent of a workspace clone a repository.
func sendSetup(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: setup NAME URL")
	}
	startAgent(ts, false, args[:1])
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, ts.Getenv("DSN"))
	ts.Check(err)
	defer conn.Close(context.Background())
	var id workspace.ID
	ts.Check(conn.QueryRow(ctx, `SELECT id FROM workspaces WHERE name = $1`, args[0]).Scan(&id))
	up, err := ts.Value(agentsKey{}).(*agenttest.Agents).Upstream(ctx, id)
	ts.Check(err)
	c := &agent.Client{Addr: up.Agent, Secret: up.Secret}
	ts.Check(c.Setup(ctx, agent.Setup{Steps: []agent.Step{{Name: args[1], Clone: &workspace.Repository{URL: args[1]}}}}))
}

type (
	agentsKey struct{}
	apiKey    struct{}
	endKey    struct{}
)

// inside NAME lets the commands that follow run as in a workspace, whose agent a server has
// connected to. ! inside NAME ends that server.
func runInside(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		(*ts.Value(endKey{}).(*func()))()
		return
	}
	startAgent(ts, false, args)
	ctx, cancel := context.WithCancel(context.Background())
	conn, err := pgx.Connect(ctx, ts.Getenv("DSN"))
	ts.Check(err)
	defer conn.Close(ctx)
	var id workspace.ID
	ts.Check(conn.QueryRow(ctx, `SELECT id FROM workspaces WHERE name = $1`, args[0]).Scan(&id))
	socket := filepath.Join(filepath.Dir(ts.Getenv("CODEHUB_BUSY_SOCKET")), "client.sock")
	r := frominside.New(frominside.Config{Runtime: ts.Value(agentsKey{}).(*agenttest.Agents), Handler: ts.Value(apiKey{}).(http.Handler), Log: slog.New(slog.DiscardHandler), Socket: socket})
	ended := make(chan error, 1)
	go func() {
		ended <- r.Run(ctx, func(context.Context) ([]postgres.RunningWorkspace, error) {
			return []postgres.RunningWorkspace{{ID: id}}, nil
		})
	}()
	end := sync.OnceFunc(func() { cancel(); <-ended })
	ts.Defer(end)
	*ts.Value(endKey{}).(*func()) = end
	ts.Setenv("CODEHUB_WORKSPACE_ID", string(id))
	for _, err := os.Lstat(socket); err != nil; _, err = os.Lstat(socket) {
		<-time.After(10 * time.Millisecond)
	}
}

// listen NAME listens on a port of this machine, where the agents run, and sets a variable
// to its number.
func listen(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: listen NAME")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { l.Close() })
	ts.Setenv(args[0], strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
}

// statement runs SQL on the server's database.
func statement(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: sql STATEMENT")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, ts.Getenv("DSN"))
	ts.Check(err)
	defer conn.Close(context.Background())
	_, err = conn.Exec(ctx, args[0])
	ts.Check(err)
}

// oneLine is the log of a container.
type oneLine struct{}

func (oneLine) Logs(ctx context.Context, _ workspace.ID, tail int, follow bool, w io.Writer) error {
	if tail == 1 {
		return runtime.ErrNotFound
	}
	_, err := fmt.Fprintf(w, "hello, tail %d, follow %v\n", tail, follow)
	return err
}

// cutBucket is a bucket whose responses end after the number of bytes in the file
// "cut" in its folder. The file is read whenever an object is opened.
type cutBucket struct {
	*store.Folder
	dir string
}

func (b cutBucket) Meta(ctx context.Context, key string) (*archive.Meta, error) {
	r, err := b.Get(ctx, archive.MetaKey(key), 0)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return archive.ReadMeta(r)
}

func (b cutBucket) Open(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	body, err := b.Get(ctx, key, offset)
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(filepath.Join(b.dir, "cut"))
	if err != nil {
		return body, nil
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(io.LimitReader(body, n), cutOff{}), body}, nil
}

func (b cutBucket) Files(ctx context.Context, key string, size int64) (archive.Files, error) {
	if workspace.BackupOfKey(key) != "" {
		m, get, err := b.Generation(ctx, key)
		if err != nil {
			return nil, err
		}
		return m.Files(get), nil
	}
	return archive.OpenIndex(ctx, size, func(ctx context.Context, offset, length int64) (io.ReadCloser, error) {
		return b.GetRange(ctx, key, offset, length)
	})
}

func (cutBucket) ReserveManifests(string, int64) (func(), bool) { return func() {}, true }

func (b cutBucket) Generation(ctx context.Context, key string) (*archive.Manifest, archive.GetRange, error) {
	r, err := b.Get(ctx, key, 0)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	m, err := archive.ReadManifest(r)
	return m, b.GetRange, err
}

type cutOff struct{}

func (cutOff) Read([]byte) (int, error) { return 0, store.ErrUnavailable }

// archived NAME ARCHIVE FILE stores the file as the current archive of a
// workspace.
func archived(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: archived NAME ARCHIVE FILE")
	}
	content := ts.ReadFile(args[2])
	key := "inst/" + args[0] + "/" + args[1] + "/home.tar.zst"
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := store.NewFolder(ts.Getenv("BUCKET")).Put(ctx, key, strings.NewReader(content))
	ts.Check(err)
	sum := sha256.Sum256([]byte(content))
	conn, err := pgx.Connect(ctx, ts.Getenv("DSN"))
	ts.Check(err)
	defer conn.Close(context.Background())
	_, err = conn.Exec(ctx, `
		WITH a AS (
			INSERT INTO archives (key, workspace_id, archive_op_id, digest, size, entries, skipped, verified_at)
			SELECT $1, id, $2, $3, $4, 12, 3, now() FROM workspaces WHERE name = $5)
		UPDATE workspaces SET archive_key = $1, archive_digest = $3, archive_size = $4 WHERE name = $5`,
		key, args[1], hex.EncodeToString(sum[:]), len(content), args[0])
	ts.Check(err)
}

// backed NAME FOLDER completes the backup of a workspace that waits, with the folder as its home.
func backed(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: backed NAME FOLDER")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, ts.Getenv("DSN"))
	ts.Check(err)
	defer conn.Close(context.Background())
	var id, of string
	ts.Check(conn.QueryRow(ctx, `SELECT b.id, w.id FROM home_backups b JOIN workspaces w ON w.id = workspace_id WHERE name = $1 AND b.state = 'waiting'`, args[0]).Scan(&id, &of))
	name := archive.ManifestName(time.Now(), id)
	key := "inst/" + of + "/backups/" + name
	sum, size := "", 0
	m, err := archive.Backup(ctx, ts.MkAbs(args[1]), name, func(ctx context.Context, object string, content []byte) error {
		if object == name {
			digest := sha256.Sum256(content)
			sum, size, object = hex.EncodeToString(digest[:]), len(content), key
		}
		_, err := store.NewFolder(ts.Getenv("BUCKET")).Put(ctx, object, bytes.NewReader(content))
		return err
	}, archive.BackupOptions{})
	ts.Check(err)
	_, err = conn.Exec(ctx, `
		UPDATE home_backups SET state = 'done', key = $2, digest = $3, size = $4, begun_at = now(), ended_at = now(), files = $5, added = $5, bytes = $6 WHERE id = $1`,
		id, key, sum, size, m.Totals().Files, m.Totals().Bytes)
	ts.Check(err)
}

// packFolder FOLDER FILE packs a folder into an archive.
func packFolder(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: pack FOLDER FILE")
	}
	f, err := os.Create(ts.MkAbs(args[1]))
	ts.Check(err)
	_, err = archive.Pack(context.Background(), ts.MkAbs(args[0]), f, archive.PackOptions{})
	ts.Check(err)
	ts.Check(f.Close())
}

func TestClient(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			s := serveAPI(env.T().(testing.TB))
			env.Setenv("SERVER", s.url)
			env.Setenv("DSN", s.dsn)
			env.Setenv("BUCKET", s.bucket)
			env.Values[agentsKey{}], env.Values[apiKey{}], env.Values[endKey{}] = s.agents, s.api, new(func())
			env.Setenv("PASSWORD", clientPassword)
			env.Setenv("XDG_CONFIG_HOME", filepath.Join(env.WorkDir, "config"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"settle": settle, "mode": mode, "secret": secret, "exits": exits, "archived": archived, "backed": backed, "pack": packFolder, "agent": startAgent, "inside": runInside, "setup": sendSetup, "listen": listen, "sql": statement},
	})
}

// settle NAME [COLUMN==VALUE …] COLUMN=VALUE … writes columns as a controller
// would, once the workspace exists and has the values with ==.
func settle(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: settle NAME COLUMN=VALUE …")
	}
	var set []string
	values, where := []any{args[0]}, "name = $1"
	for _, a := range args[1:] {
		column, value, _ := strings.Cut(a, "=")
		if is, condition := strings.CutPrefix(value, "="); condition {
			values = append(values, is)
			where += fmt.Sprintf(" AND %s = $%d", column, len(values))
			continue
		}
		values = append(values, value)
		cast := ""
		if column == "home_ctx" || column == "conditions" || column == "progress" {
			cast = "::jsonb"
		}
		set = append(set, fmt.Sprintf("%s = NULLIF($%d, '')%s", column, len(values), cast))
		if column == "operation" {
			set = append(set, map[bool]string{true: "op_id = NULL", false: "op_id = gen_random_uuid()"}[value == "NONE"])
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, ts.Getenv("DSN"))
	ts.Check(err)
	defer conn.Close(context.Background())
	for {
		tag, err := conn.Exec(ctx, "UPDATE workspaces SET "+strings.Join(set, ", ")+" WHERE "+where, values...)
		ts.Check(err)
		if tag.RowsAffected() == 1 {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
}

// mode FILE PERM checks a file's permissions.
func mode(ts *testscript.TestScript, neg bool, args []string) {
	info, err := os.Stat(ts.MkAbs(args[0]))
	ts.Check(err)
	if got := fmt.Sprintf("%o", info.Mode().Perm()); (got == args[1]) == neg {
		ts.Fatalf("%s has mode %s", args[0], got)
	}
}

// secret NAME sets a variable to the token that was printed last.
func secret(ts *testscript.TestScript, neg bool, args []string) {
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
}

// exits CODE COMMAND … checks a command's exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if (fmt.Sprint(code) == args[0]) == neg {
		ts.Fatalf("%q exits with %d", args[1:], code)
	}
}
