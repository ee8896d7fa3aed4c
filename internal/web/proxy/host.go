package proxy

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"codehub/api"
	"codehub/internal/gateway/origin"
	"codehub/internal/web/accesslog"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// With an origin for each workspace its owner, and on the host of a shared port another
// user, enters in four steps, all navigations:
//
//	main       /w/{id}/path       session, owner and state; redirects to the host, by the
//	                              last step if the language of the dashboard has changed
//	workspace  /path              without a session of the host: nonce cookie
//	main       /_codehub/enter    session, owner and state; issues a ticket
//	workspace  /_codehub/ticket   redeems it, sets the session cookie
//
// A step that fails is repeated once at most, and then shows a page.

const (
	entryPath  = origin.EntryPath
	ticketPath = origin.OwnPrefix + "ticket"

	// maxEntryPath limits the path that is carried through the redirects; of a longer
	// one only the root is kept.
	maxEntryPath = 2048
)

// serveHost serves the host of a workspace.
func (p *Proxy) serveHost(w http.ResponseWriter, r *http.Request, host workspace.Host) {
	accesslog.SetRoute(r.Context(), "{workspace}/{path...}")
	accesslog.SetWorkspace(r.Context(), string(host.ID), host.Port)
	accesslog.Quiet(r.Context())
	v := visit{target: target{id: host.ID, host: host}, navigation: isNavigation(r)}
	if r.URL.Path == ticketPath {
		p.redeem(w, r, v)
		return
	}
	v.polls = host.Port != 0 && r.URL.Path == portWaitPath
	if isOwnPath(r.URL.Path) && !v.polls {
		v.path = r.URL.Path
		p.serveIDE(w, r, v)
		return
	}
	if workspace.ReservedPort(host.Port) {
		p.reserved(w, r, v)
		return
	}
	var err error
	if v.path, v.rawPath, err = splitPath(rawPath(r)); err != nil || !strings.HasPrefix(v.path, "/") {
		refuse(w, http.StatusBadRequest, workspace.CodeInvalid, "The path is not valid.", nil)
		return
	}
	v.caller, err = p.visitors.AuthenticateWorkspace(r, host)
	if workspace.CodeOf(err) == workspace.CodeUnauthenticated && host.Port != 0 && p.routes.visibility == workspace.VisiblePublic {
		var public bool
		if public, err = p.admitAnyone(r, &v, err); public {
			p.serveAnyone(w, r, v)
			return
		}
	}
	if err != nil {
		switch {
		case errors.Is(err, errTooManyGuest):
			p.busy(w, r, v, err)
		case workspace.CodeOf(err) == workspace.CodeForbidden:
			p.forbid(w, r, v, limitedToken)
		case workspace.CodeOf(err) != workspace.CodeUnauthenticated:
			p.serverError(w, r, v, "authenticate visitor failed", err)
		case !v.navigation:
			refuse(w, http.StatusUnauthorized, workspace.CodeUnauthenticated, "Log in first.", nil)
		case p.visitors.Entered(r):
			p.notice(w, r, http.StatusForbidden, NoticeCookies, p.addressOf(r, v))
		default:
			p.requestTicket(w, r, v, strings.TrimPrefix(p.addressOf(r, v), p.layout.URL(host)), false)
		}
		return
	}
	accesslog.SetUser(r.Context(), v.caller.UserID)
	if !p.origins.allowsOn(host, r, v.navigation, v.caller.Token != "") {
		p.forbid(w, r, v, "Other sites cannot send requests to this workspace.")
		return
	}
	p.route(w, r, v, p.routes.maxAge, p.delivery(v))
}

// delivery returns how a request for a running workspace is answered.
func (p *Proxy) delivery(v visit) delivery {
	if v.polls {
		return p.awaitPort
	}
	return p.relay
}

// admitAnyone reports whether the port of the host is public, for a visitor without a
// session of it. The rate of the address is checked first, because each ID may need a
// look into the database; that of the port only once it is known to be public, so that no
// visitor can use up the rate of a private port, whose owner comes this way to log in.
// unauthenticated is returned for a port that is not public.
func (p *Proxy) admitAnyone(r *http.Request, v *visit, unauthenticated error) (bool, error) {
	address := addressKey(r)
	if !p.guests.allow(address, p.guests.rate, time.Now()) {
		return false, errTooManyGuest
	}
	route, err := p.routes.get(r.Context(), v.host.ID, p.routes.maxAge)
	switch {
	case workspace.CodeOf(err) == workspace.CodeNotFound:
		return false, unauthenticated
	case err != nil:
		return false, err
	}
	if _, ok := route.admits(workspace.Caller{}, v.host.Port, time.Now()); !ok {
		return false, unauthenticated
	}
	if !p.guests.allow(portKey(v.host), p.guests.rate*perPort, time.Now()) {
		return false, errTooManyGuest
	}
	v.caller, v.payer = workspace.Caller{}, address
	return true, nil
}

