// Package server runs a codehub server: it creates all parts and connects them.
package server

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"codehub/api"
	"codehub/internal/arrivals/rollback"
	"codehub/internal/base/ballast"
	"codehub/internal/base/health"
	"codehub/internal/base/memlimit"
	"codehub/internal/base/setting"
	"codehub/internal/bus"
	"codehub/internal/bus/activity"
	"codehub/internal/bus/redisbus"
	"codehub/internal/control/admin"
	"codehub/internal/control/backup"
	"codehub/internal/control/gc"
	"codehub/internal/control/homebackup"
	"codehub/internal/control/mark"
	"codehub/internal/control/reconcile"
	"codehub/internal/control/replica"
	"codehub/internal/gateway/front"
	"codehub/internal/gateway/inbound"
	"codehub/internal/gateway/shortway"
	"codehub/internal/postgres"
	"codehub/internal/postgres/embedded"
	"codehub/internal/running/attach"
	"codehub/internal/running/devcontainers"
	"codehub/internal/running/dotfiles"
	"codehub/internal/running/frominside"
	"codehub/internal/running/ports"
	"codehub/internal/running/service"
	"codehub/internal/running/templates"
	"codehub/internal/running/ttl"
	"codehub/internal/running/usage"
	"codehub/internal/runtime/imagebuild"
	"codehub/internal/server/config"
	"codehub/internal/server/installation"
	"codehub/internal/storage/bucket"
	"codehub/internal/users/auth"
	"codehub/internal/users/gitaccess"
	"codehub/internal/users/gitapps"
	"codehub/internal/users/gitidentity"
	"codehub/internal/users/sealed"
	"codehub/internal/users/secrets"
	"codehub/internal/users/signin"
	"codehub/internal/web/dashboard"
	"codehub/internal/web/httpapi"
	"codehub/internal/web/proxy"
	"codehub/internal/web/sshgate"
	"codehub/internal/workspace"
)

// Command is codehub serve.
type Command struct {
	config.Config `embed:""`
}

// Run serves until ctx ends.
func (s *Command) Run(ctx context.Context) error {
	if err := config.CheckEnvironment(os.Environ()); err != nil {
		return err
	}
	if err := s.Config.Resolve(); err != nil {
		return err
	}
	return serve(ctx, s.Config)
}

