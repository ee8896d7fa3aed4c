// Package server runs a codehub server: it makes every part and wires them.
package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"codehub/internal/activity"
	"codehub/internal/admin"
	"codehub/internal/auth"
	"codehub/internal/bucket"
	"codehub/internal/bus"
	"codehub/internal/bus/redisbus"
	"codehub/internal/config"
	"codehub/internal/dashboard"
	"codehub/internal/failpoint"
	"codehub/internal/gc"
	"codehub/internal/httpapi"
	"codehub/internal/installation"
	"codehub/internal/lifecycle"
	"codehub/internal/mark"
	"codehub/internal/postgres"
	"codehub/internal/postgres/embedded"
	"codehub/internal/proxy"
	"codehub/internal/reconcile"
	"codehub/internal/replica"
	"codehub/internal/rollback"
	"codehub/internal/runtime/docker"
	"codehub/internal/ttl"
	"codehub/internal/workspace"
)

// Command is codehub serve.
type Command struct {
	config.Config `embed:""`
}

// Run serves until ctx ends.
func (s *Command) Run(ctx context.Context) error {
	if err := s.Config.Resolve(); err != nil {
		return err
	}
	return serve(ctx, s.Config)
}

// serve is the server: all the wiring in one place. It ends when ctx does, or
// when a part of it cannot go on.
func serve(ctx context.Context, cfg config.Config) error {
	log := cfg.Logger(os.Stderr)
	defer lastResort(ctx, 3*cfg.ShutdownTimeout+time.Minute, log)()
	for _, w := range cfg.Warnings() {
		log.Warn(w)
	}
	for _, name := range config.Unknown(os.Environ(), config.Names()) {
		log.Warn("this variable is no setting of codehub and is ignored", "variable", name)
	}
	if err := os.MkdirAll(cfg.DataDir, 0o711); err != nil {
		return fmt.Errorf("make the data folder: %w", err)
	}
	lock, err := embedded.LockDir(cfg.DataDir)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Release() }()

	listener, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return &config.Problem{Setting: "CODEHUB_LISTEN", Why: err.Error(), Do: "free the port, or give another one"}
	}
	defer listener.Close()

	// The database outlives everything that uses it.
	dsn, private := cfg.DatabaseURL, (*embedded.Server)(nil)
	if dsn == "" {
		if private, err = embedded.Start(ctx, embedded.Config{Dir: cfg.DataDir, Lock: lock, Log: log}); err != nil {
			return err
		}
		defer func() {
			sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.ShutdownTimeout)
			defer cancel()
			if err := private.Stop(sctx); err != nil {
				log.Error("the embedded database did not stop cleanly", "err", err)
			}
		}()
		dsn = private.URL()
	} else if err := installation.CheckSession(ctx, dsn); err != nil {
		return err
	}
	if err := postgres.Migrate(ctx, dsn); err != nil {
		return err
	}
	db, err := postgres.Open(ctx, dsn, postgres.Options{
		Limits: postgres.Limits{PerUser: cfg.MaxRunningPerUser, Global: cfg.MaxRunningGlobal},
		Log:    log,
	})
	if err != nil {
		return err
	}
	defer db.Close()
	id, err := db.Installation(ctx)
	if err != nil {
		return err
	}
	redis, err := openRedis(ctx, cfg, id, log)
	if err != nil {
		return err
	}
	if redis != nil {
		defer redis.Close()
	}
	shared, err := sharedSettings(ctx, cfg, db)
	if err != nil {
		return err
	}
	reachable := backends{}
	self := replica.New(replica.Config{DB: db, Version: cfg.Version, Settings: shared, Health: reachable.states, Log: log})
	rt, err := docker.New(ctx, docker.Config{
		Installation: id, DataDir: cfg.DataDir, HostDataDir: cfg.HostDataDir,
		CPUs: float64(cfg.NanoCPUs) / 1e9, MemoryBytes: cfg.MemoryBytes, PidsLimit: cfg.Pids, LogMaxBytes: cfg.LogBytes,
		Sudo: cfg.Sudo, Subnet: cfg.Subnet, EgressDeny: slices.Concat(cfg.DenyPrefixes, behind(ctx, cfg, log)), AllowNoWall: cfg.AllowNoWall, Log: log,
	})
	if err != nil {
		return err
	}
	defer rt.Close()
	archives, err := installation.OpenBucket(cfg, id, log)
	if err != nil {
		return err
	}
	reachable["engine"], reachable["bucket"] = rt.Breaker(), archives.Breaker
	defer archives.Breaker.Close()
	if err := checkBucket(ctx, archives, db, log); err != nil {
		return err
	}
	if err := join(ctx, self); err != nil {
		return err
	}
	s := newServer(cfg, log, dsn, db, rt, archives, id, reachable)
	s.private, s.self, s.redis = private, self, redis
	s.idleness()
	defer s.leave(ctx)
	return s.run(ctx, listener)
}

// lastResort ends the process if it is still there so long after ctx has
// ended, whatever it hangs on. Every part has a bound of its own and nothing is
// expected to need this; what is left behind is what a kill leaves, which the
// next start takes up.
func lastResort(ctx context.Context, after time.Duration, log *slog.Logger) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		time.AfterFunc(after, func() {
			log.Error("the shutdown did not come to an end and is cut short", "after", after)
			os.Exit(1)
		})
	})
}

