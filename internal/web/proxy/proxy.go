package proxy

import (
	"context"
	"log"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"codehub/internal/base/health"
	"codehub/internal/bus/activity"
	"codehub/internal/gateway/origin"
	"codehub/internal/runtime"
	"codehub/internal/web/accesslog"
	"codehub/internal/workspace"
)

// Authenticator returns the sender of a request. It is called for every request, so
// it should answer from memory. The proxy never accepts bearer tokens: under /w/
// the Authorization header belongs to the workspace.
type Authenticator interface {
	Authenticate(r *http.Request, bearer bool) (workspace.Caller, error)
}

// Visitors gives visitors a session on the host of each workspace, by tickets; see
// auth.Auth.
type Visitors interface {
	// AuthenticateWorkspace is Authenticate for the requests of one host.
	AuthenticateWorkspace(r *http.Request, host workspace.Host) (workspace.Caller, error)
	// Nonce returns the hash of the browser's nonce and the cookie to set.
	Nonce(r *http.Request) (hash string, cookie *http.Cookie)
	// Entered reports whether the browser has redeemed a ticket some seconds ago.
	Entered(r *http.Request) bool
	IssueTicket(ctx context.Context, caller workspace.Caller, host workspace.Host, nonce string) (ticket string, err error)
	// RedeemTicket returns the cookies to set; CodeInvalid without a nonce cookie,
	// CodeUnauthenticated for any other ticket that is not valid.
	RedeemTicket(r *http.Request, ticket string, host workspace.Host) ([]*http.Cookie, error)
}

// Sessions ends connections when their session ends.
type Sessions interface {
	// Watch returns a context that ends with ctx, or soon after the session or
	// token (Caller.Session) has ended. The caller must call stop.
	Watch(ctx context.Context, session string) (watched context.Context, stop context.CancelFunc)
}

// Store reads workspaces and wakes them.
type Store interface {
	// EnterableWorkspace returns a workspace that the caller may open, as its owner or a guest.
	EnterableWorkspace(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error)
	// Wake starts the workspace, or queues the start while it is being stopped or
	// archived, and returns the updated workspace. CodeLimitExceeded has the
	// details that docs/api.md describes.
	Wake(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error)
	RunningOf(ctx context.Context, userID string) ([]workspace.Workspace, error)
	// OpenPorts lists the shares of a workspace's ports that have not ended. Their ends
	// are by the clock of this process.
	OpenPorts(ctx context.Context, id workspace.ID) ([]workspace.PortShare, error)
	// Guests returns who has access to a workspace that they do not own. Their shares end by
	// events of the workspace.
	Guests(ctx context.Context, id workspace.ID) (workspace.Guests, error)
	// MayRun returns CodeLimitExceeded if a running limit prevents a start.
	MayRun(ctx context.Context, caller workspace.Caller, id workspace.ID) error
}

// Config holds a proxy's dependencies and settings. Fields are required unless
// marked optional.
type Config struct {
	Auth     Authenticator
	Sessions Sessions
	Store    Store
	Runtime  runtime.Upstreams
	Pages    Pages
	Log      *slog.Logger

	// Layout knows the origins of codehub and the workspaces.
	Layout origin.Layout
	// Visitors is not used in path mode.
	Visitors Visitors
	// CookieNames are codehub's own cookies. They are not sent to a workspace, and
	// no workspace can set them.
	CookieNames []string
	// IsToken reports whether a string is an API token of codehub.
	IsToken func(string) bool
	// Trusted reports whether an address is a reverse proxy's, which may ask which hosts
	// exist; optional, without it that cannot be asked.
	Trusted func(netip.Addr) bool

	// Activity records the use of workspaces; optional.
	Activity *activity.Recorder

	// Moved maps old IDs of workspaces to current ones; optional.
	Moved func(context.Context) (map[string]workspace.ID, error)

	// Conditions lists that open connections cannot be checked; optional.
	Conditions *health.Monitor

	// IDE answers the IDEs' own requests; optional, without it those paths do not exist.
	IDE IDE
	// Unsaved remembers what IDEs report about unsaved files; optional.
	Unsaved *Unsaved

	// Settings limits requests to workspaces; the zero value has no limits.
	Settings Settings
	// MaxRequests limits the requests and WebSockets of all users at a time; 0: no
	// limit.
	MaxRequests int

	// RouteAge is how long a route is cached without an event; optional, 60 s.
	RouteAge time.Duration
	// StallTimeout is how long a client may read nothing of a response; optional,
	// 2 min.
	StallTimeout time.Duration
	// CheckInterval is the interval between checks of the routes of open
	// connections without an event; optional, 3 s.
	CheckInterval time.Duration
}

