package e2e

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"codehub/api"
	codehub "codehub/client"
	"codehub/internal/testing/dockertest"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/pgtest"
)

// clusterOptions describe a cluster.
type clusterOptions struct {
	servers  int
	postgres bool // a separate PostgreSQL, which the test can restart
	redis    bool
	bucket   *bucket
	endpoint string // endpoint of the bucket; "": that of the bucket's own server
	settings []string
	limits   limits // checked by the audit at each commit
}

// cluster is several servers of one installation on one machine. They share
// database, Docker and bucket; each has a data folder.
type cluster struct {
	test
	clusterOptions
	members []*member
	pg      *pgtest.Own
	dsn     string // of the database, without a link
	redis   *redisServer
	audit   *audit
	subnet  *dockertest.Subnet
}

// member is one server of a cluster. It reaches the database and Docker through
// links of its own. The administrator is logged in.
type member struct {
	*server
	name               string
	dbLink, dockerLink *link
	servesBackend      func(pid uint32) bool // whether the PostgreSQL backend pid serves this server
	stopped            atomic.Bool           // by SIGSTOP
}

// adminName is the administrator that every server creates.
const adminName = "admin"

func startCluster(t *testing.T, of clusterOptions) *cluster {
	t.Helper()
	c := &cluster{test: test{t}, clusterOptions: of, subnet: dockertest.NewSubnet(t)}
	if of.postgres {
		c.pg = pgtest.StartOwn(t)
		c.dsn = c.pg.DSN()
	} else {
		c.dsn = database(t)
	}
	if of.redis {
		c.redis = startRedis(t)
	}
	for i := range of.servers {
		c.add(t, i)
	}
	cleanup(t, c.end)
	// The first server applies the migrations, which the triggers of the audit
	// need.
	c.members[0].restart()
	if err := c.subnet.UsedBy(c.members[0].Installation()); err != nil {
		t.Fatal(err)
	}
	c.audit = c.installAudit(of.limits)
	var group sync.WaitGroup
	for _, m := range c.members[1:] {
		group.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
			defer cancel()
			if err := m.Start(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if t.Failed() {
		t.FailNow()
	}
	c.members[0].login(adminName, proc.AdminPassword)
	for _, m := range c.members {
		*m.server = *m.asUser(test{t}, c.members[0].token)
	}
	c.audit.begin()
	return c
}

// add prepares a server without starting it.
func (c *cluster) add(t *testing.T, n int) {
	t.Helper()
	dir, err := os.MkdirTemp("", "codehub-e2e-") // short, because the length of a socket's path is limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	m := &member{name: fmt.Sprint("server ", n+1)}
	m.server = &server{test: test{t}, home: filepath.Join(dir, "data"), docker: env.docker, runtime: dockerState{}, mode: ownOrigins, web: anyLocalhost}
	db, err := url.Parse(c.dsn)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(db.Query().Get("host"), ".s.PGSQL."+db.Query().Get("port"))
	m.dbLink = newLink(t, "tcp", "127.0.0.1:0", func() (net.Conn, error) { return net.Dial("unix", socket) })
	m.servesBackend = m.dbLink.backends()
	db.Host, db.RawQuery = m.dbLink.address, "sslmode=disable"
	dockerHost := env.docker.DaemonHost()
	m.dockerLink = newLink(t, "unix", filepath.Join(dir, "d.sock"), func() (net.Conn, error) { return dialDocker(dockerHost) })
	settings := append(slices.Clone(c.bucket.settings), "CODEHUB_DEFAULT_IMAGE="+env.testImage,
		"CODEHUB_DATABASE_URL="+db.String(), "DOCKER_HOST=unix://"+m.dockerLink.address, c.subnet.Setting())
	if c.endpoint != "" {
		settings = append(settings, c.bucket.settingsVia(c.endpoint)...)
	}
	if c.redis != nil {
		settings = append(settings, "CODEHUB_REDIS_URL="+c.redis.URL())
	}
	if m.Server, err = proc.New(proc.Options{Binary: env.binary, DataDir: m.home, Env: append(settings, c.settings...)}); err != nil {
		t.Fatal(err)
	}
	m.URL = strings.Replace(m.URL, "://localhost", "://codehub.localhost", 1) // as ownOrigins
	c.members = append(c.members, m)
}

func dialDocker(host string) (net.Conn, error) {
	u, err := url.Parse(host)
	if err != nil {
		return nil, err
	}
	if u.Scheme == "unix" {
		return net.Dial("unix", u.Path)
	}
	return net.Dial("tcp", u.Host)
}

// end stops all servers and removes their resources.
func (c *cluster) end() {
	var group sync.WaitGroup
	for _, m := range c.members {
		group.Go(func() {
			m.resume()
			m.dbLink.heal()
			m.dockerLink.heal()
			m.Close()
		})
	}
	group.Wait()
	for _, m := range c.members {
		m.logIfFailed(m.name)
	}
	for _, m := range c.members {
		if m.Installation() != "" {
			m.sweep()
			break
		}
	}
}

// asUser returns the server with another user's token. Its failures are
// reported to on.
func (m *member) asUser(on test, token string) *server {
	m.Helper()
	s := *m.server
	s.test, s.token = on, token
	var err error
	if s.api, err = codehub.New(m.URL, token); err != nil {
		on.Fatal(err)
	}
	return &s
}

// stop suspends a server process (SIGSTOP); resume continues it.
func (m *member) stop() {
	m.Helper()
	if err := syscall.Kill(m.Pid(), syscall.SIGSTOP); err != nil {
		m.Error(err)
	}
	m.stopped.Store(true)
}

func (m *member) resume() {
	if m.Done() != nil {
		_ = syscall.Kill(m.Pid(), syscall.SIGCONT)
	}
	m.stopped.Store(false)
}

// sql runs a statement on the database, without a link.
func (c *cluster) sql(statement string, args ...any) {
	c.Helper()
	if err := c.trySQL(c.Context(), func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, statement, args...)
		return err
	}); err != nil {
		c.Fatalf("%.100s: %v", statement, err)
	}
}

