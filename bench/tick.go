package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/archive"
	"codehub/internal/archive/store"
	"codehub/internal/lifecycle"
	"codehub/internal/postgres"
	"codehub/internal/postgres/embedded"
	"codehub/internal/reconcile"
	"codehub/internal/workspace"
)

const (
	few, many      = 10_000, 100_000
	tickBound      = 250 * time.Millisecond // for few
	tickGrowth     = 12.0                   // times that for many
	tickStatements = 5
)

// tick: one look of the controller at workspaces with which there is nothing
// to do: a backend that lists at once, a real database.
func tick(ctx context.Context, n int) error {
	short, err := ticksOf(ctx, mixOf(few), n)
	if err != nil {
		return err
	}
	long, err := ticksOf(ctx, mixOf(many), n)
	if err != nil {
		return err
	}
	archived, err := ticksOf(ctx, crowd{archived: many}, n)
	if err != nil {
		return err
	}
	growth := float64(long.took) / float64(short.took)
	statements := max(short.statements, long.statements)
	fmt.Printf("tick over %d workspaces: %s (at most %s): %s\n", few, ms1(short.took), tickBound, verdict(short.took <= tickBound))
	fmt.Printf("tick over %d workspaces: %s, %.1f times as long (at most %.0f): %s\n", many, ms1(long.took), growth, tickGrowth, verdict(growth <= tickGrowth))
	fmt.Printf("tick: %d statements (at most %d), the longest at %d workspaces %s, its session held for %s: %s\n",
		statements, tickStatements, many, ms1(long.longest), ms1(long.held), verdict(statements <= tickStatements))
	for _, f := range []struct {
		what string
		seen ticks
	}{{fmt.Sprintf("%d workspaces", few), short}, {fmt.Sprintf("%d workspaces", many), long}, {fmt.Sprintf("%d workspaces, all archived", many), archived}} {
		fmt.Printf("tick over %s: %s, %d allocations, %.1f MB; the first of a term %s, %d statements, %.0f MB; then %.0f MB are held\n",
			f.what, ms1(f.seen.took), f.seen.allocations, float64(f.seen.bytes)/1e6,
			ms1(f.seen.first.took), f.seen.first.statements, float64(f.seen.first.bytes)/1e6, float64(f.seen.holds)/1e6)
	}
	return nil
}

func ms1(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d)/1e6) }

// oneTick is what a single tick took.
type oneTick struct {
	took, held, longest time.Duration // held: the session, by the reading of the rows
	statements          int
	allocations, bytes  uint64
}

// ticks is the median of a term's ticks but the first, and the most of statements.
type ticks struct {
	oneTick
	first oneTick
	holds uint64 // memory that the controller holds between ticks
}

func ticksOf(ctx context.Context, c crowd, n int) (seen ticks, err error) {
	db, err := openOwn(ctx)
	if err != nil {
		return seen, err
	}
	defer func() { err = errors.Join(err, db.close()) }()
	backend, err := db.fill(ctx, c)
	if err != nil {
		return seen, err
	}
	t, err := db.lead(ctx, backend)
	if err != nil {
		return seen, err
	}
	defer t.stop()
	before := heap()
	if seen.first, err = t.once(ctx); err != nil {
		return seen, err
	}
	seen.holds = heap() - before
	var each []oneTick
	for range n {
		one, err := t.once(ctx)
		if err != nil {
			return seen, err
		}
		each = append(each, one)
	}
	seen.oneTick = medianOf(each)
	return seen, db.untouched(ctx)
}

