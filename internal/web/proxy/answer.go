package proxy

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"strconv"

	"codehub/api"
	"codehub/internal/running/service"
	"codehub/internal/web/accesslog"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// retryAfter is the Retry-After of a workspace that is starting, in seconds.
const retryAfter = 2

// codeTooManyRequests is the error of a limit of concurrent requests.
const codeTooManyRequests workspace.Code = "too_many_requests"

// codeMisdirected is the error of a request for an unknown host.
const codeMisdirected workspace.Code = "misdirected"

// maxNext limits the length of the address that the login page returns to.
const maxNext = 2048

// refuse answers requests other than navigations, with the API's error format.
func refuse(w http.ResponseWriter, status int, code workspace.Code, message string, details map[string]any) {
	setOwnHeaders(w, status)
	if code == workspace.CodeLimitExceeded || code == workspace.CodeQuotaExceeded {
		w.Header().Del("Retry-After") // a repetition starts nothing, and programs would repeat it for ever
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(api.Error{Code: string(code), Message: message, Details: details}) // the client may have disconnected
}

// next returns the details that name the next call of a client. path is on the main
// origin; body is the call's JSON.
func (p *Proxy) next(method, path string, body map[string]any) map[string]any {
	return map[string]any{"next": api.NextCall{Method: method, URL: p.layout.Main() + path, Body: body}}
}

// again returns the details that name the same request as the next call.
func (p *Proxy) again(r *http.Request, v visit) map[string]any {
	origin := p.layout.Main()
	if v.host.ID != "" {
		origin = p.layout.URL(v.host)
	}
	return map[string]any{"next": api.NextCall{Method: r.Method, URL: origin + pathOf(r)}}
}

// refuseNotRunning answers requests other than navigations while the workspace is
// not running. The details are what the page of that state shows, on the main origin.
func (p *Proxy) refuseNotRunning(w http.ResponseWriter, r *http.Request, v visit, ws workspace.Workspace, o lifecycle.Opening) {
	status, code, message := http.StatusServiceUnavailable, workspace.CodeUnavailable, "The workspace is not running."
	path := "/api/v1/workspaces/" + string(ws.ID)
	start := map[string]any{"desired_state": workspace.DesiredRunning}
	details := p.next(http.MethodPatch, path, start)
	switch o {
	case lifecycle.OpenRestores:
		status, message = http.StatusBadGateway, "The workspace is archived and has to be restored first."
	case lifecycle.OpenCreates:
		status, message = http.StatusBadGateway, "The workspace has not been started yet."
	case lifecycle.OpenFails:
		status, code, message = http.StatusBadGateway, workspace.CodeRecoveryRequired, "The workspace has failed and has to be recovered first."
		details = p.next(http.MethodPost, path+"/recover", map[string]any{"action": workspace.RecoverAfresh})
	case lifecycle.OpenDeleted:
		status, code, message = http.StatusGone, workspace.CodeGone, "The workspace has been deleted."
		details = p.next(http.MethodGet, "/api/v1/workspaces", nil)
		if lifecycle.Restorable(ws, false) {
			details = p.next(http.MethodPost, path+"/undelete", nil)
		}
	case lifecycle.OpenQueues:
		start["queue"] = true
	case lifecycle.OpenWaits:
		message = "The workspace is not ready yet."
		details = p.next(http.MethodGet, path, nil)
	}
	if (o == lifecycle.OpenStarts || o == lifecycle.OpenQueues) && lifecycle.StartRequested(ws) {
		details = p.next(http.MethodGet, path, nil)
	}
	if o == lifecycle.OpenStarts && v.host.ID == "" && !fromBrowser(r) {
		limit, err := p.limitOf(r, v)
		if err != nil {
			p.serverError(w, r, v, "check limits failed", err)
			return
		}
		if limit != nil {
			code, message, details = limit.Code, limit.Message, limit.Details
		}
	}
	facts := p.facts(ws)
	if v.host.ID != "" {
		// A page of the workspace can read this response.
		for _, name := range []string{"name", "progress", "error_message"} {
			delete(facts, name)
		}
	}
	maps.Copy(details, facts)
	refuse(w, status, code, message, details)
}

// facts returns the state of a workspace, in the API's terms.
func (p *Proxy) facts(ws workspace.Workspace) map[string]any {
	shown := service.Server{URL: p.layout.Main()}.View(ws)
	facts := map[string]any{
		"workspace_id": shown.ID, "name": shown.Name, "url": shown.URL,
		"state": shown.State, "phase": shown.Phase, "operation": shown.Operation,
		"desired_state": shown.DesiredState, "next_desired_state": shown.NextDesiredState,
		"progress": shown.Progress, "error_reason": shown.ErrorReason, "error_message": shown.ErrorMessage,
	}
	if shown.DeletedAt != nil {
		facts["deleted_at"] = shown.DeletedAt
	}
	return facts
}

// limitOf returns the limit that a start would exceed, with what to do next in its details, nil
// if there is none: CodeLimitExceeded for a running limit, CodeQuotaExceeded for that of bytes.
func (p *Proxy) limitOf(r *http.Request, v visit) (*workspace.Error, error) {
	err := p.store.MayRun(r.Context(), v.caller, v.id)
	var e *workspace.Error
	if !errors.As(err, &e) || e.Code != workspace.CodeLimitExceeded && e.Code != workspace.CodeQuotaExceeded {
		return nil, err
	}
	out := &workspace.Error{Code: e.Code, Message: e.Message, Details: p.next(http.MethodGet, "/api/v1/workspaces/"+string(v.id), nil)}
	if e.Code == workspace.CodeLimitExceeded {
		running, err := p.store.RunningOf(r.Context(), v.caller.UserID)
		if err != nil {
			return nil, err
		}
		out.Message = "A running limit prevents the workspace from starting."
		for _, other := range running {
			if other.ID != v.id {
				out.Details = p.next(http.MethodPatch, "/api/v1/workspaces/"+string(other.ID), map[string]any{"desired_state": workspace.DesiredStandby, "queue": true})
				break
			}
		}
	}
	maps.Copy(out.Details, e.Details)
	return out, nil
}

// fromBrowser reports whether a page sent the request. Open tabs send requests for
// as long as they are open, so nothing is looked up for them.
func fromBrowser(r *http.Request) bool {
	return r.Header.Get("Sec-Fetch-Mode") != "" || upgradeType(r.Header) != ""
}

// setOwnHeaders prevents caching of codehub's own responses under /w/, because the
// workspace serves the same address later.
func setOwnHeaders(w http.ResponseWriter, status int) {
	w.Header().Set("Cache-Control", "no-store")
	if status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
	}
}