// checkDelay is the time between an event and the check of the open connections. It merges
// the events of a moment.
const checkDelay = 250 * time.Millisecond

// Proxy is the handler of the hosts of workspaces, and of everything under /w/ on
// the main origin.
type Proxy struct {
	auth          Authenticator
	visitors      Visitors
	store         Store
	pages         Pages
	log           *slog.Logger
	layout        origin.Layout
	origins       origins
	secrets       secrets
	trusted       func(netip.Addr) bool // or nil
	routes        *routes
	wakes         singleflight.Group // by workspace and user
	moves         moves
	activity      *activity.Recorder // or nil
	ide           IDE                // or nil
	unsaved       *Unsaved           // or nil
	open          *connections
	guests        *guests
	noShortWay    bool
	checkInterval time.Duration
	changed       chan struct{}     // holds a value after an event about open connections
	checks        *health.Condition // of the open connections
	copyLog       *log.Logger       // for httputil.ReverseProxy, which logs broken connections

	limited *prometheus.CounterVec
}

// New returns a proxy. Run must be running while it serves.
func New(c Config) *Proxy {
	if c.RouteAge == 0 {
		c.RouteAge = 60 * time.Second
	}
	if c.StallTimeout == 0 {
		c.StallTimeout = defaultStall
	}
	if c.CheckInterval == 0 {
		c.CheckInterval = 3 * time.Second
	}
	visibility := workspace.VisibleOwner
	if !c.Layout.PathMode() {
		visibility = c.Settings.Ports.Most() // in path mode a shared port would act as its visitors
	}
	open := newConnections(c.Settings, c.MaxRequests, c.StallTimeout, c.Sessions)
	p := &Proxy{
		auth: c.Auth, visitors: c.Visitors, store: c.Store, pages: c.Pages, log: c.Log,
		layout:        c.Layout,
		origins:       newOrigins(c.Layout),
		secrets:       secrets{cookies: append([]string{runtime.SecretCookie}, c.CookieNames...), isToken: c.IsToken},
		trusted:       c.Trusted,
		routes:        newRoutes(c.Store, c.Runtime, open, c.RouteAge),
		moves:         moves{load: c.Moved, now: time.Now},
		activity:      c.Activity,
		ide:           c.IDE,
		unsaved:       c.Unsaved,
		open:          open,
		noShortWay:    c.Settings.NoShortWay,
		checkInterval: c.CheckInterval,
		changed:       make(chan struct{}, 1),
		checks: c.Conditions.New(health.Config{
			Name: "connections", Failing: "check open connections failed; retrying", Resolved: "open connections are checked again", Level: slog.LevelWarn, Log: c.Log,
		}),
		copyLog: slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),

		guests:  newGuests(c.Settings.Ports),
		limited: newLimited(),
	}
	p.routes.visibility, p.routes.sharing = visibility, !c.Layout.PathMode()
	return p
}

// newLimited returns the counter with both series at 0.
func newLimited() *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "codehub_relays_refused_total",
		Help: "Requests to workspaces that were refused because too many were open, of their user, of a visitor without a session, or of all users.",
	}, []string{"limit"})
	for _, limit := range []string{"user", "guest", "all"} {
		v.WithLabelValues(limit)
	}
	return v
}

// Metrics returns the proxy's metrics.
func (p *Proxy) Metrics() []prometheus.Collector {
	return []prometheus.Collector{p.limited}
}