// serveAnyone serves a visitor of a public port without a session. There is no session
// that another site could abuse, but pages of other sites are refused like those that
// have one, because the application may know its visitors by cookies of its own.
func (p *Proxy) serveAnyone(w http.ResponseWriter, r *http.Request, v visit) {
	program := len(r.Header.Values("Origin")) == 0 && len(r.Header.Values("Sec-Fetch-Site")) == 0
	if !p.origins.allowsOn(v.host, r, v.navigation, program) {
		p.forbid(w, r, v, "Other sites cannot send requests to this workspace.")
		return
	}
	p.route(w, r, v, p.routes.maxAge, p.delivery(v))
}

// localPathOf returns the path and query of a request for the redirects that carry it,
// or "/" if it is too long or not local.
func localPathOf(r *http.Request) string {
	path := escapeStray(rawPath(r))
	if r.URL.RawQuery != "" {
		path += "?" + r.URL.RawQuery
	}
	return localPath(path)
}

func localPath(path string) string {
	if len(path) > maxEntryPath || !origin.LocalPath(path) {
		return "/"
	}
	return path
}

// requestTicket sends a visitor without a session of the host to the main origin for a
// ticket.
func (p *Proxy) requestTicket(w http.ResponseWriter, r *http.Request, v visit, path string, again bool) {
	hash, cookie := p.visitors.Nonce(r)
	http.SetCookie(w, cookie)
	redirect(w, p.layout.Main()+entryPath+"?"+entryQuery(v.host, hash, path, again).Encode())
}

func entryQuery(host workspace.Host, nonce, path string, again bool) url.Values {
	q := url.Values{"workspace": {string(host.ID)}, "nonce": {nonce}, "path": {path}}
	if host.Port != 0 {
		q.Set("port", strconv.Itoa(host.Port))
	}
	if again {
		q.Set("again", "1")
	}
	return q
}

// serveEntry issues the ticket, on the main origin.
func (p *Proxy) serveEntry(w http.ResponseWriter, r *http.Request) {
	accesslog.SetRoute(r.Context(), "GET "+entryPath)
	q := r.URL.Query()
	v := visit{navigation: isNavigation(r)}
	host, ok := hostOfQuery(q)
	if !ok {
		p.missing(w, r, v)
		return
	}
	accesslog.SetWorkspace(r.Context(), string(host.ID), host.Port)
	v.target, v.entering = target{id: host.ID, prefix: pathPrefix + string(host.ID)}, host.Port
	if workspace.ReservedPort(host.Port) {
		p.reserved(w, r, v)
		return
	}
	if len(pathOf(r)) > maxNext {
		// The login page and those of a workspace that is not running return here.
		r.URL.RawQuery = entryQuery(host, q.Get("nonce"), "/", false).Encode()
	}
	var err error
	if v.caller, err = p.auth.Authenticate(r, false); err != nil {
		switch {
		case workspace.CodeOf(err) == workspace.CodeForbidden:
			p.forbid(w, r, v, limitedToken)
		case workspace.CodeOf(err) != workspace.CodeUnauthenticated:
			p.serverError(w, r, v, "authenticate visitor failed", err)
		case v.navigation:
			signIn(w, r, v.target)
		default:
			refuse(w, http.StatusUnauthorized, workspace.CodeUnauthenticated, "Log in first.", nil)
		}
		return
	}
	accesslog.SetUser(r.Context(), v.caller.UserID)
	if !v.navigation || v.caller.Token != "" {
		refuse(w, http.StatusForbidden, workspace.CodeForbidden, "Only a browser that opens a page can enter a workspace here.", nil)
		return
	}
	path := localPath(q.Get("path"))
	if host.Port == 0 {
		// The pages about a workspace that is not running belong to this address.
		route, err := p.routes.get(r.Context(), host.ID, recentRoute)
		if err == nil && route.enters(v.caller) && (lifecycle.OpeningOf(route.workspace) != lifecycle.OpenNow || route.upstream == nil) {
			redirect(w, p.layout.Main()+v.prefix+path)
			return
		}
	}
	p.route(w, r, v, recentRoute, func(w http.ResponseWriter, r *http.Request, v visit, _ *upstream) bool {
		ticket, err := p.visitors.IssueTicket(r.Context(), v.caller, host, q.Get("nonce"))
		if err != nil {
			p.serverError(w, r, v, "issue ticket failed", err)
			return true
		}
		redeem := url.Values{"ticket": {ticket}, "path": {path}}
		if p.ide != nil {
			for _, name := range idePreferences {
				if value := p.ide.Preference(r, name); value != "" {
					redeem.Set(string(name), value)
				}
			}
		}
		if q.Get("again") != "" {
			redeem.Set("again", "1")
		}
		redirect(w, p.layout.URL(host)+ticketPath+"?"+redeem.Encode())
		return true
	})
}

