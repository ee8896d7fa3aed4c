package proxy

import (
	"net/http"

	"codehub/internal/workspace"
)

// Pages renders the pages that replace a workspace. A method writes the whole
// response with the given status; Cache-Control (no-store) and, where it applies,
// Retry-After are already set on w. It is only called for navigations: other
// requests get the API's JSON error.
type Pages interface {
	// Loading is shown while the workspace is starting (503). It shows live
	// progress, the ended steps and the container's output, and loads its address
	// again when the phase is RUNNING and the operation NONE. In any other state of
	// rest it becomes the page of that state: it never wakes the workspace.
	//
	// To prevent loops the page limits how often it loads its address: at most 6
	// times within 2 minutes, after waits of 0, 1, 2, 4, 8 and 15 s; after that it
	// has a link. Another replica may learn of an event a moment later, so a second
	// time is normal. Without scripts it refreshes to a page that starts nothing.
	Loading(w http.ResponseWriter, r *http.Request, status int, p LoadingPage)
	// RestoreNeeded is shown for ARCHIVED (502), with a button that starts the
	// workspace and returns to this address.
	RestoreNeeded(w http.ResponseWriter, r *http.Request, status int, p WorkspacePage)
	// StartNeeded is shown for PENDING (502), with a button that starts the
	// workspace.
	StartNeeded(w http.ResponseWriter, r *http.Request, status int, p WorkspacePage)
	// Failed is shown for ERROR (502): the error and what the owner can do
	// (recover, start empty after DataLost, force stop, delete).
	Failed(w http.ResponseWriter, r *http.Request, status int, p WorkspacePage)
	// LimitReached is shown when a limit prevents the workspace from starting
	// (502), with a stop button for each of the caller's own running workspaces.
	LimitReached(w http.ResponseWriter, r *http.Request, status int, p LimitPage)
	// Deleted is shown for a deleted workspace (410). Within the grace period the
	// deletion can be undone.
	Deleted(w http.ResponseWriter, r *http.Request, status int, p WorkspacePage)
	// Unavailable is shown when the IDE, the database or Docker is not responding
	// (502 or 503), with a link to try again.
	Unavailable(w http.ResponseWriter, r *http.Request, status int, p PlainPage)
	// Busy is shown when too many requests are open at the same time: of the caller
	// (429) or of all users (503). It has a link to try again.
	Busy(w http.ResponseWriter, r *http.Request, status int, p PlainPage)
	// Forbidden is shown for another user's workspace (403). It reveals nothing
	// about it.
	Forbidden(w http.ResponseWriter, r *http.Request, status int, p PlainPage)
	// NotFound is shown when the workspace does not exist (404). The caller is the
	// zero Caller if the request has no session.
	NotFound(w http.ResponseWriter, r *http.Request, status int, p PlainPage)
	// Notice is shown on hosts that do not serve codehub's assets: those of workspaces
	// and unknown ones. It must load nothing.
	Notice(w http.ResponseWriter, r *http.Request, status int, p NoticePage)
}

// Notice says what a NoticePage is about.
type Notice string

// The notices.
const (
	NoticeForbidden   Notice = "forbidden"   // the workspace belongs to another user
	NoticeNotFound    Notice = "not_found"   // the workspace does not exist
	NoticeNoPage      Notice = "no_page"     // codehub has no such page
	NoticeUnavailable Notice = "unavailable" // the workspace is not responding
	NoticeBusy        Notice = "busy"        // too many requests at a time
	NoticeCookies     Notice = "cookies"     // the browser keeps no cookies here
	NoticeExpired     Notice = "expired"     // a ticket is not valid
	NoticeMisdirected Notice = "misdirected" // the host is not codehub's
	NoticePort        Notice = "port"        // nothing listens on NoticePage.Port of the container's address
	NoticeAppPort     Notice = "app_port"    // nor on that of 127.0.0.1
	NoticeAsleep      Notice = "asleep"      // the workspace does not run, and the visitor cannot start it
	// The browser sent several session cookies, which have been removed.
	NoticeCookieConflict Notice = "cookie_conflict"
)

// NoticePage is a page that is not on the main origin.
type NoticePage struct {
	Notice Notice
	Port   int
	// Again is the absolute address to try again, or empty. Home is that of codehub.
	Again, Home string
	// Wait is a path of this host that leads to Again once the port responds, and otherwise to
	// this page; empty if there is nothing to wait for. With a parameter n it is the
	// n-th page in a row. To other requests than navigations it answers 200 or 502.
	Wait string
	N    int
}

// PlainPage is a page without information about a workspace.
type PlainPage struct {
	Caller workspace.Caller
	// Path is the requested path with its query: the address to try again.
	Path string
}

// WorkspacePage is a page about one of the caller's workspaces.
type WorkspacePage struct {
	PlainPage
	Workspace workspace.Workspace
}

// LoadingPage is the page shown while a workspace starts.
type LoadingPage struct {
	WorkspacePage
	// Queued reports that the current operation, such as a stop, has to finish
	// before the workspace starts.
	Queued bool
}

// LimitPage is the page shown when a limit is reached.
type LimitPage struct {
	WorkspacePage
	Type         string // "per_user" or "global"
	Current, Max int
	Running      []workspace.Workspace // the caller's own
}
