package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/archive"
	"codehub/internal/control/reconcile"
	"codehub/internal/postgres"
	"codehub/internal/postgres/embedded"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

const (
	few, many      = 10_000, 100_000
	tickLimit      = 250 * time.Millisecond // at few workspaces
	tickGrowth     = 12.0                   // maximum factor at many workspaces
	tickStatements = 5
)

// tick measures a tick over workspaces that need no operation, with a runtime
// that lists at once and a real database.
func tick(ctx context.Context, o options) error {
	short, err := measureTicks(ctx, typicalPopulation(few), o.n)
	if err != nil {
		return err
	}
	long, err := measureTicks(ctx, typicalPopulation(many), o.n)
	if err != nil {
		return err
	}
	archived, err := measureTicks(ctx, population{archived: many}, o.n)
	if err != nil {
		return err
	}
	growth := float64(long.took) / float64(short.took)
	statements := max(short.statements, long.statements)
	fmt.Printf("tick over %d workspaces: %s (at most %s): %s\n", few, ms1(short.took), tickLimit, verdict(short.took <= tickLimit))
	fmt.Printf("tick over %d workspaces: %s, %.1f times as long (at most %.0f): %s\n", many, ms1(long.took), growth, tickGrowth, verdict(growth <= tickGrowth))
	fmt.Printf("tick: %d statements (at most %d), the longest at %d workspaces %s: %s\n",
		statements, tickStatements, many, ms1(long.longest), verdict(statements <= tickStatements))
	for i, seen := range []tickSeries{short, long, archived} {
		fmt.Printf("tick over %s: %s, %d allocations, %.1f MB; the first of a term %s, %.0f MB; %.0f MB retained between ticks\n",
			[]string{"few", "many", "many, all archived"}[i], ms1(seen.took), seen.allocations, float64(seen.bytes)/1e6,
			ms1(seen.first.took), float64(seen.first.bytes)/1e6, float64(seen.retained)/1e6)
	}
	return nil
}

// tickCost is the cost of one tick.
type tickCost struct {
	took, longest      time.Duration
	statements         int
	allocations, bytes uint64
}

// tickSeries has the median tick of a term without the first, with the
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
	slices.SortFunc(each, func(a, b tickCost) int { return cmp.Compare(a.took, b.took) })
	m := each[len(each)/2]
	for _, t := range each {
		m.statements, m.longest = max(m.statements, t.statements), max(m.longest, t.longest)
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

func openDatabase(ctx context.Context) (*database, error) {
	dir, err := os.MkdirTemp("", "codehub-bench-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // the database runs as a different user
		return nil, err
	}
	pg, err := embedded.Start(ctx, embedded.Config{Dir: filepath.Join(dir, "data")})
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
		if at := l.controller.Status().TickedAt; at.After(l.last) {
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
	one := tickCost{took: end.Sub(*l.rows.began.Load()), allocations: after.Mallocs - before.Mallocs, bytes: after.TotalAlloc - before.TotalAlloc}
	one.statements, one.longest = l.session.totals()
	time.Sleep(50 * time.Millisecond) // until goroutines that the tick started have ended
	return one, nil
}

// timedRows records when a tick began.
type timedRows struct {
	*postgres.Controller
	began atomic.Pointer[time.Time]
}

func (r *timedRows) Candidates(ctx context.Context) ([]*workspace.Workspace, error) {
	r.began.Store(new(time.Now()))
	return r.Controller.Candidates(ctx)
}

// session counts the statements of a connection, including each statement of a
// batch.
type session struct {
	mu         sync.Mutex
	statements int
	longest    time.Duration
}

// statementBegan is the context key of the time when a statement began.
type statementBegan struct{}

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

func (s *session) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statements++
	return context.WithValue(ctx, statementBegan{}, time.Now())
}

func (s *session) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if began, ok := ctx.Value(statementBegan{}).(time.Time); ok {
		s.longest = max(s.longest, time.Since(began))
	}
}

func (s *session) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return context.WithValue(ctx, statementBegan{}, time.Now())
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