// nonceLength is the length of a SHA-256 in hex.
const nonceLength = 64

// hostOfQuery returns the host that a ticket is requested for.
func hostOfQuery(q url.Values) (workspace.Host, bool) {
	host := workspace.Host{ID: workspace.ID(q.Get("workspace"))}
	ok := workspace.ValidID(string(host.ID)) && len(q.Get("nonce")) == nonceLength
	if q.Has("port") && ok {
		host.Port, ok = origin.ParsePort(q.Get("port"))
	}
	return host, ok
}

// redeem exchanges a ticket for the session of the host.
func (p *Proxy) redeem(w http.ResponseWriter, r *http.Request, v visit) {
	if !v.navigation {
		refuse(w, http.StatusForbidden, workspace.CodeForbidden, "Only a browser that opens a page can use a ticket.", nil)
		return
	}
	q := r.URL.Query()
	path := localPath(q.Get("path"))
	address := p.layout.URL(v.host) + path
	if p.ide != nil {
		for _, name := range idePreferences {
			if c := p.ide.PreferenceCookie(name, q.Get(string(name))); c != nil && q.Has(string(name)) {
				http.SetCookie(w, c)
			}
		}
	}
	caller, err := p.visitors.AuthenticateWorkspace(r, v.host)
	if err == nil && caller.Token == "" {
		redirect(w, address) // another tab was faster, or only a preference is new
		return
	}
	if err != nil && workspace.CodeOf(err) != workspace.CodeUnauthenticated {
		p.serverError(w, r, v, "authenticate visitor failed", err)
		return
	}
	if !q.Has("ticket") {
		p.requestTicket(w, r, v, path, false)
		return
	}
	cookies, err := p.visitors.RedeemTicket(r, q.Get("ticket"), v.host)
	code := workspace.CodeOf(err)
	switch again := q.Get("again") != ""; {
	case err == nil:
		for _, c := range cookies {
			http.SetCookie(w, c)
		}
		redirect(w, address)
	case code != workspace.CodeInvalid && code != workspace.CodeUnauthenticated:
		p.serverError(w, r, v, "redeem ticket failed", err)
	case !again:
		// The login took longer than the nonce lives, or another tab replaced it.
		p.requestTicket(w, r, v, path, true)
	case code == workspace.CodeInvalid:
		p.notice(w, r, http.StatusForbidden, NoticeCookies, address)
	default:
		p.notice(w, r, http.StatusForbidden, NoticeExpired, address)
	}
}

// toHost redirects a navigation under /w/ to the workspace's own origin.
func (p *Proxy) toHost(w http.ResponseWriter, r *http.Request, v visit, _ *upstream) bool {
	path := v.rawPath
	if r.URL.RawQuery != "" {
		path += "?" + r.URL.RawQuery
	}
	host := p.layout.URL(workspace.Host{ID: v.id})
	if q, known := p.changedPreferences(r, v.id); len(known) > 0 && localPath(path) == path {
		for _, c := range known {
			http.SetCookie(w, c)
		}
		q.Set("path", path)
		redirect(w, host+ticketPath+"?"+q.Encode())
		return true
	}
	redirect(w, host+path)
	return true
}

// toLocal redirects a navigation from localhost to codehub's own host in local mode, and
// removes the cookies that earlier versions have set there. Other ports of localhost receive them.
func (p *Proxy) toLocal(w http.ResponseWriter, r *http.Request) bool {
	main, ok := p.layout.FromLoopback(r.Host)
	if !ok || !isNavigation(r) || len(r.Header.Values(api.TokenHeader)) > 0 {
		return false
	}
	for _, c := range r.Cookies() {
		if slices.Contains(p.secrets.cookies, c.Name) {
			http.SetCookie(w, &http.Cookie{Name: c.Name, Path: "/", MaxAge: -1})
		}
	}
	accesslog.SetRoute(r.Context(), "localhost")
	location := main + "/" + strings.TrimPrefix(escapeStray(rawPath(r)), "/") // the slash ends the host
	if r.URL.RawQuery != "" {
		location += "?" + r.URL.RawQuery
	}
	redirect(w, location)
	return true
}
