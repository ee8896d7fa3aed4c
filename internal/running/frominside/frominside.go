// Package frominside serves the requests that programs inside running workspaces send about
// their workspace, without a login. A workspace cannot reach its server, so the leader has the
// agent of each listen on a Unix socket and fetches the connections; docs/agent.md describes it.
package frominside

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/runtime/agent"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

const (
	// perWorkspace is how many connections of a workspace are served at a time. More wait.
	perWorkspace = 4
	// perSecond is how many requests of a workspace are served in a second, and burst how many
	// after a time without any. More wait. A connection counts as its first request.
	perSecond, burst = 5, 20
	// atOnce is how many agents are asked to listen at a time.
	atOnce = 32
	// askTimeout limits how long an agent takes to begin to listen.
	askTimeout = 10 * time.Second
	// minPause and maxPause bound the time between two attempts with the same agent.
	minPause, maxPause = 500 * time.Millisecond, time.Minute
	// listPause is the least time between two lists of the running workspaces.
	listPause = time.Second
	// lingerFor is how long the end of a response may take to arrive.
	lingerFor = 2 * time.Second
	// settle is how long after an event the settings of git are read again: events come in groups.
	settle = time.Second
	// steady is how long an agent has to listen for its next attempt to be an early one.
	steady = 5 * time.Second
)

// Config holds what a Runner needs. Fields are required unless marked optional.
type Config struct {
	Runtime runtime.Upstreams
	// Handler serves the requests; auth.Inside tells the workspace of each.
	Handler http.Handler
	Log     *slog.Logger
	// Git returns what git and ssh in a workspace have of its owner; optional.
	Git func(context.Context, workspace.ID) (agent.Git, error)
	// Socket is where agents listen; optional, agent.ClientSocket.
	Socket string
	// Interval is the time between two lists of the running workspaces without an event;
	// optional, 30 s.
	Interval time.Duration
}

// Runner serves the workspaces while this server leads.
type Runner struct {
	cfg    Config
	wake   chan struct{} // receives a value when a workspace may run that is not served
	asking chan struct{} // atOnce
	conns  chan net.Conn

	mu    sync.Mutex
	links map[workspace.ID]*link // nil: this server does not lead
}

// link is the connection to the agent of one workspace.
type link struct {
	cancel    context.CancelFunc
	retry     chan struct{} // receives a value when another attempt may help
	changed   chan struct{} // receives a value when the settings of git may have changed
	listening atomic.Bool
	since     time.Time // of listening; used by keep alone
	pace      *rate.Limiter
}

// New returns a Runner. Its Changed and Gap must observe the events of workspaces.
func New(cfg Config) *Runner {
	cfg.Socket, cfg.Interval = cmp.Or(cfg.Socket, agent.ClientSocket), cmp.Or(cfg.Interval, 30*time.Second)
	return &Runner{cfg: cfg, wake: make(chan struct{}, 1), asking: make(chan struct{}, atOnce), conns: make(chan net.Conn)}
}

// Changed reports that a workspace may have changed.
func (r *Runner) Changed(id workspace.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch l := r.links[id]; {
	case r.links == nil:
	case l == nil:
		signal(r.wake)
	default:
		signal(l.changed)
		if !l.listening.Load() {
			signal(l.retry)
		}
	}
}