// Wrap serves the hosts and paths of workspaces, refuses hosts that are not codehub's,
// and passes the rest to next. It must come before any http.ServeMux, which would clean
// the paths. Middleware around it must not buffer, compress, time out or add headers to
// responses, and a wrapped ResponseWriter needs Unwrap.
func (p *Proxy) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch place := p.layout.Route(r.Host); {
		case place.Kind == origin.Workspace:
			p.serveHost(w, r, place.Host)
		case isProbe(r.URL.Path): // by any address
			next.ServeHTTP(w, r)
		case p.asks(r): // by any address
			p.serveAsk(w, r)
		case place.Kind != origin.Main:
			p.misdirected(w, r)
		case p.toLocal(w, r):
		case underPrefix(r):
			p.ServeHTTP(w, r)
		case r.URL.Path == entryPath && !p.layout.PathMode():
			p.serveEntry(w, r)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// isProbe leaves out /metrics, so that a reverse proxy that hides it under the main host
// hides it.
func isProbe(path string) bool { return path == "/healthz" || path == "/readyz" }

// ServeHTTP serves /w/ and all paths below it on the main origin.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	accesslog.SetRoute(r.Context(), "/w/{id}/{path...}")
	accesslog.Quiet(r.Context())
	if p.redirectMoved(w, r) {
		return
	}
	t, ok := parseTarget(r)
	if ok && p.layout.PathMode() {
		t.app, _ = parseApplication(t.rawPath)
	}
	accesslog.SetWorkspace(r.Context(), string(t.id), t.app.port)
	switch {
	case !ok:
		p.unknown(w, r)
	case t.path == "":
		redirectToFolder(w, r, t.prefix)
	case t.app.port != 0 && t.app.path == "":
		redirectToFolder(w, r, t.appPrefix())
	default:
		p.enter(w, r, t)
	}
}

// Invalidate drops the cached route of a workspace. It must be called for every
// event about the workspace before the event is passed on to clients. Run then checks the
// workspace's open connections.
func (p *Proxy) Invalidate(id workspace.ID) {
	p.routes.invalidate(id)
	if p.open.any(id) {
		p.checkSoon()
	}
}

// InvalidateAll drops all cached routes. It must be called when events may have
// been lost.
func (p *Proxy) InvalidateAll() {
	p.routes.invalidateAll()
	p.checkSoon()
}

func (p *Proxy) checkSoon() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// CloseRoute must be called before a workspace's container is removed, when its row
// no longer says that it runs. When it returns, all connections of the workspace
// are closed and no new request reaches the container.
func (p *Proxy) CloseRoute(id workspace.ID) { p.routes.close(id) }

// OpenConnections returns the number of relayed requests and WebSockets.
func (p *Proxy) OpenConnections() int { return p.open.count() }

// Run checks the open connections until ctx ends. It closes those whose workspace
// was stopped, deleted or transferred to another owner. While the database is not
// available, connections are closed only at the known end of their share.
func (p *Proxy) Run(ctx context.Context) error {
	if p.moves.load != nil {
		if _, err := p.moves.find(ctx, ""); err != nil && ctx.Err() == nil {
			p.log.WarnContext(ctx, "read moved workspaces failed; retrying on demand", "err", err)
		}
	}
	tick := time.NewTicker(p.checkInterval)
	defer tick.Stop()
	// The checks have a goroutine of their own: a database that does not respond must not
	// delay the end of a share.
	var checking sync.WaitGroup
	defer checking.Wait()
	idle := make(chan struct{}, 1) // holds a value while no check runs
	idle <- struct{}{}
	check := func() (started bool) {
		select {
		case <-idle:
		default: // the last one still runs
			return false
		}
		checking.Go(func() {
			if err := p.routes.check(ctx); ctx.Err() == nil {
				p.checks.Set(err)
			}
			idle <- struct{}{}
		})
		return true
	}
	var soon <-chan time.Time // nil without an event
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.changed:
			if soon == nil {
				soon = time.After(checkDelay)
			}
		case <-soon:
			if soon = nil; !check() {
				soon = time.After(checkDelay)
			}
		case <-tick.C:
			p.open.closeStalled(time.Now())
			p.open.restIdle(time.Now())
			p.open.forgetIdle()
			p.guests.forget(time.Now())
			p.unsaved.Forget()
			check()
		}
	}
}

// Shutdown refuses new requests, closes the WebSockets, waits for other requests
// until ctx ends, and closes the rest. It returns ctx's error if it had to close
// any.
func (p *Proxy) Shutdown(ctx context.Context) error {
	err := p.open.shutdown(ctx)
	p.routes.closeAll()
	return err
}
