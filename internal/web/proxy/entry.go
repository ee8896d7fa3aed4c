package proxy

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"codehub/api"
	"codehub/internal/runtime"
	"codehub/internal/web/accesslog"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// visit is an authenticated request for a workspace.
type visit struct {
	target
	caller     workspace.Caller // zero: a visitor of a public port without a session
	navigation bool
	entering   int  // the port for whose host a ticket is requested
	polls      bool // checks whether a port responds, which starts nothing
	guest      bool // admitted by the share of a port
	shared     bool // the visitor is a guest who may use the workspace
	until      time.Time
	payer      string // see connection.payer
}

// port is the port that may be shared with the visitor, 0 for none.
func (v visit) port() int { return v.host.Port + v.entering }

// limitedToken is the answer to an API token that may not enter workspaces.
const limitedToken = "The scope of this API token does not allow entering workspaces."

// enter authenticates and authorizes a request, and relays or refuses it.
func (p *Proxy) enter(w http.ResponseWriter, r *http.Request, t target) {
	v := visit{target: t, navigation: isNavigation(r)}
	if p.layout.PathMode() && isOwnPath(t.path) {
		p.serveIDE(w, r, v)
		return
	}
	var err error
	if v.caller, err = p.auth.Authenticate(r, false); err != nil {
		if workspace.CodeOf(err) == workspace.CodeForbidden {
			p.forbid(w, r, v, limitedToken)
			return
		}
		if workspace.CodeOf(err) != workspace.CodeUnauthenticated {
			p.serverError(w, r, v, "authenticate visitor failed", err)
			return
		}
		if v.navigation {
			signIn(w, r, t)
			return
		}
		refuse(w, http.StatusUnauthorized, workspace.CodeUnauthenticated, "Log in first.", p.next(http.MethodPost, "/api/v1/login", nil))
		return
	}
	accesslog.SetUser(r.Context(), v.caller.UserID)
	if !p.origins.allows(r, v.navigation, v.caller.Token != "") {
		p.forbid(w, r, v, "Other sites cannot send requests to this workspace.")
		return
	}
	if isServiceWorker(r.Header) {
		refuse(w, http.StatusForbidden, workspace.CodeForbidden, "On codehub's own address a workspace cannot have service workers.", nil)
		return
	}
	if workspace.ReservedPort(t.app.port) {
		p.reserved(w, r, v)
		return
	}
	if p.layout.PathMode() || v.caller.Token != "" {
		v.polls = t.app.port != 0 && t.app.path == portWaitPath
		p.route(w, r, v, p.routes.maxAge, p.delivery(v))
		return
	}
	if !v.navigation {
		refuse(w, http.StatusForbidden, workspace.CodeForbidden, "Use the workspace's own address, "+p.layout.URL(workspace.Host{ID: v.id})+", or a token in the header Codehub-Session-Token.",
			map[string]any{"next": api.NextCall{Method: http.MethodGet, URL: p.layout.URL(workspace.Host{ID: v.id}) + strings.TrimPrefix(pathOf(r), v.prefix)}})
		return
	}
	// Another replica may have found a moment ago that it does not run, and the
	// redirects must not go round in a circle.
	p.route(w, r, v, recentRoute, p.toHost)
}

// recentRoute is the maximum age of the route that a page about a stopped workspace
// relies on. Another replica may already have shown that it is running.
const recentRoute = 250 * time.Millisecond

// maxRouteAttempts limits how often a request repeats the lookup because its route
// was closed in the meantime.
const maxRouteAttempts = 5

// delivery answers a request for a running workspace. It returns false without a
// response if the route was closed since the lookup.
type delivery func(w http.ResponseWriter, r *http.Request, v visit, to *upstream) bool

// route delivers the request if the workspace is running, by a route that is at most
// maxAge old. Otherwise it wakes the workspace or shows its state, on the main origin.
func (p *Proxy) route(w http.ResponseWriter, r *http.Request, v visit, maxAge time.Duration, deliver delivery) {
	for range maxRouteAttempts {
		route, err := p.routes.get(r.Context(), v.id, maxAge)
		switch {
		case workspace.CodeOf(err) == workspace.CodeNotFound:
			p.missing(w, r, v)
			return
		case err != nil:
			p.serverError(w, r, v, "read route failed", err)
			return
		}
		var admitted bool
		if v.until, admitted = route.admits(v.caller, v.port(), time.Now()); !admitted {
			p.forbid(w, r, v, "This workspace belongs to another user.")
			return
		}
		v.guest = !route.enters(v.caller)
		v.shared = !v.guest && !v.caller.Uses(route.workspace.OwnerID, route.workspace.ID)
		opening := lifecycle.OpeningOf(route.workspace)
		switch {
		case opening == lifecycle.OpenNow && route.upstream != nil:
			if deliver(w, r, v, route.upstream) {
				return
			}
		case (v.guest || v.polls) && (maxAge <= recentRoute || !v.navigation):
			p.asleep(w, r, v)
			return
		case v.shared && !v.navigation:
			p.asleep(w, r, v)
			return
		case !v.navigation:
			p.refuseNotRunning(w, r, v, route.workspace, opening)
			return
		case maxAge > recentRoute:
			maxAge = recentRoute
		case v.host.ID != "":
			p.toMain(w, r, v)
			return
		case opening == lifecycle.OpenStarts || opening == lifecycle.OpenQueues:
			p.wake(w, r, v, route.workspace)
			return
		default:
			p.show(w, r, v, route.workspace, opening)
			return
		}
	}
	// The server is shutting down, or the state keeps changing.
	p.unavailable(w, r, v, http.StatusServiceUnavailable, "The workspace cannot be reached right now.")
}