func (c *cluster) trySQL(ctx context.Context, f func(ctx context.Context, conn *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, c.dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return f(ctx, conn)
}

// leader returns the server that holds the leader's lock, nil if there is none.
func (c *cluster) leader() *member {
	var pid uint32
	err := c.trySQL(context.Background(), func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT COALESCE((SELECT pid FROM e2e.holders LIMIT 1), 0)`).Scan(&pid)
	})
	if err != nil || pid == 0 {
		return nil
	}
	for _, m := range c.members {
		if m.servesBackend(pid) {
			return m
		}
	}
	return nil
}

// awaitLeader waits until a server leads that is none of not, and returns it.
func (c *cluster) awaitLeader(not ...*member) *member {
	c.Helper()
	began := time.Now()
	for time.Since(began) < harness.Patience {
		if m := c.leader(); m != nil && !slices.Contains(not, m) {
			c.Logf("%s leads after %.1f s", m.name, time.Since(began).Seconds())
			return m
		}
		time.Sleep(50 * time.Millisecond)
	}
	c.Fatal("no server became the leader")
	return nil
}

// otherThan returns a server that is none of not and not suspended.
func (c *cluster) otherThan(not ...*member) *member {
	for _, m := range c.members {
		if !slices.Contains(not, m) && !m.stopped.Load() {
			return m
		}
	}
	return nil
}

// user creates a user with a token by SQL. The password is the administrator's.
func (c *cluster) user(name string) (id, token string) {
	c.Helper()
	id, token = uuid.Must(uuid.NewV7()).String(), "chub_"+rand.Text()
	hash := sha256.Sum256([]byte(token))
	c.sql(`INSERT INTO users (id, username, username_key, password_hash)
		SELECT $1, $2, $2, password_hash FROM users WHERE username = $3`, id, name, adminName)
	c.sql(`INSERT INTO api_tokens (id, user_id, name, hash) VALUES ($1, $2, 'e2e', $3)`, uuid.Must(uuid.NewV7()), id, hash[:])
	return id, token
}

// awaitSettled waits until no workspace of a user has an operation, and each is
// in its desired state, in ERROR, or waiting for a slot. It returns them.
func (c *cluster) awaitSettled(on *server, within time.Duration) []api.Workspace {
	c.Helper()
	deadline := time.Now().Add(within)
	for {
		all, err := on.api.List(c.Context(), codehub.Filter{})
		i := slices.IndexFunc(all, func(w api.Workspace) bool {
			return w.Operation != "NONE" || w.Phase != w.DesiredState && w.Phase != "ERROR" && !waitsForSlot(w)
		})
		if err == nil && i < 0 {
			return all
		}
		if time.Now().After(deadline) {
			if err == nil {
				w := all[i]
				err = fmt.Errorf("%s (%s) is %s, operation %s, desired %s, queued %q, %d failures, %s %s",
					w.Name, w.ID, w.Phase, w.Operation, w.DesiredState, str(w.NextDesiredState), w.ErrorCount, str(w.ErrorReason), str(w.ErrorMessage))
			}
			c.Fatalf("workspaces have not settled: %v", err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// waitsForSlot reports whether the workspace is queued to run until the limits
// allow it.
func waitsForSlot(w api.Workspace) bool {
	return w.Operation == "NONE" && str(w.NextDesiredState) == "RUNNING"
}