func medianOf(each []oneTick) oneTick {
	middle := func(of func(oneTick) int64) int64 {
		var all []int64
		for _, t := range each {
			all = append(all, of(t))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	m := oneTick{
		took:        time.Duration(middle(func(t oneTick) int64 { return int64(t.took) })),
		allocations: uint64(middle(func(t oneTick) int64 { return int64(t.allocations) })),
		bytes:       uint64(middle(func(t oneTick) int64 { return int64(t.bytes) })),
	}
	for _, t := range each {
		m.statements, m.held, m.longest = max(m.statements, t.statements), max(m.held, t.held), max(m.longest, t.longest)
	}
	return m
}

// heap is what is reachable.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// ownDatabase is a PostgreSQL of the benchmark's own, with the settings that
// the one has which codehub brings along.
type ownDatabase struct {
	pg  *embedded.Server
	dir string
}

func openOwn(ctx context.Context) (*ownDatabase, error) { return openWith(ctx, nil) }

// openWith does so with further settings.
func openWith(ctx context.Context, settings map[string]string) (*ownDatabase, error) {
	dir, err := os.MkdirTemp("", "codehub-bench-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // the database runs as another user
		return nil, err
	}
	pg, err := embedded.Start(ctx, embedded.Config{Dir: filepath.Join(dir, "data"), Settings: settings})
	if err == nil {
		err = postgres.Migrate(ctx, pg.URL())
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &ownDatabase{pg: pg, dir: dir}, nil
}

func (d *ownDatabase) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return errors.Join(d.pg.Stop(ctx), os.RemoveAll(d.dir))
}

func (d *ownDatabase) fill(ctx context.Context, c crowd) (*still, error) {
	conn, err := pgx.Connect(ctx, d.pg.URL())
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	if err := c.settle(ctx, conn); err != nil {
		return nil, err
	}
	return backendOf(ctx, conn)
}

// untouched checks that there was nothing to do.
func (d *ownDatabase) untouched(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, d.pg.URL())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var written int
	if err := conn.QueryRow(ctx, `SELECT count(DISTINCT xmin::text) FROM workspaces`).Scan(&written); err != nil {
		return err
	}
	if written != 1 {
		return errors.New("the controller had something to do")
	}
	return nil
}

// leader is a controller in a term, of which one tick after the other is measured.
type leader struct {
	controller *reconcile.Controller
	session    *session
	last       time.Time // by the controller, of its last tick
	cancel     context.CancelFunc
	done       chan error
	ctx        context.Context
	rows       *watchedRows
	close      func() // what it works with
}

// connect makes a session whose statements s counts.
func (d *ownDatabase) connect(ctx context.Context, s *session) (*pgx.Conn, error) {
	cfg, err := postgres.ConnConfig(d.pg.URL(), "codehub leader")
	if err != nil {
		return nil, err
	}
	cfg.Tracer = s
	return pgx.ConnectConfig(ctx, cfg)
}

// lead prepares a term, which the first measured tick begins.
func (d *ownDatabase) lead(ctx context.Context, backend *still) (*leader, error) {
	s := &session{}
	conn, err := d.connect(ctx, s)
	if err != nil {
		return nil, err
	}
	db, err := postgres.Open(ctx, d.pg.URL(), postgres.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	policy := lifecycle.DefaultPolicy()
	policy.RetryMax = 2 * time.Hour
	l := &leader{session: s, close: func() { db.Close(); _ = conn.Close(context.WithoutCancel(ctx)) }, done: make(chan error, 1)}
	l.rows = &watchedRows{Controller: postgres.NewController(postgres.NewSession(conn))}
	l.controller = reconcile.New(reconcile.Config{
		Runtime: backend, Archives: present{}, Intents: db, Routes: backend, Policy: policy,
		Log:      slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Settings: reconcile.Settings{IdleInterval: time.Hour, ActiveInterval: time.Hour, MaxOperations: 32},
	})
	l.ctx, l.cancel = context.WithCancel(ctx)
	return l, nil
}

func (l *leader) stop() {
	l.cancel()
	if !l.last.IsZero() {
		<-l.done
	}
	l.close()
}

// once has the controller tick, and measures it.
func (l *leader) once(ctx context.Context) (oneTick, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	l.session.reset()
	if l.last.IsZero() {
		go func() { l.done <- l.controller.Run(l.ctx, l.rows) }()
	} else {
		l.controller.Wake()
	}
	for {
		if at := l.controller.Status().Tick; at.After(l.last) {
			l.last = at
			break
		}
		select {
		case <-ctx.Done():
			return oneTick{}, ctx.Err()
		case err := <-l.done:
			l.done <- err
			return oneTick{}, fmt.Errorf("the term is over: %w", err)
		case <-time.After(100 * time.Microsecond):
		}
	}
	end := time.Now()
	runtime.ReadMemStats(&after)
	began, held := l.rows.lastLook()
	one := oneTick{took: end.Sub(began), held: held, allocations: after.Mallocs - before.Mallocs, bytes: after.TotalAlloc - before.TotalAlloc}
	one.statements, one.longest = l.session.seen()
	time.Sleep(50 * time.Millisecond) // what a tick has others do is done
	return one, nil
}

// watchedRows tells when a tick began, and how long it read the rows.
type watchedRows struct {
	*postgres.Controller
	mu    sync.Mutex
	began time.Time
	held  time.Duration
}

func (r *watchedRows) Candidates(ctx context.Context) ([]*workspace.Workspace, error) {
	began := time.Now()
	list, err := r.Controller.Candidates(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.began, r.held = began, time.Since(began)
	return list, err
}

func (r *watchedRows) lastLook() (began time.Time, held time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.began, r.held
}

// session counts the statements of a connection, those of a batch each by itself.
type session struct {
	mu         sync.Mutex
	statements int
	longest    time.Duration

	longestSQL  string
	longestArgs []any
}

// begun is a statement under way, in the context of its end.
type begun struct {
	at   time.Time
	data pgx.TraceQueryStartData
}

type begunKey struct{}

func (s *session) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statements, s.longest = 0, 0
}

func (s *session) seen() (statements int, longest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.statements, s.longest
}

func (s *session) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statements++
	return context.WithValue(ctx, begunKey{}, begun{time.Now(), data})
}

func (s *session) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b, ok := ctx.Value(begunKey{}).(begun); ok && time.Since(b.at) > s.longest {
		s.longest, s.longestSQL, s.longestArgs = time.Since(b.at), b.data.SQL, b.data.Args
	}
}

func (s *session) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return context.WithValue(ctx, begunKey{}, begun{at: time.Now()})
}

func (s *session) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statements++
}

func (s *session) TraceBatchEnd(ctx context.Context, conn *pgx.Conn, _ pgx.TraceBatchEndData) {
	s.TraceQueryEnd(ctx, conn, pgx.TraceQueryEndData{})
}

// present is a bucket in which every archive is.
type present struct{ reconcile.Archives }

func (present) Key(id workspace.ID, claim string) string {
	return "codehub/" + string(id) + "/" + claim + "/home.tar.zst"
}

func (present) State(context.Context, workspace.Workspace) (lifecycle.Archive, error) {
	return lifecycle.ArchivePresent, nil
}

func (present) Meta(context.Context, string) (*archive.Meta, error) { return nil, store.ErrNotFound }

// CloseRoute implements reconcile.Routes: nobody is connected.
func (s *still) CloseRoute(workspace.ID) {}