// wake starts the workspace for its visitor and shows the result.
func (p *Proxy) wake(w http.ResponseWriter, r *http.Request, v visit, seen workspace.Workspace) {
	woken, err := p.wakeOnce(r.Context(), v)
	if v.shared && (err == nil || workspace.CodeOf(err) == workspace.CodeLimitExceeded || workspace.CodeOf(err) == workspace.CodeQuotaExceeded || workspace.CodeOf(err) == workspace.CodeImageNotAllowed ||
		workspace.CodeOf(err) == workspace.CodeNotRunning) {
		p.toShared(w, v, err == nil)
		return
	}
	switch code := workspace.CodeOf(err); {
	case code == workspace.CodeLimitExceeded:
		p.showLimit(w, r, v, seen, err)
		return
	case code == workspace.CodeNotFound:
		p.missing(w, r, v)
		return
	case code == workspace.CodeForbidden:
		p.forbid(w, r, v, "This workspace belongs to another user.")
		return
	case code == workspace.CodeImageNotAllowed, code == workspace.CodeQuotaExceeded:
		// The workspace's page on the dashboard says so, and can change the image or the size.
		setOwnHeaders(w, http.StatusSeeOther)
		w.Header().Set("Location", "/workspaces/"+string(v.id))
		w.WriteHeader(http.StatusSeeOther)
		return
	case err != nil:
		p.serverError(w, r, v, "wake workspace failed", err)
		return
	}
	p.show(w, r, v, woken, lifecycle.OpeningOf(woken))
}

// wakeTimeout bounds a wake, for which several navigations may wait.
const wakeTimeout = 10 * time.Second

// wakeOnce wakes the workspace. The navigations of a user that wake it at the same time
// share one call, and so one lookup of the route after it.
func (p *Proxy) wakeOnce(ctx context.Context, v visit) (workspace.Workspace, error) {
	out, err, _ := p.wakes.Do(string(v.id)+" "+v.caller.UserID, func() (any, error) {
		// It does not end with the request that began it, because others wait for it.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wakeTimeout)
		defer cancel()
		ws, err := p.store.Wake(ctx, v.caller, v.id)
		// Not every write of a wake sends an event, and the event may be late.
		p.routes.invalidate(v.id)
		return ws, err
	})
	ws, _ := out.(workspace.Workspace)
	return ws, err
}

// toShared leads a guest to the dashboard's page about a shared workspace, which enters the
// workspace once it runs if it is starting.
func (p *Proxy) toShared(w http.ResponseWriter, v visit, starting bool) {
	address := "/shared/" + string(v.id)
	if starting {
		address += "?enter=1"
	} else {
		address += "?stopped=1"
	}
	redirect(w, address)
}

// show renders the page of a workspace that cannot be opened now.
func (p *Proxy) show(w http.ResponseWriter, r *http.Request, v visit, ws workspace.Workspace, o lifecycle.Opening) {
	if v.shared {
		p.toShared(w, v, o == lifecycle.OpenNow || o == lifecycle.OpenWaits)
		return
	}
	page := WorkspacePage{PlainPage: p.plainPage(r, v), Workspace: ws}
	status := http.StatusBadGateway
	var render func(http.ResponseWriter, *http.Request, int, WorkspacePage)
	switch o {
	case lifecycle.OpenRestores:
		render = p.pages.RestoreNeeded
	case lifecycle.OpenCreates:
		render = p.pages.StartNeeded
	case lifecycle.OpenFails:
		render = p.pages.Failed
	case lifecycle.OpenDeleted:
		status, render = http.StatusGone, p.pages.Deleted
	default:
		// 503 and not 200, so that scripts do not mistake the page for the
		// workspace.
		status = http.StatusServiceUnavailable
		render = func(w http.ResponseWriter, r *http.Request, status int, page WorkspacePage) {
			p.pages.Loading(w, r, status, LoadingPage{WorkspacePage: page, Queued: o == lifecycle.OpenQueues})
		}
	}
	setOwnHeaders(w, status)
	render(w, r, status, page)
}

