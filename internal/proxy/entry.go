package proxy

import (
	"context"
	"errors"
	"net/http"
	"time"

	"codehub/internal/accesslog"
	"codehub/internal/lifecycle"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// visit is an authenticated request for a workspace.
type visit struct {
	target
	caller     workspace.Caller
	navigation bool
}

// enter authenticates and authorizes a request, and relays or refuses it.
func (p *Proxy) enter(w http.ResponseWriter, r *http.Request, t target) {
	v := visit{target: t, navigation: isNavigation(r)}
	var err error
	if v.caller, err = p.auth.Authenticate(r, false); err != nil {
		if workspace.CodeOf(err) != workspace.CodeUnauthenticated {
			p.serverError(w, r, v, "authenticate visitor failed", err)
			return
		}
		if v.navigation {
			signIn(w, r, t)
			return
		}
		refuse(w, http.StatusUnauthorized, workspace.CodeUnauthenticated, "Log in first.", nil)
		return
	}
	accesslog.SetUser(r.Context(), v.caller.UserID)
	if !p.origins.allows(r, v.navigation, v.caller.Token != "") {
		p.forbid(w, r, v, "Other sites cannot send requests to this workspace.")
		return
	}
	p.route(w, r, v)
}

// recentRoute is the maximum age of the route that a page about a stopped workspace
// relies on. Another replica may already have shown that it is running.
const recentRoute = 250 * time.Millisecond

// maxRouteAttempts limits how often a request repeats the lookup because its route
// was closed in the meantime.
const maxRouteAttempts = 5

// route relays the request if the workspace is running. Otherwise it wakes the
// workspace or shows its state.
func (p *Proxy) route(w http.ResponseWriter, r *http.Request, v visit) {
	maxAge := p.routes.maxAge
	for range maxRouteAttempts {
		route, err := p.routes.get(r.Context(), v.id, maxAge)
		switch {
		case workspace.CodeOf(err) == workspace.CodeNotFound:
			p.missing(w, r, v)
			return
		case err != nil:
			p.serverError(w, r, v, "read route failed", err)
			return
		case !v.caller.Owns(route.workspace.OwnerID):
			p.forbid(w, r, v, "This workspace belongs to another user.")
			return
		}
		opening := lifecycle.OpeningOf(route.workspace)
		switch {
		case opening == lifecycle.OpenNow && route.upstream != nil:
			if p.relay(w, r, v, route.upstream) {
				return
			}
		case !v.navigation:
			p.refuseNotRunning(w, route.workspace, opening)
			return
		case maxAge > recentRoute:
			maxAge = recentRoute
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
	woken, err := p.store.Wake(r.Context(), v.caller, v.id)
	// Not every write of a wake sends an event, and the event may be late.
	p.routes.invalidate(v.id)
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
	case err != nil:
		p.serverError(w, r, v, "wake workspace failed", err)
		return
	}
	p.show(w, r, v, woken, lifecycle.OpeningOf(woken))
}

// refuseNotRunning answers requests other than navigations while the workspace is
// not running.
func (p *Proxy) refuseNotRunning(w http.ResponseWriter, ws workspace.Workspace, o lifecycle.Opening) {
	details := map[string]any{"phase": ws.Phase, "operation": ws.Operation}
	switch o {
	case lifecycle.OpenRestores:
		refuse(w, http.StatusBadGateway, workspace.CodeUnavailable, "The workspace is archived and has to be restored first.", details)
	case lifecycle.OpenCreates:
		refuse(w, http.StatusBadGateway, workspace.CodeUnavailable, "The workspace has not been started yet.", details)
	case lifecycle.OpenFails:
		details["error_reason"] = ws.ErrorReason
		refuse(w, http.StatusBadGateway, workspace.CodeRecoveryRequired, "The workspace has failed and has to be recovered first.", details)
	case lifecycle.OpenDeleted:
		refuse(w, http.StatusGone, workspace.CodeGone, "The workspace has been deleted.", nil)
	default:
		refuse(w, http.StatusServiceUnavailable, workspace.CodeUnavailable, "The workspace is not running.", details)
	}
}

// show renders the page of a workspace that cannot be opened now.
func (p *Proxy) show(w http.ResponseWriter, r *http.Request, v visit, ws workspace.Workspace, o lifecycle.Opening) {
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
		refuse(w, http.StatusNotFound, workspace.CodeNotFound, "There is no such workspace.", nil)
		return
	}
	setOwnHeaders(w, http.StatusNotFound)
	p.pages.NotFound(w, r, http.StatusNotFound, p.plainPage(r, v))
}

func (p *Proxy) forbid(w http.ResponseWriter, r *http.Request, v visit, message string) {
	if !v.navigation {
		refuse(w, http.StatusForbidden, workspace.CodeForbidden, message, nil)
		return
	}
	setOwnHeaders(w, http.StatusForbidden)
	p.pages.Forbidden(w, r, http.StatusForbidden, p.plainPage(r, v))
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
		refuse(w, status, workspace.CodeUnavailable, message, nil)
		return
	}
	setOwnHeaders(w, status)
	p.pages.Unavailable(w, r, status, p.plainPage(r, v))
}

func (p *Proxy) plainPage(r *http.Request, v visit) PlainPage {
	return PlainPage{Caller: v.caller, Path: pathOf(r)}
}