// serve opens the parts of a server and runs it until ctx ends or a part fails for
// good.
func serve(ctx context.Context, cfg config.Config) error {
	if err := cfg.Docker.CheckExtensions(); err != nil {
		return err
	}
	log := cfg.Logger(os.Stderr)
	defer lastResort(ctx, 3*cfg.ShutdownTimeout+time.Minute, log)()
	for _, w := range cfg.Warnings() {
		log.Warn(w)
	}
	floor := cfg.Memory.Apply(log)
	defer runtime.KeepAlive(floor)
	if err := os.MkdirAll(cfg.DataDir, 0o711); err != nil {
		return fmt.Errorf("make the data folder: %w", err)
	}
	lock, err := embedded.LockDir(cfg.DataDir)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Release() }()

	tcp, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return &setting.Problem{Setting: "CODEHUB_LISTEN", Why: err.Error(), Do: "free the port, or give another one"}
	}
	defer tcp.Close()
	budget := sshgate.BudgetOf(memlimit.Limit())
	capacity, slots := inbound.Capacity(cfg.Inbound.MaxConnections, budget.Slots)
	if capacity < cfg.Inbound.MaxConnections {
		log.Info("connections limited by the limit of file descriptors", "connections", capacity)
	}
	if slots < budget.Slots {
		log.Info("SSH limited by the limit of file descriptors", "connections_and_channels", slots)
		budget.Slots = slots
	}
	numbers, err := listenMetrics(cfg)
	if err != nil {
		return err
	}
	if numbers != nil {
		defer numbers.Close()
	}
	limits := inbound.Limits{
		Connections: capacity, PerAddress: cfg.Inbound.MaxConnectionsPerAddress, Log: log,
		Exempt: func(a netip.Addr) bool { return a.IsLoopback() || cfg.Front.Proxies.Contain(a) },
	}
	listener := inbound.Listen(tcp, limits)

	conditions := &health.Monitor{}
	if cfg.Runtime == config.Kubernetes {
		conditions.Rename = map[string]string{"docker": "kubernetes"}
	}
	entrance, err := openFront(cfg, listener, limits, conditions)
	if err != nil {
		return err
	}
	defer entrance.Close()
	ssh, err := listenSSH(cfg)
	if err != nil {
		return err
	}
	if ssh != nil {
		defer ssh.Close()
	}
	reserve := ballast.New(ballast.Config{Dir: cfg.DataDir, Settings: cfg.Ballast, Log: log, Conditions: conditions})
	reserve.Check() // the database may not start on a full disk
	// The database outlives everything that uses it.
	dsn, private := cfg.DatabaseURL, (*embedded.Server)(nil)
	if dsn == "" {
		if private, err = embedded.Start(ctx, embedded.Config{Dir: cfg.DataDir, Lock: lock, Log: log, Conditions: conditions}); err != nil {
			return err
		}
		defer func() {
			sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.ShutdownTimeout)
			defer cancel()
			if err := private.Stop(sctx); err != nil {
				log.Error("stop embedded database failed", "err", err)
			}
		}()
		dsn = private.URL()
	} else if err := installation.CheckSession(ctx, dsn); err != nil {
		return err
	}
	if err := installation.Migrate(ctx, cfg, dsn, log, extendStart(10*time.Second)); err != nil {
		return err
	}
	db, err := postgres.Open(ctx, dsn, postgres.Options{
		Limits: cfg.Limits,
		Images: cfg.Defaults.Images,
		Sizes:  cfg.Defaults.Sizes,
		Log:    log,

		Sharing: !cfg.Layout.PathMode(), OneAccount: cfg.OneAccount(),
	})
	if err != nil {
		return err
	}
	defer db.Close()
	id, err := db.Installation(ctx)
	if err != nil {
		return err
	}
	sshSeed, err := db.SSHHostKey(ctx)
	if err != nil {
		return err
	}
	redis, err := openRedis(ctx, cfg, id, conditions, log)
	if err != nil {
		return err
	}
	if redis != nil {
		defer redis.Close()
	}
	builds, err := openBuilds(ctx, cfg, log)
	if err != nil {
		return err
	}
	rt, err := openEngine(ctx, cfg, id, builds, conditions, log)
	if err != nil {
		return err
	}
	defer rt.close()
	archives, err := installation.OpenBucket(cfg, id, conditions, log)
	if err != nil {
		return err
	}
	defer archives.Breaker.Close()
	if err := checkBucket(ctx, archives, db, log); err != nil {
		return err
	}
	keys, err := installation.OpenKeys(cfg)
	if err != nil {
		return err
	}
	if err := checkKeys(ctx, keys, db, log); err != nil {
		return err
	}
	shared, err := sharedSettings(ctx, cfg, db, keys)
	if err != nil {
		return err
	}
	reachable := backends{"engine": rt.breaker, "bucket": archives.Breaker}
	serving := &atomic.Pointer[server]{}
	self := replica.New(replica.Config{
		DB: db, Version: cfg.Version, Settings: shared, Health: func() replica.Health {
			h := replica.Health{Backends: reachable.states(), Conditions: failing(conditions)}
			if s := serving.Load(); s != nil {
				h.TickedAt, h.ObservedAt = s.ctrl.Status().TickedAt, s.ctrl.Status().ObservedAt
				h.LateBackups, h.OverLimit = s.homeBackups.Counts()
				h.DatabaseBackedUp = s.backups.Last()
			}
			return h
		},
		Log: log, Conditions: conditions,
	})
	if err := join(ctx, self); err != nil {
		return err
	}
	log.Info("installation", "id", id)
	s, err := newServer(parts{
		cfg: cfg, log: log, dsn: dsn, db: db, private: private, redis: redis, builds: builds, runtime: rt, bucket: archives,
		self: self, keys: keys, backends: reachable, conditions: conditions, reserve: reserve, front: entrance, listener: listener, maxRelays: capacity,
		numbers: numbers, ssh: ssh, sshSeed: sshSeed, sshBudget: budget,
	})
	if err != nil {
		return err
	}
	serving.Store(s)
	defer s.leave(ctx)
	return s.run(ctx)
}

