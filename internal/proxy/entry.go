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

// visit is one request for a workspace whose visitor is known.
type visit struct {
	target
	caller     workspace.Caller
	navigation bool
}

// enter checks who asks and leads them to the workspace, or says why not.
func (p *Proxy) enter(w http.ResponseWriter, r *http.Request, t target) {
	v := visit{target: t, navigation: isNavigation(r)}
	var err error
	if v.caller, err = p.auth.Authenticate(r, false); err != nil {
		if workspace.CodeOf(err) != workspace.CodeUnauthenticated {
			p.fault(w, r, v, "authenticate a visitor", err)
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
	if !p.origins.mayAsk(r, v.navigation, v.caller.Token != "") {
		p.forbid(w, r, v, "Another site's page cannot use this workspace on your behalf.")
		return
	}
	p.lead(w, r, v)
}

// recent is how old a route may be when a person is shown that their
// workspace is not running: another replica may have told them that it is.
const recent = 250 * time.Millisecond

// maxLeads bounds how often one request looks for its way when the route it
// found is closed under it.
const maxLeads = 5

// lead does what opening the workspace in its state leads to.
func (p *Proxy) lead(w http.ResponseWriter, r *http.Request, v visit) {
	maxAge := p.routes.maxAge
	for range maxLeads {
		route, err := p.routes.get(r.Context(), v.id, maxAge)
		switch {
		case workspace.CodeOf(err) == workspace.CodeNotFound:
			p.missing(w, r, v)
			return
		case err != nil:
			p.fault(w, r, v, "find the way to a workspace", err)
			return
		case !v.caller.Owns(route.workspace.OwnerID):
			p.forbid(w, r, v, "This workspace belongs to somebody else.")
			return
		}
		opening := lifecycle.OpeningOf(route.workspace)
		switch {
		case opening == lifecycle.OpenNow && route.upstream != nil:
			if p.relay(w, r, v, route.upstream) {
				return
			}
		case !v.navigation:
			p.turnAway(w, route.workspace, opening)
			return
		case maxAge > recent:
			maxAge = recent
		case opening == lifecycle.OpenStarts || opening == lifecycle.OpenQueues:
			p.wake(w, r, v, route.workspace)
			return
		default:
			p.show(w, r, v, route.workspace, opening)
			return
		}
	}
	// The server is being stopped, or the state changes too quickly to follow.
	p.unavailable(w, r, v, http.StatusServiceUnavailable, "The workspace cannot be reached right now.")
}

// wake wants the workspace running on the visitor's behalf and shows what
// becomes of it.
func (p *Proxy) wake(w http.ResponseWriter, r *http.Request, v visit, seen workspace.Workspace) {
	woken, err := p.store.Wake(r.Context(), v.caller, v.id)
	// Not all that a wake writes is an event, and its own may come late.
	p.routes.invalidate(v.id)
	switch code := workspace.CodeOf(err); {
	case code == workspace.CodeLimitExceeded:
		p.showLimit(w, r, v, seen, err)
		return
	case code == workspace.CodeNotFound:
		p.missing(w, r, v)
		return
	case code == workspace.CodeForbidden:
		p.forbid(w, r, v, "This workspace belongs to somebody else.")
		return
	case err != nil:
		p.fault(w, r, v, "wake a workspace", err)
		return
	}
	p.show(w, r, v, woken, lifecycle.OpeningOf(woken))
}

// turnAway answers what is no navigation while the workspace is not running.
func (p *Proxy) turnAway(w http.ResponseWriter, ws workspace.Workspace, o lifecycle.Opening) {
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

// show renders the page of a workspace that is not to be entered now.
func (p *Proxy) show(w http.ResponseWriter, r *http.Request, v visit, ws workspace.Workspace, o lifecycle.Opening) {
	page := WorkspacePage{PlainPage: p.plain(r, v), Workspace: ws}
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
		// 503 and not 200: whatever is no person must not take this for the
		// workspace.
		status = http.StatusServiceUnavailable
		render = func(w http.ResponseWriter, r *http.Request, status int, page WorkspacePage) {
			p.pages.Loading(w, r, status, LoadingPage{WorkspacePage: page, Queued: o == lifecycle.OpenQueues})
		}
	}
	own(w, status)
	render(w, r, status, page)
}

func (p *Proxy) showLimit(w http.ResponseWriter, r *http.Request, v visit, ws workspace.Workspace, limit error) {
	page := LimitPage{WorkspacePage: WorkspacePage{PlainPage: p.plain(r, v), Workspace: ws}}
	var e *workspace.Error
	if errors.As(limit, &e) {
		page.Type, _ = e.Details["limit_type"].(string)
		page.Current, _ = e.Details["current"].(int)
		page.Max, _ = e.Details["max"].(int)
	}
	var err error
	if page.Running, err = p.store.RunningOf(r.Context(), v.caller.UserID); err != nil {
		p.fault(w, r, v, "list what runs", err)
		return
	}
	own(w, http.StatusBadGateway)
	p.pages.LimitReached(w, r, http.StatusBadGateway, page)
}

// unknown answers for a path that names no workspace.
func (p *Proxy) unknown(w http.ResponseWriter, r *http.Request) {
	v := visit{navigation: isNavigation(r)}
	v.caller, _ = p.auth.Authenticate(r, false) // only decides what the page offers
	p.missing(w, r, v)
}

func (p *Proxy) missing(w http.ResponseWriter, r *http.Request, v visit) {
	if !v.navigation {
		refuse(w, http.StatusNotFound, workspace.CodeNotFound, "There is no such workspace.", nil)
		return
	}
	own(w, http.StatusNotFound)
	p.pages.NotFound(w, r, http.StatusNotFound, p.plain(r, v))
}

func (p *Proxy) forbid(w http.ResponseWriter, r *http.Request, v visit, message string) {
	if !v.navigation {
		refuse(w, http.StatusForbidden, workspace.CodeForbidden, message, nil)
		return
	}
	own(w, http.StatusForbidden)
	p.pages.Forbidden(w, r, http.StatusForbidden, p.plain(r, v))
}

// fault answers when codehub itself cannot tell: nothing is known, so nothing
// is said about the workspace.
func (p *Proxy) fault(w http.ResponseWriter, r *http.Request, v visit, what string, err error) {
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
	own(w, status)
	p.pages.Unavailable(w, r, status, p.plain(r, v))
}

func (p *Proxy) plain(r *http.Request, v visit) PlainPage {
	return PlainPage{Caller: v.caller, Path: pathOf(r)}
}
