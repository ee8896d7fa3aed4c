package proxy

import (
	"net/http"

	"codehub/internal/workspace"
)

// Pages renders what a person sees instead of their workspace. A method
// writes the whole answer with the given status; Cache-Control (no-store)
// and, where it applies, Retry-After have been set on w before. Called for
// navigations alone: whatever else asks gets the API's JSON error.
type Pages interface {
	// Loading is shown while the workspace comes up (503). It shows the
	// progress live, from GET /api/v1/events, and loads its own address again
	// once the phase is RUNNING and the operation NONE, or the workspace has
	// come to rest in any other state (STANDBY is woken by that, the rest has
	// a page of its own).
	//
	// Against loops the page counts its reloads in sessionStorage, by
	// workspace: at most 6 within 2 minutes, after waits of 0, 1, 2, 4, 8 and
	// 15 s; after that it offers a link. Another replica may know of an event
	// a moment later than this one, so a second try is normal.
	Loading(w http.ResponseWriter, r *http.Request, status int, p LoadingPage)
	// RestoreNeeded is shown for ARCHIVED (502), with a button that wants it
	// RUNNING and leads back here.
	RestoreNeeded(w http.ResponseWriter, r *http.Request, status int, p WorkspacePage)
	// StartNeeded is shown for PENDING (502), with a button that wants it
	// RUNNING.
	StartNeeded(w http.ResponseWriter, r *http.Request, status int, p WorkspacePage)
	// Failed is shown for ERROR (502): what went wrong and what the owner can
	// do (recover, start empty after DataLost, forced stop, delete).
	Failed(w http.ResponseWriter, r *http.Request, status int, p WorkspacePage)
	// LimitReached is shown when too many workspaces run to wake one more
	// (502), with a stop button for each of the caller's own.
	LimitReached(w http.ResponseWriter, r *http.Request, status int, p LimitPage)
	// Deleted is shown for a deleted workspace (410); within the grace the
	// deletion can be taken back.
	Deleted(w http.ResponseWriter, r *http.Request, status int, p WorkspacePage)
	// Unavailable is shown when the workspace's IDE, the database or the
	// container backend does not answer (502 or 503), with a link to try again.
	Unavailable(w http.ResponseWriter, r *http.Request, status int, p PlainPage)
	// Forbidden is shown for somebody else's workspace (403). It says nothing
	// about it.
	Forbidden(w http.ResponseWriter, r *http.Request, status int, p PlainPage)
	// NotFound is shown when there is no such workspace (404). The caller is
	// the zero Caller if nobody is logged in.
	NotFound(w http.ResponseWriter, r *http.Request, status int, p PlainPage)
}

// PlainPage is a page that tells nothing about a workspace.
type PlainPage struct {
	Caller workspace.Caller
	// Path is what was asked for, with its query: the address to try again.
	Path string
}

// WorkspacePage is a page about a workspace of the caller's.
type WorkspacePage struct {
	PlainPage
	Workspace workspace.Workspace
}

// LoadingPage is the page that waits for a workspace.
type LoadingPage struct {
	WorkspacePage
	// Queued tells that what goes on does not lead to RUNNING, such as a stop,
	// and that the workspace will be started once that has ended.
	Queued bool
}

// LimitPage is the page that tells what runs instead.
type LimitPage struct {
	WorkspacePage
	Type         string // "per_user" or "global"
	Current, Max int
	Running      []workspace.Workspace // the caller's own
}
