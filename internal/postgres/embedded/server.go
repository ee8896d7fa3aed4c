package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"codehub/internal/base/health"

	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// stopWait is how long Stop waits for postgres if its context has no deadline.
	stopWait = 30 * time.Second
	// killWait is how long each harder step may take after that.
	killWait = 5 * time.Second
	// silenceLimit is how long postgres may run without any response. During a crash
	// recovery it responds that it is starting.
	silenceLimit = time.Minute
	upkeepEvery  = 10 * time.Minute
)

// Config configures the private PostgreSQL.
type Config struct {
	// Dir is codehub's data folder, created (0700) if missing.
	Dir string
	// Log may be nil.
	Log *slog.Logger
	// Conditions lists that PostgreSQL cannot be started again; nil: it is only logged.
	Conditions *health.Monitor
	// Progress is called for each part of a dump that Backup has written; it may be nil.
	Progress func()
	// Lock is the caller's lock on Dir. If nil, Start takes one and Stop releases it.
	Lock *Lock
	// User is the OS user postgres runs as if the server is root: by default
	// postgres, or nobody where there is no such user.
	User string
	// BinDirs are file patterns of the folders with postgres and initdb. If empty, the
	// folders of distributions and PATH are searched.
	BinDirs []string
	// Settings follow codehub's own in postgresql.conf. With fsync off, a new cluster
	// is not flushed to disk either.
	Settings map[string]string
}

// Server is a running private PostgreSQL. Its methods may be called from several
// goroutines.
type Server struct {
	log    *slog.Logger
	down   *health.Condition
	lay    *layout
	inst   installation
	more   map[string]string
	socket string // folder
	url    string
	lock   *Lock // nil if the caller's

	lifetime context.Context // until Stop
	end      context.CancelFunc

	mu   sync.Mutex
	proc *process
}

var errStopped = errors.New("PostgreSQL was stopped")

// Start starts the PostgreSQL of the data folder and returns when it accepts
// connections: on the existing cluster, or a new one. It stops the one of a killed server
// first. ctx bounds only the start; crash recovery has
// no other limit. Errors name the problem and a solution. See also ErrNotInstalled and
// LockedError.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	lock := cfg.Lock
	if lock == nil {
		var err error
		if lock, err = LockDir(cfg.Dir); err != nil {
			return nil, err
		}
	}
	s, err := start(ctx, cfg)
	if cfg.Lock == nil {
		if err != nil {
			return nil, errors.Join(err, lock.Release())
		}
		s.lock = lock
	}
	return s, err
}

func start(ctx context.Context, cfg Config) (*Server, error) {
	acc, err := chooseAccounts(cfg.User)
	if err != nil {
		return nil, err
	}
	have, err := installations(ctx, cfg.BinDirs)
	if err != nil {
		return nil, err
	}
	lay, err := openLayout(cfg.Dir, acc)
	if err != nil {
		return nil, err
	}
	s := newServer(cfg, lay, have[0])
	if err := s.open(ctx, have); err != nil {
		s.end()
		return nil, errors.Join(err, lay.root.Close())
	}
	return s, nil
}

// newServer returns a server that does not run.
func newServer(cfg Config, lay *layout, inst installation) *Server {
	s := &Server{log: cfg.Log, lay: lay, inst: inst, more: cfg.Settings, down: cfg.Conditions.New(health.Config{
		Name: "embedded-database", Failing: "start postgres failed; retrying", Resolved: "postgres runs again", Level: slog.LevelError, Log: cfg.Log,
	})}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.lifetime, s.end = context.WithCancel(context.Background())
	return s
}

func (s *Server) open(ctx context.Context, have []installation) error {
	made, err := s.lay.clusterVersion()
	if err != nil {
		return err
	}
	if made != 0 {
		inst, ok := ofMajor(have, made)
		if !ok {
			return s.lay.versionError(made, have)
		}
		s.inst = inst
	}
	if s.socket, err = s.lay.socketFolder(); err != nil {
		return err
	}
	s.url = addressOf(s.socket)
	if made == 0 {
		if err := s.create(ctx); err != nil {
			return err
		}
	}
	err = s.up(ctx)
	if err != nil && s.proc != nil {
		return errors.Join(err, s.halt(context.WithoutCancel(ctx)))
	}
	return err
}

