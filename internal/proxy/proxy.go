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
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// Authenticator says who a request comes from. The proxy never accepts a
// Bearer: under /w/ the Authorization header is the workspace's own (design
// §8). It is asked for every request, so it answers from memory.
type Authenticator interface {
	Authenticate(r *http.Request, bearer bool) (workspace.Caller, error)
}

// Sessions ends what outlives its session.
type Sessions interface {
	// Watch returns a context that ends with ctx, or soon after the session
	// or token (Caller.Session) holds no longer. The caller calls stop.
	Watch(ctx context.Context, session string) (watched context.Context, stop context.CancelFunc)
}

// Store is what the proxy reads of workspaces, and the one wish that it
// writes on its visitors' behalf.
type Store interface {
	Workspace(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error)
	// Wake wants the workspace running, or queues that while it is being
	// stopped or archived, and returns it as it is after that.
	// CodeLimitExceeded carries the details of design §6.
	Wake(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error)
	RunningOf(ctx context.Context, userID string) ([]workspace.Workspace, error)
}

// Upstreams says where an IDE is reached (runtime.Runtime).
type Upstreams interface {
	Upstream(ctx context.Context, id workspace.ID) (runtime.Upstream, error)
}

// Config is what a proxy is made of. Everything without "optional" is
// required.
type Config struct {
	Auth     Authenticator
	Sessions Sessions
	Store    Store
	Runtime  Upstreams
	Pages    Pages
	Log      *slog.Logger

	// PublicURL is the origin that people see (CODEHUB_URL).
	PublicURL *url.URL
	// CookieNames are codehub's own cookies: they never reach a workspace,
	// and no workspace sets them.
	CookieNames []string
	// IsToken tells codehub's API tokens from other credentials.
	IsToken func(string) bool

	// Activity records who really uses a workspace; optional.
	Activity *activity.Recorder

	// Moved lists the workspaces that once had another id, by that; optional.
	Moved func(context.Context) (map[string]workspace.ID, error)

	// RouteAge is how long a route is used without an event; optional, 60 s.
	RouteAge time.Duration
	// CheckInterval is how often the routes behind open connections are
	// looked at; optional, 3 s.
	CheckInterval time.Duration
}

// Proxy is the handler of everything under /w/.
type Proxy struct {
	auth     Authenticator
	sessions Sessions
	store    Store
	pages    Pages
	log      *slog.Logger
	origins  origins
	secrets  secrets
	routes   *routes
	moves    moves
	used     *activity.Recorder // or nil
	open     *connections
	check    time.Duration
	copyLog  *log.Logger // of the reverse proxy: connections that broke off

	unreadable *prometheus.CounterVec
}

// New makes a proxy. Run looks after its open connections.
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
		origins: newOrigins(c.PublicURL),
		secrets: secrets{cookies: append([]string{runtime.SecretCookie}, c.CookieNames...), isToken: c.IsToken},
		routes:  newRoutes(c.Store, c.Runtime, open, c.RouteAge),
		moves:   moves{load: c.Moved, now: time.Now},
		used:    c.Activity,
		open:    open,
		check:   c.CheckInterval,
		copyLog: slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),

		unreadable: newUnreadable(),
	}
}

// newUnreadable returns a counter with both its series, at 0.
func newUnreadable() *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "codehub_activity_unreadable_total",
		Help: "WebSockets of IDEs of which a side could no longer be read for signs of use, by side; every byte of that side then counts as use.",
	}, []string{"side"})
	for _, side := range []vscode.Side{vscode.ClientSide, vscode.ServerSide} {
		v.WithLabelValues(string(side))
	}
	return v
}

// Metrics are the proxy's figures.
func (p *Proxy) Metrics() prometheus.Collector { return p.unreadable }

// Wrap serves what belongs to workspaces and leaves the rest to next. It must
// stand before any http.ServeMux, which would clean the paths, and nothing
// around it may buffer, compress, time out or add headers of its own pages to
// answers; a wrapped ResponseWriter needs Unwrap.
func (p *Proxy) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if underPrefix(r) {
			p.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// ServeHTTP serves /w/ and what is under it.
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

// Invalidate forgets what is known of a workspace. Called for every event
// about it, before the event is passed on to anybody who may come back.
func (p *Proxy) Invalidate(id workspace.ID) { p.routes.invalidate(id) }

// InvalidateAll forgets everything, for after events may have been missed.
func (p *Proxy) InvalidateAll() { p.routes.invalidateAll() }

// CloseRoute is called before a workspace's container is removed, once its
// row no longer says that it runs: on return no new request is led to it, and
// every connection of the workspace has been closed (design §8).
func (p *Proxy) CloseRoute(id workspace.ID) { p.routes.close(id) }

// OpenConnections counts the requests and WebSockets being relayed now.
func (p *Proxy) OpenConnections() int { return p.open.count() }

// Run looks after the open connections until ctx ends: one whose workspace
// has been stopped, deleted or given to somebody else is closed at the next
// look after the event. While the database does not answer, nothing is known
// and nobody is cut off.
func (p *Proxy) Run(ctx context.Context) error {
	if p.moves.load != nil {
		if _, err := p.moves.find(ctx, ""); err != nil && ctx.Err() == nil {
			p.log.WarnContext(ctx, "old addresses are looked up when they are asked for", "err", err)
		}
	}
	tick := time.NewTicker(p.check)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := p.routes.check(ctx); err != nil && ctx.Err() == nil {
				p.log.WarnContext(ctx, "look after open connections", "err", err)
			}
		}
	}
}

// Shutdown closes the WebSockets, lets other requests end until ctx does, and
// closes what is left. No request is taken any more. It returns ctx's error
// if it had to cut something off.
func (p *Proxy) Shutdown(ctx context.Context) error {
	err := p.open.drain(ctx)
	p.routes.closeAll()
	return err
}
