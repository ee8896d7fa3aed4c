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
	tickLimit      = 250 * time.Millisecond // at few workspaces
	tickGrowth     = 12.0                   // maximum factor at many workspaces
	tickStatements = 5
)

// tick measures a tick over workspaces that need no operation, with a runtime
// that lists at once and a real database.
func tick(ctx context.Context, n int) error {
	short, err := measureTicks(ctx, typicalPopulation(few), n)
	if err != nil {
		return err
	}
	long, err := measureTicks(ctx, typicalPopulation(many), n)
	if err != nil {
		return err
	}
	archived, err := measureTicks(ctx, population{archived: many}, n)
	if err != nil {
		return err
	}
	growth := float64(long.took) / float64(short.took)
	statements := max(short.statements, long.statements)
	fmt.Printf("tick over %d workspaces: %s (at most %s): %s\n", few, ms1(short.took), tickLimit, verdict(short.took <= tickLimit))
	fmt.Printf("tick over %d workspaces: %s, %.1f times as long (at most %.0f): %s\n", many, ms1(long.took), growth, tickGrowth, verdict(growth <= tickGrowth))
	fmt.Printf("tick: %d statements (at most %d), the longest at %d workspaces %s, the session used for %s to read rows: %s\n",
		statements, tickStatements, many, ms1(long.longest), ms1(long.held), verdict(statements <= tickStatements))
	for _, f := range []struct {
		what string
		seen tickSeries
	}{{fmt.Sprintf("%d workspaces", few), short}, {fmt.Sprintf("%d workspaces", many), long}, {fmt.Sprintf("%d workspaces, all archived", many), archived}} {
		fmt.Printf("tick over %s: %s, %d allocations, %.1f MB; the first of a term %s, %d statements, %.0f MB; %.0f MB retained between ticks\n",
			f.what, ms1(f.seen.took), f.seen.allocations, float64(f.seen.bytes)/1e6,
			ms1(f.seen.first.took), f.seen.first.statements, float64(f.seen.first.bytes)/1e6, float64(f.seen.retained)/1e6)
	}
	return nil
}

func ms1(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d)/1e6) }

// tickCost is the cost of one tick.
type tickCost struct {
	took, held, longest time.Duration // held: time for which reading the rows uses the session
	statements          int
	allocations, bytes  uint64
}

// tickSeries has the median of a term's ticks without the first, with the
// maximum number of statements.
type tickSeries struct {
	tickCost
	first    tickCost
	retained uint64 // memory that the controller holds between ticks
}

func measureTicks(ctx context.Context, c population, n int) (seen tickSeries, err error) {
	db, err := openDatabase(ctx)
	if err != nil {
		return seen, err
	}
	defer func() { err = errors.Join(err, db.close()) }()
	backend, err := db.populate(ctx, c)
	if err != nil {
		return seen, err
	}
	t, err := db.newLeader(ctx, backend)
	if err != nil {
		return seen, err
	}
	defer t.stop()
	before := heap()
	if seen.first, err = t.tick(ctx); err != nil {
		return seen, err
	}
	seen.retained = heap() - before
	var each []tickCost
	for range n {
		one, err := t.tick(ctx)
		if err != nil {
			return seen, err
		}
		each = append(each, one)
	}
	seen.tickCost = medianOf(each)
	return seen, db.expectNoWrites(ctx)
}