// create creates the cluster after all processes of a predecessor have ended.
func (s *Server) create(ctx context.Context) error {
	pid, err := listenerPID(filepath.Join(s.socket, socketName))
	if err != nil {
		return err
	}
	if pid != 0 {
		return fmt.Errorf("process %d serves a database that is no longer in %s: stop it and put the folder back, "+
			"or stop it to start with an empty database", pid, s.lay.path(dataName))
	}
	lock, err := s.lay.claim(ctx, s.socket)
	if err != nil {
		return err
	}
	defer lock.Close()
	begun := time.Now()
	if err := s.lay.createCluster(ctx, s.inst, lock, s.more); err != nil {
		return err
	}
	s.log.Info("database created", "dir", s.lay.path(dataName), "postgres", s.inst.major, "took", time.Since(begun))
	return nil
}

// URL returns the address of the database codehub for the role codehub, in the format
// of pgx and psql. It is the same after a restart, and works for processes of the
// server's OS user.
func (s *Server) URL() string { return s.url }

// up starts postgres, unless it runs, and waits until it accepts connections.
func (s *Server) up(ctx context.Context) error {
	p, err := s.launch(ctx)
	if err == nil {
		err = s.ready(ctx, p)
	}
	if err == nil {
		s.log.Info("postgres started", "pid", p.pid, "dir", s.lay.path(dataName), "postgres", s.inst.major)
	}
	return err
}

// launch starts a postmaster and does not wait until it is ready.
func (s *Server) launch(ctx context.Context) (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lifetime.Err() != nil {
		return nil, errStopped
	}
	if s.proc != nil && s.proc.running() {
		return s.proc, nil // it did not get ready in time
	}
	lock, err := s.lay.claim(ctx, s.socket)
	if err != nil {
		return nil, err
	}
	p, err := s.spawn(lock)
	if err == nil {
		s.proc = p
	}
	return p, err
}

// spawn starts postgres, which inherits the cluster's lock.
func (s *Server) spawn(lock *os.File) (*process, error) {
	defer lock.Close()
	if err := s.lay.writeConf(dataName, s.more); err != nil {
		return nil, err
	}
	if err := s.lay.pruneLogs(); err != nil {
		return nil, fmt.Errorf("prune the database's logs: %w", err)
	}
	folder, err := s.lay.root.Open(dataName)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	defer folder.Close()
	out, err := s.lay.create(startupLog)
	if err != nil {
		return nil, fmt.Errorf("open the database's log: %w", err)
	}
	defer out.Close()
	program := s.inst.path("postgres")
	cmd := s.lay.command(program, dataName, folder, lock)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return nil, s.lay.explain(program, err)
	}
	return newProcess(cmd), nil
}

// ready waits until postgres accepts connections.
func (s *Server) ready(ctx context.Context, p *process) error {
	cfg, err := pgconn.ParseConfig(s.url)
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	cfg.ConnectTimeout = 5 * time.Second
	respondedAt := time.Now()
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		conn, err := pgconn.ConnectConfig(ctx, cfg)
		if err == nil {
			return conn.Close(ctx)
		}
		if !p.running() {
			return fmt.Errorf("postgres ended while starting%s", s.lay.logTail())
		}
		var answer *pgconn.PgError
		switch {
		case errors.As(err, &answer) && answer.Code == "57P03": // starting, recovering, stopping
			respondedAt = time.Now()
		case errors.As(err, &answer):
			return fmt.Errorf("connect to the database: %w", err)
		case time.Since(respondedAt) > silenceLimit:
			return fmt.Errorf("postgres (pid %d) is not responding: %w", p.pid, err)
		}
		if err := pause(ctx, wait); err != nil {
			return fmt.Errorf("wait for postgres: %w", err)
		}
	}
}