func (p *Proxy) showLimit(w http.ResponseWriter, r *http.Request, v visit, ws workspace.Workspace, limit error) {
	page := LimitPage{WorkspacePage: WorkspacePage{PlainPage: p.plainPage(r, v), Workspace: ws}}
	var e *workspace.Error
	if errors.As(limit, &e) {
		page.Type, _ = e.Details["limit_type"].(string)
		page.Current, _ = e.Details["current"].(int)
		page.Max, _ = e.Details["max"].(int)
	}
	var err error
	if page.Running, err = p.store.RunningOf(r.Context(), v.caller.UserID); err != nil {
		p.serverError(w, r, v, "list running workspaces failed", err)
		return
	}
	setOwnHeaders(w, http.StatusBadGateway)
	p.pages.LimitReached(w, r, http.StatusBadGateway, page)
}

// unknown answers a path that names no workspace.
func (p *Proxy) unknown(w http.ResponseWriter, r *http.Request) {
	v := visit{navigation: isNavigation(r)}
	v.caller, _ = p.auth.Authenticate(r, false) // it only affects the page's navigation
	p.missing(w, r, v)
}

func (p *Proxy) missing(w http.ResponseWriter, r *http.Request, v visit) {
	if !v.navigation {
		refuse(w, http.StatusNotFound, workspace.CodeNotFound, "There is no such workspace.", p.next(http.MethodGet, "/api/v1/workspaces", nil))
		return
	}
	if v.host.ID != "" {
		p.notice(w, r, http.StatusNotFound, NoticeNotFound, "")
		return
	}
	setOwnHeaders(w, http.StatusNotFound)
	p.pages.NotFound(w, r, http.StatusNotFound, p.plainPage(r, v))
}

// serverError answers when the database or Docker fails. It reveals nothing about
// the workspace.
func (p *Proxy) serverError(w http.ResponseWriter, r *http.Request, v visit, what string, err error) {
	if r.Context().Err() == nil {
		level := p.log.ErrorContext
		if errors.Is(err, runtime.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded) {
			level = p.log.WarnContext
		}
		level(r.Context(), what, "workspace", v.id, "user", v.caller.UserID, "err", err)
	}
	p.unavailable(w, r, v, http.StatusServiceUnavailable, "The server cannot reach the workspace right now.")
}

func (p *Proxy) unavailable(w http.ResponseWriter, r *http.Request, v visit, status int, message string) {
	if !v.navigation {
		refuse(w, status, workspace.CodeUnavailable, message, p.again(r, v))
		return
	}
	if v.host.ID != "" {
		p.notice(w, r, status, NoticeUnavailable, p.layout.URL(v.host)+pathOf(r))
		return
	}
	setOwnHeaders(w, status)
	p.pages.Unavailable(w, r, status, p.plainPage(r, v))
}

// busy answers when a limit of concurrent requests is reached.
func (p *Proxy) busy(w http.ResponseWriter, r *http.Request, v visit, limit error) {
	p.limited.WithLabelValues(map[error]string{errTooManyUser: "user", errTooManyGuest: "guest", errTooMany: "all"}[limit]).Inc()
	status, message := http.StatusServiceUnavailable, "The server relays too many requests at the moment. Try again in a moment."
	if errors.Is(limit, errTooManyUser) {
		status, message = http.StatusTooManyRequests, "Too many requests to this user's workspaces are open at the same time. Close some tabs, or try again in a moment."
	}
	if errors.Is(limit, errTooManyGuest) {
		status, message = http.StatusTooManyRequests, "Too many requests from this address or to this port. Try again in a moment."
	}
	if !v.navigation {
		refuse(w, status, codeTooManyRequests, message, p.again(r, v))
		return
	}
	if v.host.ID != "" {
		p.notice(w, r, status, NoticeBusy, p.layout.URL(v.host)+localPathOf(r))
		return
	}
	setOwnHeaders(w, status)
	p.pages.Busy(w, r, status, p.plainPage(r, v))
}

// asleep answers a visitor who cannot start the workspace, or a page that waits for a port
// of it. It reveals nothing about the workspace.
func (p *Proxy) asleep(w http.ResponseWriter, r *http.Request, v visit) {
	if !v.navigation {
		refuse(w, http.StatusServiceUnavailable, workspace.CodeUnavailable, "The workspace is not running.", nil)
		return
	}
	page := NoticePage{Notice: NoticeAsleep, Again: p.addressOf(r, v), Home: p.layout.Main() + "/"}
	if v.caller.UserID == "" {
		// The visitor may be the owner, who can log in there and start the workspace.
		page.Home = p.layout.Main() + pathPrefix + string(v.id)
	}
	setOwnHeaders(w, http.StatusServiceUnavailable)
	p.pages.Notice(w, r, http.StatusServiceUnavailable, page)
}

func (p *Proxy) plainPage(r *http.Request, v visit) PlainPage {
	return PlainPage{Caller: v.caller, Path: pathOf(r)}
}