func medianOf(each []tickCost) tickCost {
	middle := func(of func(tickCost) int64) int64 {
		var all []int64
		for _, t := range each {
			all = append(all, of(t))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	m := tickCost{
		took:        time.Duration(middle(func(t tickCost) int64 { return int64(t.took) })),
		allocations: uint64(middle(func(t tickCost) int64 { return int64(t.allocations) })),
		bytes:       uint64(middle(func(t tickCost) int64 { return int64(t.bytes) })),
	}
	for _, t := range each {
		m.statements, m.held, m.longest = max(m.statements, t.statements), max(m.held, t.held), max(m.longest, t.longest)
	}
	return m
}

// heap returns the size of the reachable objects.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// database is a separate PostgreSQL with the settings of the embedded one.
type database struct {
	pg  *embedded.Server
	dir string
}

func openDatabase(ctx context.Context) (*database, error) { return openDatabaseWith(ctx, nil) }

// openDatabaseWith starts the database with further settings.
func openDatabaseWith(ctx context.Context, settings map[string]string) (*database, error) {
	dir, err := os.MkdirTemp("", "codehub-bench-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // the database runs as a different user
		return nil, err
	}
	pg, err := embedded.Start(ctx, embedded.Config{Dir: filepath.Join(dir, "data"), Settings: settings})
	if err == nil {
		err = postgres.Migrate(ctx, pg.URL())
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &database{pg: pg, dir: dir}, nil
}

func (d *database) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return errors.Join(d.pg.Stop(ctx), os.RemoveAll(d.dir))
}

func (d *database) populate(ctx context.Context, c population) (*staticRuntime, error) {
	conn, err := pgx.Connect(ctx, d.pg.URL())
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	if err := c.insert(ctx, conn); err != nil {
		return nil, err
	}
	return newStaticRuntime(ctx, conn)
}

// expectNoWrites checks that the controller has written no row.
func (d *database) expectNoWrites(ctx context.Context) error {
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
		return errors.New("the controller has written rows")
	}
	return nil
}

// leader is a controller in a term whose ticks are measured one by one.
type leader struct {
	controller *reconcile.Controller
	session    *session
	last       time.Time // the controller's time of its last tick
	cancel     context.CancelFunc
	done       chan error
	ctx        context.Context
	rows       *timedRows
	close      func() // closes its connections
}

// connect opens a session whose statements s counts.
func (d *database) connect(ctx context.Context, s *session) (*pgx.Conn, error) {
	cfg, err := postgres.ConnConfig(d.pg.URL(), "codehub leader")
	if err != nil {
		return nil, err
	}
	cfg.Tracer = s
	return pgx.ConnectConfig(ctx, cfg)
}

// newLeader prepares a term, which begins with the first measured tick.
func (d *database) newLeader(ctx context.Context, backend *staticRuntime) (*leader, error) {
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
	l.rows = &timedRows{Controller: postgres.NewController(postgres.NewSession(conn))}
	l.controller = reconcile.New(reconcile.Config{
		Runtime: backend, Archives: completeArchives{}, Intents: db, Routes: backend, Policy: policy,
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

// tick makes the controller tick and measures it.
func (l *leader) tick(ctx context.Context) (tickCost, error) {
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
			return tickCost{}, ctx.Err()
		case err := <-l.done:
			l.done <- err
			return tickCost{}, fmt.Errorf("the term ended: %w", err)
		case <-time.After(100 * time.Microsecond):
		}
	}
	end := time.Now()
	runtime.ReadMemStats(&after)
	began, held := l.rows.lastRead()
	one := tickCost{took: end.Sub(began), held: held, allocations: after.Mallocs - before.Mallocs, bytes: after.TotalAlloc - before.TotalAlloc}
	one.statements, one.longest = l.session.totals()
	time.Sleep(50 * time.Millisecond) // until goroutines that the tick started have ended
	return one, nil
}

// timedRows records when a tick began and how long it read the rows.
type timedRows struct {
	*postgres.Controller
	mu    sync.Mutex
	began time.Time
	held  time.Duration
}

func (r *timedRows) Candidates(ctx context.Context) ([]*workspace.Workspace, error) {
	began := time.Now()
	list, err := r.Controller.Candidates(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.began, r.held = began, time.Since(began)
	return list, err
}

func (r *timedRows) lastRead() (began time.Time, held time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.began, r.held
}

// session counts the statements of a connection, including each statement of a
// batch.
type session struct {
	mu         sync.Mutex
	statements int
	longest    time.Duration

	longestSQL  string
	longestArgs []any
}

// runningStatement is a statement that has begun, in the context until its end.
type runningStatement struct {
	at   time.Time
	data pgx.TraceQueryStartData
}

type runningStatementKey struct{}

func (s *session) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statements, s.longest = 0, 0
}

func (s *session) totals() (statements int, longest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.statements, s.longest
}

func (s *session) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statements++
	return context.WithValue(ctx, runningStatementKey{}, runningStatement{time.Now(), data})
}

func (s *session) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b, ok := ctx.Value(runningStatementKey{}).(runningStatement); ok && time.Since(b.at) > s.longest {
		s.longest, s.longestSQL, s.longestArgs = time.Since(b.at), b.data.SQL, b.data.Args
	}
}

func (s *session) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return context.WithValue(ctx, runningStatementKey{}, runningStatement{at: time.Now()})
}

func (s *session) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statements++
}

func (s *session) TraceBatchEnd(ctx context.Context, conn *pgx.Conn, _ pgx.TraceBatchEndData) {
	s.TraceQueryEnd(ctx, conn, pgx.TraceQueryEndData{})
}

// completeArchives is a bucket that has every archive.
type completeArchives struct{ reconcile.Archives }

func (completeArchives) Key(id workspace.ID, claim string) string {
	return "codehub/" + string(id) + "/" + claim + "/home.tar.zst"
}

func (completeArchives) State(context.Context, workspace.Workspace) (lifecycle.Archive, error) {
	return lifecycle.ArchivePresent, nil
}

func (completeArchives) Meta(context.Context, string) (*archive.Meta, error) {
	return nil, store.ErrNotFound
}

// CloseRoute implements reconcile.Routes. There are no connections to close.
func (s *staticRuntime) CloseRoute(workspace.ID) {}
