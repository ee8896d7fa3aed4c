package proxy

import (
	"context"
	"log"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"codehub/internal/accesslog"
	"codehub/internal/activity"
	"codehub/internal/activity/vscode"
	"codehub/internal/health"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// Authenticator returns the sender of a request. It is called for every request, so
// it should answer from memory. The proxy never accepts bearer tokens: under /w/
// the Authorization header belongs to the workspace.
type Authenticator interface {
	Authenticate(r *http.Request, bearer bool) (workspace.Caller, error)
}

// Sessions ends connections when their session ends.
type Sessions interface {
	// Watch returns a context that ends with ctx, or soon after the session or
	// token (Caller.Session) has ended. The caller must call stop.
	Watch(ctx context.Context, session string) (watched context.Context, stop context.CancelFunc)
}

// Store reads workspaces and wakes them.
type Store interface {
	Workspace(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error)
	// Wake starts the workspace, or queues the start while it is being stopped or
	// archived, and returns the updated workspace. CodeLimitExceeded has the
	// details that docs/api.md describes.
	Wake(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error)
	RunningOf(ctx context.Context, userID string) ([]workspace.Workspace, error)
}

// Upstreams returns the addresses of IDEs; see runtime.Runtime.
type Upstreams interface {
	Upstream(ctx context.Context, id workspace.ID) (runtime.Upstream, error)
}

// Config holds a proxy's dependencies and settings. Fields are required unless
// marked optional.
type Config struct {
	Auth     Authenticator
	Sessions Sessions
	Store    Store
	Runtime  Upstreams
	Pages    Pages
	Log      *slog.Logger

	// PublicURL is the origin that users open (CODEHUB_URL).
	PublicURL *url.URL
	// CookieNames are codehub's own cookies. They are not sent to a workspace, and
	// no workspace can set them.
	CookieNames []string
	// IsToken reports whether a string is an API token of codehub.
	IsToken func(string) bool

	// Activity records the use of workspaces; optional.
	Activity *activity.Recorder

	// Moved maps old IDs of workspaces to current ones; optional.
	Moved func(context.Context) (map[string]workspace.ID, error)

	// Conditions lists that open connections cannot be checked; optional.
	Conditions *health.Monitor

	// RouteAge is how long a route is cached without an event; optional, 60 s.
	RouteAge time.Duration
	// CheckInterval is the interval between checks of the routes of open
	// connections; optional, 3 s.
	CheckInterval time.Duration
}

// Proxy is the handler of everything under /w/.
type Proxy struct {
	auth          Authenticator
	sessions      Sessions
	store         Store
	pages         Pages
	log           *slog.Logger
	origins       origins
	secrets       secrets
	routes        *routes
	moves         moves
	activity      *activity.Recorder // or nil
	open          *connections
	checkInterval time.Duration
	checks        *health.Condition // of the open connections
	copyLog       *log.Logger       // for httputil.ReverseProxy, which logs broken connections

	unreadable *prometheus.CounterVec
}

// New returns a proxy. Run must be running while it serves.
func New(c Config) *Proxy {
	if c.RouteAge == 0 {
		c.RouteAge = 60 * time.Second
	}
	if c.CheckInterval == 0 {
		c.CheckInterval = 3 * time.Second
	}
	open := newConnections()
	return &Proxy{
		auth: c.Auth, sessions: c.Sessions, store: c.Store, pages: c.Pages, log: c.Log,
		origins:       newOrigins(c.PublicURL),
		secrets:       secrets{cookies: append([]string{runtime.SecretCookie}, c.CookieNames...), isToken: c.IsToken},
		routes:        newRoutes(c.Store, c.Runtime, open, c.RouteAge),
		moves:         moves{load: c.Moved, now: time.Now},
		activity:      c.Activity,
		open:          open,
		checkInterval: c.CheckInterval,
		checks: c.Conditions.New(health.Config{
			Name: "connections", Failing: "check open connections failed; retrying", Resolved: "open connections are checked again", Level: slog.LevelWarn, Log: c.Log,
		}),
		copyLog: slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),

		unreadable: newUnreadable(),
	}
}

// newUnreadable returns the counter with both series at 0.
func newUnreadable() *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "codehub_activity_unreadable_total",
		Help: "IDE WebSockets with a side whose messages could not be decoded, by side. All traffic of that side then counts as activity.",
	}, []string{"side"})
	for _, side := range []vscode.Side{vscode.ClientSide, vscode.ServerSide} {
		v.WithLabelValues(string(side))
	}
	return v
}

// Metrics returns the proxy's metrics.
func (p *Proxy) Metrics() prometheus.Collector { return p.unreadable }

// Wrap serves the paths of workspaces and passes the rest to next. It must come
// before any http.ServeMux, which would clean the paths. Middleware around it must
// not buffer, compress, time out or add headers to responses, and a wrapped
// ResponseWriter needs Unwrap.
func (p *Proxy) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if underPrefix(r) {
			p.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// ServeHTTP serves /w/ and all paths below it.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	accesslog.SetRoute(r.Context(), "/w/{id}/{path...}")
	accesslog.Quiet(r.Context())
	if p.redirectMoved(w, r) {
		return
	}
	t, ok := parseTarget(r)
	switch {
	case !ok:
		p.unknown(w, r)
	case t.path == "":
		redirectToFolder(w, r, t)
	default:
		p.enter(w, r, t)
	}
}

// Invalidate drops the cached route of a workspace. It must be called for every
// event about the workspace before the event is passed on to clients.
func (p *Proxy) Invalidate(id workspace.ID) { p.routes.invalidate(id) }

// InvalidateAll drops all cached routes. It must be called when events may have
// been lost.
func (p *Proxy) InvalidateAll() { p.routes.invalidateAll() }

// CloseRoute must be called before a workspace's container is removed, when its row
// no longer says that it runs. When it returns, all connections of the workspace
// are closed and no new request reaches the container.
func (p *Proxy) CloseRoute(id workspace.ID) { p.routes.close(id) }

// OpenConnections returns the number of relayed requests and WebSockets.
func (p *Proxy) OpenConnections() int { return p.open.count() }

// Run checks the open connections until ctx ends. It closes those whose workspace
// was stopped, deleted or transferred to another owner. While the database is not
// available no connection is closed.
func (p *Proxy) Run(ctx context.Context) error {
	if p.moves.load != nil {
		if _, err := p.moves.find(ctx, ""); err != nil && ctx.Err() == nil {
			p.log.WarnContext(ctx, "read moved workspaces failed; retrying on demand", "err", err)
		}
	}
	tick := time.NewTicker(p.checkInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := p.routes.check(ctx); ctx.Err() == nil {
				p.checks.Set(err)
			}
		}
	}
}

// Shutdown refuses new requests, closes the WebSockets, waits for other requests
// until ctx ends, and closes the rest. It returns ctx's error if it had to close
// any.
func (p *Proxy) Shutdown(ctx context.Context) error {
	err := p.open.drain(ctx)
	p.routes.closeAll()
	return err
}