// settingsOf is what administrators see of the settings of this server.
func settingsOf(cfg config.Config) api.Settings {
	host, _ := os.Hostname()
	return api.Settings{Server: host, Settings: cfg.Effective()}
}

// lastResort ends the process if it still runs that long after ctx has ended. Every
// part has its own time limit, so this is not expected to happen; the next start
// recovers as after a kill.
func lastResort(ctx context.Context, after time.Duration, log *slog.Logger) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		time.AfterFunc(after, func() {
			log.Error("shutdown timed out", "after", after)
			os.Exit(1)
		})
	})
}

// parts are the opened parts of a server that does not run yet.
type parts struct {
	cfg        config.Config
	log        *slog.Logger
	dsn        string
	db         *postgres.DB
	private    *embedded.Server    // nil with CODEHUB_DATABASE_URL
	redis      *redisbus.Redis     // nil without CODEHUB_REDIS_URL
	builds     *imagebuild.Builder // nil without CODEHUB_BUILD_IMAGES
	runtime    engine
	bucket     *bucket.Bucket
	self       *replica.Replica
	keys       *sealed.Ring
	backends   backends
	conditions *health.Monitor
	reserve    *ballast.Ballast
	front      *front.Front
	listener   *inbound.Listener
	maxRelays  int          // requests to workspaces at a time, of all users
	numbers    net.Listener // for metrics; nil without CODEHUB_METRICS_LISTEN
	ssh        net.Listener // nil without CODEHUB_SSH_LISTEN
	sshSeed    []byte       // of the SSH host key
	sshBudget  sshgate.Budget
}

// proxyVariables are the variables of this process that name a proxy, also in lower case.
func proxyVariables() map[string]string {
	out := map[string]string{}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"} {
		lower := strings.ToLower(name)
		if value := cmp.Or(os.Getenv(name), os.Getenv(lower)); value != "" {
			out[name], out[lower] = value, value
		}
	}
	return out
}

// server is a running codehub.
type server struct {
	parts
	auth      *auth.Auth
	signIn    *signin.Service
	gitApps   *gitapps.Service
	hub       *bus.Hub
	proxy     *proxy.Proxy
	unsaved   *proxy.Unsaved
	attacher  *attach.Attacher
	gate      *sshgate.Gate
	ctrl      *reconcile.Controller
	garbage   *gc.Runner
	backups   *backup.Runner
	drills    *backup.DrillRunner
	marks     *mark.Keeper
	hold      *hold
	flush     *activity.Flusher
	ttl       *ttl.Runner
	usage     *usage.Runner
	inside    *frominside.Runner
	templates *templates.Service
	builder   *devcontainers.Builder // nil: this server builds no images from repositories
	continued *shortway.Group        // event streams and WebSockets

	homeBackups *homebackup.Runner

	http    http.Handler
	metrics *httpapi.Metrics

	leads       atomic.Pointer[postgres.Controller] // nil: this server publishes nothing on Redis
	flushFailed bool                                // at shutdown
}