// server is the parts of a running codehub.
type server struct {
	cfg config.Config
	log *slog.Logger
	dsn string
	db  *postgres.DB
	// private is the embedded database; nil with CODEHUB_DATABASE_URL.
	private *embedded.Server
	self    *replica.Replica
	// redis is nil without CODEHUB_REDIS_URL; leads is whether this server is
	// the one that publishes there.
	redis  *redisbus.Redis
	leads  atomic.Bool
	auth   *auth.Auth
	hub    *bus.Hub
	proxy  *proxy.Proxy
	bucket *bucket.Bucket
	// backends are rt's and bucket's circuit breakers.
	backends backends
	ctrl     *reconcile.Controller
	garbage  *gc.Runner
	marks    *mark.Keeper
	onHold   atomic.Pointer[string] // why, as last read from the database; nil: it is not
	used     *activity.Recorder
	flush    *activity.Flusher
	owes     bool // what people did last could not be handed on
	ttl      *ttl.Runner
	http     http.Handler
}

func newServer(cfg config.Config, log *slog.Logger, dsn string, db *postgres.DB, rt *docker.Runtime, archives *bucket.Bucket, id string, reachable backends) *server {
	s := &server{cfg: cfg, log: log, dsn: dsn, db: db, bucket: archives, backends: reachable, used: activity.New()}
	s.auth = auth.New(db, auth.Config{URL: cfg.PublicURL, Log: log})
	s.hub = bus.New(bus.Config{
		Load:        bus.Batched(reload(db)),
		AuthChanged: s.auth.Invalidate,
		Log:         log,
	})
	administration := admin.New(admin.Config{Store: db, Passwords: s.auth, OrphanDelay: cfg.OrphanDelay})
	restore := rollback.New(rollback.Config{
		Store: db, Runtime: rt, Bucket: archives, DeleteGrace: cfg.DeleteGrace, Log: log,
		DefaultImage: cfg.DefaultImage, StorageBackend: cfg.Storage,
	})
	pages := dashboard.New(dashboard.Config{
		Store: db, Auth: s.auth, Events: s.hub, Logs: rt, Log: log,
		URL: cfg.PublicURL, DefaultImage: cfg.DefaultImage,
		StorageBackend: cfg.Storage,
		DeleteGrace:    cfg.DeleteGrace, MaxRunning: cfg.MaxRunningPerUser, PathMode: true, Archives: archives, Trouble: s.trouble,
		TTL:          serverTTL(cfg),
		KeepAwakeMax: cfg.KeepAwakeMax, Admin: administration, Restore: restore,
	})
	s.proxy = proxy.New(proxy.Config{
		Auth: s.auth, Sessions: s.auth, Store: proxyStore{db}, Runtime: rt, Pages: pages, Log: log,
		PublicURL: cfg.PublicURL, CookieNames: slices.Concat(auth.CookieNames(), dashboard.CookieNames()), IsToken: auth.IsToken, Moved: db.Moved,
		Activity: s.used,
	})
	// Routes are dropped before anybody hears of a change, so that whoever comes
	// back on an event never meets the state before it.
	s.hub.Observe(bus.Observer{
		Changed: func(_ string, id workspace.ID) { s.proxy.Invalidate(id) },
		Gap:     s.proxy.InvalidateAll,
	})
	s.marks = mark.New(mark.Config{Runtime: rt, Bucket: archives, Files: s.databaseFiles, Log: log})
	policy := lifecycle.DefaultPolicy()
	policy.DeleteGrace, policy.Starting = cfg.DeleteGrace, cfg.StartTimeout
	s.ctrl = reconcile.New(reconcile.Config{
		Runtime: rt, Archives: archives, Intents: db, Routes: s.proxy, Log: log, Policy: policy, MinFree: cfg.MinFreeShare, Step: failpoint.Step(),
		IdleInterval: cfg.IdleInterval, ActiveInterval: cfg.ActiveInterval, ActiveFor: cfg.ActiveFor,
		MaxOperations: cfg.MaxOperations, MaxJobs: cfg.MaxStorageJobs, StopGrace: 10 * time.Second, AcceptVolumeLoss: cfg.AcceptVolumeLoss, OrphanDelay: cfg.OrphanDelay,
		MayRemove: s.marks.MayRemove,
	})
	s.garbage = gc.NewRunner(gc.RunnerConfig{Ready: s.marks.MayRemove, Every: cfg.GCInterval, Config: gc.Config{
		Bucket: archives, Log: log,
		Settings: gc.Settings{Keep: cfg.ArchiveKeep, Delay: cfg.GCDelay, DeleteGrace: cfg.DeleteGrace},
	}})
	log.Info("installation", "id", id)

	mux := http.NewServeMux()
	mux.Handle("/api/", httpapi.New(httpapi.Config{
		URL: cfg.PublicURL, DeleteGrace: cfg.DeleteGrace, DefaultImage: cfg.DefaultImage,
		StorageBackend: cfg.Storage,
		Store:          db, Auth: s.auth, Hub: s.hub, Logs: rt, Archives: archives, Admin: administration, Restore: restore, Log: log,
		TTL: serverTTL(cfg), KeepAwakeMax: cfg.KeepAwakeMax, LastUse: s.lastUse,
	}))
	mux.Handle("GET /healthz", httpapi.Healthz())
	mux.Handle("GET /readyz", httpapi.Readyz(log, s.checks(), s.backends.states))
	metrics := httpapi.NewMetrics()
	metrics.Registry().MustRegister(collectionMetrics{s.garbage.Status}, reachable.metrics(), s.holdMetric(), s.proxy.Metrics())
	mux.Handle("GET /metrics", metrics.Handler())
	pages.Routes(mux)
	s.http = httpapi.Outer(log, metrics, s.proxy.Wrap(mux))
	return s
}