func pathOf(r *http.Request) string {
	path := r.URL.EscapedPath()
	if r.URL.RawQuery != "" {
		path += "?" + r.URL.RawQuery
	}
	return path
}

// signIn redirects to the login page, which returns to the requested address.
func signIn(w http.ResponseWriter, r *http.Request, t target) {
	next := pathOf(r)
	if len(next) > maxNext {
		next = t.prefix + "/"
	}
	setOwnHeaders(w, http.StatusSeeOther)
	w.Header().Set("Location", "/login?next="+url.QueryEscape(next))
	w.WriteHeader(http.StatusSeeOther)
}

// toMain redirects a navigation on a workspace's host to the main origin, which has the
// pages about a workspace that is not running.
func (p *Proxy) toMain(w http.ResponseWriter, r *http.Request, v visit) {
	if v.host.Port != 0 {
		p.requestTicket(w, r, v, localPathOf(r), false)
		return
	}
	redirect(w, p.layout.Main()+pathPrefix+string(v.id)+localPathOf(r))
}

// redirect sends a navigation to an absolute address, so that no path in it can name
// another host.
func redirect(w http.ResponseWriter, address string) {
	setOwnHeaders(w, http.StatusSeeOther)
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("Location", address)
	w.WriteHeader(http.StatusSeeOther)
}

// misdirected answers a request for a host that is not codehub's.
func (p *Proxy) misdirected(w http.ResponseWriter, r *http.Request) {
	accesslog.SetRoute(r.Context(), "unknown host")
	if !isNavigation(r) {
		refuse(w, http.StatusMisdirectedRequest, codeMisdirected, "This server does not serve that host. Its address is "+p.layout.Main()+".", nil)
		return
	}
	p.notice(w, r, http.StatusMisdirectedRequest, NoticeMisdirected, "")
}

func (p *Proxy) noPage(w http.ResponseWriter, r *http.Request, v visit) {
	if !v.navigation {
		refuse(w, http.StatusNotFound, workspace.CodeNotFound, "There is no such page.", nil)
		return
	}
	p.notice(w, r, http.StatusNotFound, NoticeNoPage, "")
}

func (p *Proxy) notice(w http.ResponseWriter, r *http.Request, status int, n Notice, again string) {
	setOwnHeaders(w, status)
	p.pages.Notice(w, r, status, NoticePage{Notice: n, Again: again, Home: p.layout.Main() + "/"})
}

func (p *Proxy) forbid(w http.ResponseWriter, r *http.Request, v visit, message string) {
	if !v.navigation {
		refuse(w, http.StatusForbidden, workspace.CodeForbidden, message, p.next(http.MethodGet, "/api/v1/workspaces", nil))
		return
	}
	if v.host.ID != "" {
		p.notice(w, r, http.StatusForbidden, NoticeForbidden, "")
		return
	}
	setOwnHeaders(w, http.StatusForbidden)
	p.pages.Forbidden(w, r, http.StatusForbidden, p.plainPage(r, v))
}
