package main

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"codehub/internal/e2e/proc"
)

// mostRoutes is the number of workspaces whose hosts get requests at random.
const mostRoutes = 10_000

// randomHosts is a script for wrk.
//
//go:embed routes.lua
var randomHosts []byte

// routes measures requests at random to the hosts of many workspaces against requests to the
// host of one, on a server that has all of them. Docker shows the container of one workspace
// as that of each of the others, too; see copies.
func (b *bench) routes(ctx context.Context) error {
	docker, err := newCopies()
	if err != nil {
		return err
	}
	defer docker.close()
	own, err := b.serve(ctx, proc.Options{Env: []string{"DOCKER_HOST=" + docker.address}})
	if err != nil {
		return err
	}
	defer own.close()
	l, err := own.lineup(ctx, "routes")
	if err != nil {
		return err
	}
	defer l.close()
	ours := l.all[0]
	conn, err := own.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)

	// Each route may keep a connection to the container open.
	count := min(mostRoutes, b.sockets)
	ids := make([]string, count)
	for i := range ids {
		ids[i] = docker.id(l.workspace, i)
	}
	if err := docker.show(l.workspace, ids); err != nil {
		return err
	}
	if err := copyWorkspace(ctx, conn, l.workspace, ids); err != nil {
		return err
	}
	// Removing the copies from the database first keeps the server from deleting them in Docker.
	defer func() {
		_, _ = conn.Exec(context.WithoutCancel(ctx), `DELETE FROM workspaces WHERE id = ANY($1::uuid[])`, ids)
	}()

	run, err := newRouteLoad(ours, l.workspace, ids)
	if err != nil {
		return err
	}
	defer os.RemoveAll(run.dir)
	if err := run.openAll(ctx); err != nil {
		return err
	}
	seen := make([][]rate, 2)
	err = inTurns(b.n, 2, func(i int) error {
		r, err := run.measure(ctx, i)
		seen[i] = append(seen[i], r)
		return err
	})
	if err != nil {
		return err
	}
	perSecond := func(i int) float64 { return medianBy(seen[i], func(r rate) float64 { return r.perSecond }) }
	p99 := func(i int) float64 { return medianBy(seen[i], func(r rate) float64 { return r.p99.Seconds() * 1e3 }) }
	ratio := perSecond(1) / perSecond(0)
	fmt.Printf("routes: %d workspaces at random %.0f/s, p99 %.1f ms; one of them %.0f/s, p99 %.1f ms; %.2f times the requests (at least 0.9): %s\n",
		count, perSecond(1), p99(1), perSecond(0), p99(0), ratio, verdict(ratio >= 0.9))
	return nil
}

// routeLoad sends requests to the hosts of one workspace or of all copies.
type routeLoad struct {
	original    *proxied // without its cookie
	workspace   string
	ids         []string
	cookie      string // name of the session's
	dir, script string
	targets     [2]string // files for the script: one host, and those of all copies
}

func newRouteLoad(ours *proxied, workspace string, ids []string) (*routeLoad, error) {
	plain := *ours
	plain.headers = nil
	session := ""
	for _, h := range ours.headers {
		if list, ok := strings.CutPrefix(h, "Cookie: "); ok {
			session = sessionIn(list)
			continue
		}
		plain.headers = append(plain.headers, h)
	}
	dir, err := os.MkdirTemp("", "codehub-bench-routes-")
	if err != nil {
		return nil, err
	}
	r := &routeLoad{original: &plain, workspace: workspace, ids: ids, dir: dir, script: filepath.Join(dir, "routes.lua"),
		targets: [2]string{filepath.Join(dir, "one"), filepath.Join(dir, "copies")}}
	r.cookie, _, _ = strings.Cut(session, "=")
	var copies strings.Builder
	for _, id := range ids {
		fmt.Fprintf(&copies, "%s %s\n", r.host(id), r.session(id))
	}
	return r, errors.Join(
		os.WriteFile(r.script, randomHosts, 0o644),
		os.WriteFile(r.targets[0], []byte(ours.host+" "+session+"\n"), 0o644),
		os.WriteFile(r.targets[1], []byte(copies.String()), 0o644))
}

func (r *routeLoad) host(id string) string {
	return strings.Replace(r.original.host, r.workspace, id, 1)
}

func (r *routeLoad) session(id string) string { return r.cookie + "=" + copiedSession(id) }

// openAll sends a request to each copy.
func (r *routeLoad) openAll(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(32)
	for _, id := range r.ids {
		g.Go(func() error {
			p := *r.original
			p.host, p.headers = r.host(id), append([]string{"Cookie: " + r.session(id)}, p.headers...)
			return p.request(ctx, http.MethodGet, "/bytes?n=1024", nil)
		})
	}
	return g.Wait()
}

// measure sends requests to one host, or at random to the copies' if i is 1.
func (r *routeLoad) measure(ctx context.Context, i int) (rate, error) {
	return r.original.wrk(ctx, 32, "/bytes?n=1024", r.script, r.targets[i])
}

// sessionIn returns the cookie "name=value" of a workspace's host.
func sessionIn(cookies string) string {
	for c := range strings.SplitSeq(cookies, "; ") {
		if strings.Contains(c, "codehub_workspace=") {
			return c
		}
	}
	return ""
}

// copiedSession is the session of a copied workspace's host.
func copiedSession(id string) string {
	hash := sha256.Sum256([]byte("session of " + id))
	return hex.EncodeToString(hash[:])
}

// copyWorkspace copies a workspace's row to others with these ids, and the session of its
// host to theirs.
func copyWorkspace(ctx context.Context, conn *pgx.Conn, from string, ids []string) error {
	hashes := make([][]byte, len(ids))
	for i, id := range ids {
		hash := sha256.Sum256([]byte(copiedSession(id)))
		hashes[i] = hash[:]
	}
	columns := "" // those that are not generated
	err := conn.QueryRow(ctx, `SELECT string_agg(quote_ident(attname), ', ') FROM pg_attribute
		WHERE attrelid = 'workspaces'::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''`).Scan(&columns)
	if err != nil {
		return fmt.Errorf("list the columns of workspaces: %w", err)
	}
	for _, statement := range []struct {
		sql  string
		args []any
	}{
		{`ALTER TABLE workspaces DISABLE TRIGGER USER`, nil}, // no notifications
		{`INSERT INTO workspaces (` + columns + `) SELECT ` + columns + ` FROM (SELECT copy.* FROM workspaces w, unnest($2::text[]) AS n(id),
			jsonb_populate_record(NULL::workspaces, replace(to_jsonb(w)::text, $1, n.id)::jsonb || jsonb_build_object('name', 'copy ' || n.id)) AS copy
			WHERE w.id = $1::uuid) AS copies`, []any{from, ids}},
		{`ALTER TABLE workspaces ENABLE TRIGGER USER`, nil},
		{`INSERT INTO workspace_sessions (hash, session_hash, workspace_id, port)
			SELECT n.hash, (SELECT session_hash FROM workspace_sessions WHERE workspace_id = $1::uuid LIMIT 1), n.id::uuid, 0
			FROM unnest($2::text[], $3::bytea[]) AS n(id, hash)`, []any{from, ids, hashes}},
		{`ANALYZE`, nil},
	} {
		if _, err := conn.Exec(ctx, statement.sql, statement.args...); err != nil {
			return fmt.Errorf("copy a workspace %d times: %w", len(ids), err)
		}
	}
	return nil
}