// newServer connects the parts. Each part is complete before another one gets it.
func newServer(p parts) (*server, error) {
	cfg, log, db := p.cfg, p.log, p.db
	authentication := auth.New(db, auth.Config{URL: cfg.PublicURL, Settings: cfg.Logins, Log: log, Conditions: p.conditions})
	signIn, err := signin.New(signin.Config{Settings: cfg.SignIn, URL: callbackURL(cfg), Store: db, Sessions: authentication, Log: log, Conditions: p.conditions})
	if err != nil {
		return nil, &setting.Problem{Setting: "CODEHUB_OIDC_FILE", Why: err.Error(), Do: "see docs/signin.md for the format"}
	}
	hub := bus.New(bus.Config{Load: bus.Batched(reload(db)), AuthChanged: authentication.Invalidate, Log: log})
	marks := mark.New(mark.Config{
		Runtime: p.runtime, Bucket: p.bucket, Files: func() string { return databaseFiles(p.private, cfg.DataDir) }, Log: log, Conditions: p.conditions,
	})
	hold := newHold(db, marks, p.conditions, log)

	var activityBus activity.Bus
	if p.redis != nil {
		activityBus = p.redis
	}
	used := activity.New()
	flush := activity.NewFlusher(activity.FlusherConfig{
		Memory: used, Store: db, Bus: activityBus, Replica: p.self.ID(), Settings: cfg.Activity, Log: log, Conditions: p.conditions,
	})
	attacher := attach.New(attach.Config{
		Store: db, Runtime: p.runtime, Sessions: authentication, Activity: used, PerUser: cfg.Proxy.RequestsPerUser,
	})
	idle := ttl.New(ttl.Config{
		Agents: attacher,
		TTL:    cfg.Idle.TTL(), Bus: activityBus, Settings: cfg.TTL, Log: log, Flush: flush.Flush, Conditions: p.conditions,
	})

	homes, _ := any(p.runtime).(usage.Homes) // not every runtime can measure homes
	spending := usage.New(usage.Config{
		Agents: attacher, Homes: homes, UsageSettings: cfg.Usage, Sizes: cfg.Defaults.Sizes, MaxBytes: cfg.Limits.Bytes,
		Conditions: p.conditions, Log: log,
	})

	gate, err := openGate(p, attacher)
	if err != nil {
		return nil, err
	}
	settings := service.Settings{URL: cfg.PublicURL, Version: cfg.Version, Defaults: cfg.Defaults, Idle: cfg.Idle, DeleteGrace: cfg.Retention.DeleteGrace, SSH: sshServer(p, gate)}
	administration := admin.New(admin.Config{Store: db, Passwords: authentication, URL: cfg.PublicURL, Self: p.self, Runtime: cfg.Runtime, Nodes: p.runtime.nodes(), Builds: p.builds, Settings: settingsOf(cfg), OrphanDelay: cfg.Reconcile.OrphanDelay, DrillInterval: cfg.HomeBackups.Drill})
	restore := rollback.New(rollback.Config{
		Store: db, Runtime: p.runtime, Bucket: p.bucket, Defaults: cfg.Defaults, DeleteGrace: cfg.Retention.DeleteGrace, Log: log,
	})
	secretService, git := secrets.New(db, p.keys), gitaccess.New(db, p.keys)
	gitApps := gitapps.New(gitapps.Config{Settings: cfg.Git, URL: callbackURL(cfg), Store: db, Keys: p.keys, Access: git, Sessions: authentication, Log: log})
	git.Apps = gitApps
	dotfileService := &dotfiles.Service{Store: db, Agents: attacher}
	portService := ports.New(ports.Config{Store: db, Runtime: p.runtime, Attacher: attacher, Layout: cfg.Layout, Settings: cfg.Proxy.Ports})
	offered := templates.New(templates.Config{
		Settings: cfg.Templates, Store: db, DefaultImage: cfg.Defaults.DefaultImage, Images: cfg.Defaults.Images, Sizes: cfg.Defaults.Sizes, Log: log, Conditions: p.conditions,
	})
	var builder *devcontainers.Builder
	if cfg.Devcontainers.Builds > 0 {
		builder = devcontainers.NewBuilder(devcontainers.BuilderConfig{
			Settings: cfg.Devcontainers, Store: db, Log: log, Dir: filepath.Join(cfg.DataDir, "builds"), Images: devcontainers.Images{
				Contexts: attacher, Docker: p.runtime.builder, Registry: cfg.Registries.Client(), LoginsFile: cfg.Docker.RegistryAuthFile,
				Allowed: cfg.Defaults.Images, Sizes: cfg.Defaults.Sizes, Proxy: proxyVariables(), Authorities: cfg.Authorities,
			},
		})
	}
	described := devcontainers.New(devcontainers.Config{Store: db, Agents: attacher, Secrets: secretService, Images: cfg.Defaults.Images, Sizes: cfg.Defaults.Sizes, Builder: builder})
	gitIdentities := gitidentity.New(db, p.keys)
	unsaved := proxy.NewUnsaved(time.Now)
	openBodies := &inbound.OpenBodies{}
	pages := dashboard.New(dashboard.Config{
		Store: db, Auth: authentication, Events: hub, Logs: p.runtime, Usage: attacher, Setups: attacher, Dotfiles: dotfileService, Log: log,
		GitIdentities: gitIdentities,
		Settings:      settings, Clients: cfg.ClientDir, MaxRunning: cfg.Limits.PerUser, Sudo: cfg.Docker.Sudo, PathMode: cfg.Layout.PathMode(), WorkspaceOrigins: cfg.Layout.Sources(), Archives: p.bucket,
		FormWithin: cfg.Inbound.ReadTimeout(), Trouble: func() string { return trouble(hold, p.conditions) }, MissingImage: func() string { return missingImage(p.conditions) }, Admin: administration, Restore: restore, Ports: portService, Templates: offered, Devcontainers: described,
		Secrets: secretService, Git: git, GitApps: gitApps, Unsaved: unsaved.Files, SignIn: signIn, Builds: p.builds, OpenBodies: openBodies,
	})
	workspaces := proxy.New(proxy.Config{
		Auth: authentication, Sessions: authentication, Store: db, Runtime: p.runtime, Pages: pages, Log: log,
		Layout: cfg.Layout, Visitors: authentication, CookieNames: slices.Concat(auth.CookieNames(), dashboard.CookieNames()), IsToken: auth.IsToken, Moved: db.Moved,
		Trusted:  cfg.Front.Proxies.Contain,
		Activity: used, Conditions: p.conditions, Settings: cfg.Proxy, MaxRequests: p.maxRelays,
		IDE: pages, Unsaved: unsaved,
	})
	// Routes are dropped before an event is sent, so that a browser that returns on
	// it does not meet the state before it.
	hub.Observe(bus.Observer{
		Changed: func(_ string, id workspace.ID) { workspaces.Invalidate(id); attacher.Changed(id) },
		Gap:     func() { workspaces.InvalidateAll(); attacher.Gap() },
	})

	homeBackups := homebackup.NewRunner(homebackup.Config{
		Schedule: cfg.HomeBackups, Runtime: p.runtime, Bucket: p.bucket, DeleteGrace: cfg.Retention.DeleteGrace, Ready: marks.MayRemove, Conditions: p.conditions, MaxBytes: cfg.Limits.BackupBytes, Log: log,
	})
	ticks := newTickMetric()
	ctrl := reconcile.New(reconcile.Config{
		Runtime: p.runtime, Archives: p.bucket, Intents: db, Routes: workspaces, Log: log, Conditions: p.conditions,
		Images: cfg.Defaults.Images, Sizes: cfg.Defaults.Sizes,
		Policy: cfg.Lifecycle.Policy(cfg.Retention.DeleteGrace), MinFree: cfg.Bucket.MinFreeShare,
		Settings: cfg.Reconcile, StopGrace: 10 * time.Second,
		MayRemove: marks.MayRemove, Backup: homeBackups.Before, Setups: []reconcile.Setup{secretService.Deliver, dotfileService.Deliver},
		Ticked:  func(took time.Duration) { ticks.Observe(took.Seconds()) },
		Address: func(id workspace.ID) string { return addressOf(cfg.Layout, id) },
	})
	garbage := gc.NewRunner(gc.RunnerConfig{Ready: marks.MayRemove, Schedule: cfg.GC, Conditions: p.conditions, Config: gc.Config{
		Bucket: p.bucket, Settings: cfg.Retention, Log: log,
	}})
	backups := backup.NewRunner(backup.RunnerConfig{Ready: marks.MayRemove, Schedule: cfg.Backups, Conditions: p.conditions, Log: log, Config: backup.Config{
		Bucket: p.bucket, DSN: p.dsn, Version: cfg.Version, Settings: cfg.Recorded(),
	}})
	drills := backup.NewDrillRunner(backup.DrillRunnerConfig{Ready: marks.MayRemove, Interval: cfg.HomeBackups.Drill, Conditions: p.conditions, Log: log, DrillConfig: backup.DrillConfig{
		Bucket: p.bucket, DSN: p.dsn, DB: db, Keys: p.keys, Compare: restore.Compare,
	}})

	mux := http.NewServeMux()
	rest := httpapi.New(httpapi.Config{
		Settings: settings, Store: db, Auth: authentication, Hub: hub, Logs: p.runtime, Attach: attacher, Dotfiles: dotfileService, Archives: p.bucket, Admin: administration,
		Restore: restore, Ports: portService, Secrets: secretService, Git: git, Templates: offered, Devcontainers: described, Log: log, LastUse: lastUse(used, flush), ReadWithin: cfg.Inbound.ReadTimeout(),
		Gate: gate, OpenBodies: openBodies,
		GitIdentities: gitIdentities,
	})
	mux.Handle("/api/", rest)
	mux.Handle("GET /healthz", httpapi.Healthz(cfg.Version))
	mux.Handle("GET /readyz", httpapi.Readyz(log, readyChecks(db, p.redis), p.conditions, p.backends.states))
	var continued *shortway.Group
	if !cfg.Proxy.NoShortWay {
		continued = shortway.NewGroup()
	}
	metrics := httpapi.NewMetrics()
	metrics.Registry().MustRegister(p.listener.Metrics()...)
	metrics.Registry().MustRegister(collectionMetrics{garbage.Status}, backupMetric(backups.Last), p.backends.metrics(), p.conditions, p.reserve, holdMetric(p.conditions))
	metrics.Registry().MustRegister(workspaces.Metrics()...)
	metrics.Registry().MustRegister(append(sshMetrics(gate), ticks)...)
	metrics.Registry().MustRegister(homeBackups.Metrics()...)
	metrics.Registry().MustRegister(drills.Metrics()...)
	if p.numbers == nil {
		mux.Handle("GET /metrics", metrics.Handler())
	}
	pages.Routes(mux.HandleFunc)
	inside := frominside.New(frominside.Config{Runtime: p.runtime, Handler: httpapi.Outer(log, metrics, continued, rest), Git: gitIdentities.Of, Log: log})
	hub.Observe(bus.Observer{Changed: func(_ string, id workspace.ID) { inside.Changed(id) }, Gap: inside.Gap})

	// A request passes these from the last to the first.
	served := inbound.LimitStreams(knows(authentication), refuseStream(log), mux)
	served = workspaces.Wrap(served)
	served = auth.RefuseConflicts(refuseConflict(pages, cfg.Layout, log), served)
	served = httpapi.Outer(log, metrics, continued, served)
	served = cfg.Front.Proxies.Handler(ownHost(cfg), served)

	return &server{
		gate: gate, metrics: metrics,
		parts: p, auth: authentication, signIn: signIn, gitApps: gitApps, hub: hub, proxy: workspaces, unsaved: unsaved, attacher: attacher, ctrl: ctrl, garbage: garbage, backups: backups, drills: drills, homeBackups: homeBackups, marks: marks, hold: hold,
		flush: flush, ttl: idle, usage: spending, inside: inside, templates: offered, builder: builder, continued: continued, http: served,
	}, nil
}