// Gap reports that events may have been lost.
func (r *Runner) Gap() {
	signal(r.wake)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.links {
		signal(l.changed)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run serves the workspaces that running lists, until ctx ends.
func (r *Runner) Run(ctx context.Context, running func(context.Context) ([]postgres.RunningWorkspace, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	r.mu.Lock()
	links := map[workspace.ID]*link{}
	r.links = links
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.links = nil
	}()
	srv := &http.Server{
		Handler: paced(r.cfg.Handler), DisableGeneralOptionsHandler: true, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: 10 * time.Second, MaxHeaderBytes: 8 << 10, ErrorLog: slog.NewLogLogger(r.cfg.Log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return auth.FromInside(context.WithValue(ctx, connKey{}, c), c.(*conn).workspace)
		},
	}
	all.Go(func() { _ = srv.Serve(fetched{ctx, r.conns}) })
	defer srv.Close()
	tick := time.NewTicker(r.cfg.Interval)
	defer tick.Stop()
	for {
		list, err := running(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			r.cfg.Log.Warn("list workspaces to serve their own requests failed; retrying", "err", err)
		} else {
			r.follow(ctx, &all, links, list)
		}
		if pause(ctx, listPause, nil) != nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-tick.C:
		}
	}
}

// pause waits for d, for a value of sooner, or for the end of ctx, whose error it returns.
func pause(ctx context.Context, d time.Duration, sooner <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-sooner:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// follow begins to serve the workspaces of list, and ends it for all others.
func (r *Runner) follow(ctx context.Context, all *sync.WaitGroup, links map[workspace.ID]*link, list []postgres.RunningWorkspace) {
	r.mu.Lock()
	defer r.mu.Unlock()
	runs := make(map[workspace.ID]bool, len(list))
	for _, w := range list {
		runs[w.ID] = true
		if links[w.ID] != nil {
			continue
		}
		l := &link{retry: make(chan struct{}, 1), changed: make(chan struct{}, 1), pace: rate.NewLimiter(perSecond, burst)}
		own, cancel := context.WithCancel(ctx)
		l.cancel, links[w.ID] = cancel, l
		all.Go(func() { r.keep(own, w.ID, l) })
	}
	for id, l := range links {
		if !runs[id] {
			l.cancel()
			delete(links, id)
		}
	}
}

// keep serves a workspace until ctx ends. It waits longer after each failed attempt, and so after
// each listener that an agent has ended soon.
func (r *Runner) keep(ctx context.Context, id workspace.ID, l *link) {
	wait := minPause
	for {
		err := r.serve(ctx, id, l)
		if l.listening.Swap(false) && time.Since(l.since) > steady {
			wait = minPause
		}
		if ctx.Err() != nil {
			return
		}
		r.cfg.Log.Debug("serve requests from inside a workspace ended", "workspace", id, "err", err)
		if pause(ctx, minPause, nil) != nil || pause(ctx, wait-minPause, l.retry) != nil {
			return
		}
		wait = min(2*wait, maxPause)
	}
}

var errNoAgent = errors.New("the workspace has no agent")

// serve has the agent listen, and passes its connections on until one of both ends.
func (r *Runner) serve(ctx context.Context, id workspace.ID, l *link) error {
	client, listener, err := r.listen(ctx, id)
	if err != nil {
		return err
	}
	defer listener.Close()
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	if r.cfg.Git != nil {
		var ended sync.WaitGroup
		defer ended.Wait()
		open, end := context.WithCancel(ctx)
		defer end()
		ended.Go(func() { r.sendGit(open, id, client, l) })
	}
	l.since = time.Now()
	l.listening.Store(true)
	slots := make(chan struct{}, perWorkspace)
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := l.pace.Wait(ctx); err != nil {
			return err
		}
		c, _, err := listener.Accept()
		if err != nil {
			return err
		}
		served := &conn{Conn: c, workspace: id, pace: l.pace, release: func() { <-slots }}
		select {
		case r.conns <- served:
		case <-ctx.Done():
			c.Close()
			return ctx.Err()
		}
	}
}

// sendGit sends the agent the settings of git at once, and when they change, until ctx ends. An agent
// of an earlier version takes none.
func (r *Runner) sendGit(ctx context.Context, id workspace.ID, client *agent.Client, l *link) {
	var sent *agent.Git
	wait := minPause
	for ctx.Err() == nil {
		g, err := r.cfg.Git(ctx, id)
		if err == nil && (sent == nil || *sent != g) {
			if err = r.ask(ctx, func() error { return client.SetGit(ctx, g) }); err == nil {
				sent = &g
			}
		}
		var refused *agent.RefusedError
		switch {
		case errors.As(err, &refused) && refused.Status == http.StatusNotFound:
			return
		case err != nil:
			r.cfg.Log.Debug("send a workspace the settings of git failed; retrying", "workspace", id, "err", err)
			_ = pause(ctx, wait, nil)
			wait = min(2*wait, maxPause)
			continue
		}
		wait = minPause
		select {
		case <-ctx.Done():
		case <-l.changed:
			_ = pause(ctx, settle, nil)
		}
	}
}

// ask asks an agent something as one of atOnce.
func (r *Runner) ask(ctx context.Context, what func() error) error {
	select {
	case r.asking <- struct{}{}:
		defer func() { <-r.asking }()
	case <-ctx.Done():
		return ctx.Err()
	}
	return what()
}

func (r *Runner) listen(ctx context.Context, id workspace.ID) (client *agent.Client, listener *agent.Listener, err error) {
	err = r.ask(ctx, func() error {
		up, err := r.cfg.Runtime.Upstream(ctx, id)
		if err != nil {
			return err
		}
		if up.Agent == "" {
			return errNoAgent
		}
		client = &agent.Client{Addr: up.Agent, Secret: up.Secret, AnswerTimeout: askTimeout}
		listener, err = client.Relisten(ctx, r.cfg.Socket)
		return err
	})
	return client, listener, err
}

// fetched is a listener of the connections that all workspaces have sent.
type fetched struct {
	ctx   context.Context
	conns <-chan net.Conn
}

func (f fetched) Accept() (net.Conn, error) {
	select {
	case c := <-f.conns:
		return c, nil
	case <-f.ctx.Done():
		return nil, net.ErrClosed
	}
}

func (fetched) Close() error   { return nil }
func (fetched) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

// conn is a connection of a program in a workspace.
type conn struct {
	*agent.Conn
	workspace workspace.ID
	pace      *rate.Limiter
	asked     bool // a request was served; used by paced alone
	release   func()
	once      sync.Once
}

// connKey is the key of a request's *conn in its context.
type connKey struct{}

// paced has the requests on a kept connection wait for the rate of their workspace. The first
// one has waited as the connection.
func paced(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := r.Context().Value(connKey{}).(*conn)
		if c.asked && c.pace.Wait(r.Context()) != nil {
			panic(http.ErrAbortHandler) // the client has gone, or this server ends
		}
		c.asked = true
		h.ServeHTTP(w, r)
	})
}

// Close ends the connection after its other end has read what was sent: an agent.Conn that is
// closed before both directions have ended is reset.
func (c *conn) Close() error {
	c.once.Do(func() {
		go func() {
			defer c.release()
			defer c.Conn.Close()
			if c.CloseWrite() != nil || c.SetReadDeadline(time.Now().Add(lingerFor)) != nil {
				return
			}
			_, _ = io.Copy(io.Discard, io.LimitReader(c.Conn, 64<<10))
		}()
	})
	return nil
}
