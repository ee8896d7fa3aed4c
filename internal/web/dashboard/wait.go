package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"codehub/internal/gateway/origin"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// refresh makes a page without scripts load an address after some seconds.
type refresh struct {
	After int
	URL   string
}

// refreshAfter has the pauses between the first refreshes of a page without scripts, in seconds;
// the last one applies to all others.
var refreshAfter = []int{2, 2, 3, 3, 5, 5, 8, 8, 15}

// maxRefreshes limits the refreshes, which take about a quarter of an hour in all. After that
// the page has a link.
const maxRefreshes = 60

// Entering a workspace without scripts is limited as in live.js: the page may return when
// another server has not heard of the workspace's start.
const (
	enterCookie = "codehub_entered"
	maxEntries  = 6
	entryWithin = 2 * time.Minute
)

// waitPath returns the address of the page without scripts that waits for a workspace. It does
// not start the workspace, and leads to entry when the workspace is ready.
func waitPath(id workspace.ID, entry string, limit bool, n int) string {
	q := url.Values{}
	if entry != entryPath(id, "") {
		q.Set("path", entry)
	}
	if limit {
		q.Set("limit", "1")
	}
	if n > 0 {
		q.Set("n", strconv.Itoa(n))
	}
	path := "/workspaces/" + string(id) + "/wait"
	if len(q) > 0 {
		path += "?" + q.Encode()
	}
	return path
}

// nextRefresh returns the refresh of the n-th page in a row, nil after the last one.
func nextRefresh(id workspace.ID, entry string, limit bool, n int) *refresh {
	if n >= maxRefreshes {
		return nil
	}
	return &refresh{After: refreshAfter[min(n, len(refreshAfter)-1)], URL: waitPath(id, entry, limit, n+1)}
}

// entryPath returns path if it is an address of the workspace, else that of its start page.
func entryPath(id workspace.ID, path string) string {
	own := "/w/" + string(id) + "/"
	path = localPath(path)
	if strings.HasPrefix(path, own) {
		return path
	}
	// Where a port of the workspace is entered.
	if u, err := url.Parse(path); err == nil && u.Path == origin.EntryPath && u.Query().Get("workspace") == string(id) {
		return path
	}
	return own
}

// entryOf returns the address that the page which sent a form enters.
func entryOf(r *http.Request, id workspace.ID) string {
	path := r.PostFormValue("path")
	if u, err := url.Parse(r.Header.Get("HX-Current-URL")); path == "" && err == nil {
		path = u.RequestURI()
	}
	return entryPath(id, path)
}

// wait is the page to which the proxy's pages refresh without scripts.
func (d *Dashboard) wait(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	q := r.URL.Query()
	v, err := d.waitOf(r.Context(), c, ws, q.Has("limit"))
	if err != nil {
		d.fail(w, r, err)
		return
	}
	v.enters(entryPath(ws.ID, q.Get("path")))
	n, _ := strconv.Atoi(q.Get("n"))
	n = max(0, n)
	if v.Kind == waitReady {
		if before := entries(r); before < maxEntries {
			http.SetCookie(w, &http.Cookie{
				Name: enterCookie, Value: strconv.Itoa(before + 1), Path: r.URL.Path, MaxAge: int(entryWithin.Seconds()), HttpOnly: true, SameSite: http.SameSiteLaxMode,
			})
			d.secureHeaders(w.Header())
			http.Redirect(w, r, v.Entry, http.StatusSeeOther)
			return
		}
		v.Stuck = true // the link enters
	}
	d.renderWait(w, r, http.StatusOK, c, v, n)
}

// entries returns how often this browser has recently entered the workspace from its page.
func entries(r *http.Request) int {
	c, err := r.Cookie(enterCookie)
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(c.Value)
	if err != nil || n < 0 {
		return maxEntries
	}
	return n
}

// renderWait writes the page v, the n-th in a row without scripts.
func (d *Dashboard) renderWait(w http.ResponseWriter, r *http.Request, status int, c workspace.Caller, v waitView, n int) {
	v.Limit.Entry = v.Entry
	out := d.newPage(r, &c, "", v)
	out.Title, out.Plain = v.Name, true
	// A queued start that is cancelled later must not begin again when the limit allows it.
	limit := v.Kind == waitLimit && !lifecycle.StartRequested(v.W)
	out.Stream = "/dashboard/events?wait=" + v.ID
	if v.Entry != v.URL {
		out.Stream += "&path=" + url.QueryEscape(v.Entry)
	}
	if limit {
		out.Stream += "&limit=1"
	}
	if v.Kind == waitLimit || v.Kind == waitLoading || v.Kind == waitSetup {
		out.Refresh = nextRefresh(v.W.ID, v.Entry, limit, n)
		body := out.Body.(waitView)
		body.Refreshes, body.Check = out.Refresh != nil, waitPath(v.W.ID, v.Entry, limit, 0)
		out.Body = body
	}
	d.render(w, r, status, "wait", out)
}

// followWait reads one of the proxy's pages again. awaitsLimit reports that it waits for the running
// limit.
func (d *Dashboard) followWait(c workspace.Caller, id workspace.ID, entry string, awaitsLimit bool, log *logFollower) func(context.Context) (livePage, error) {
	return func(ctx context.Context) (livePage, error) {
		ws, err := d.Store.Workspace(ctx, c, id)
		if lost := lostMessage(err); lost != "" {
			return livePageOf(waitView{Kind: waitGone, Lost: lost, OOB: true}, "wait"), nil
		}
		if err != nil {
			return livePage{}, err
		}
		v, err := d.waitOf(ctx, c, ws, awaitsLimit)
		if err != nil {
			return livePage{}, err
		}
		switch ws.Conditions.Get(workspace.ContainerReady).Reason {
		case workspace.ReasonContainerStarting, workspace.ReasonContainerReady:
			if ws.Operation == workspace.OpStarting && v.Kind == waitLoading {
				log.start(ctx)
			}
		}
		// After it was allowed to start, or changed otherwise, it no longer waits for the limit.
		awaitsLimit = awaitsLimit && (v.Kind == waitLimit || v.Kind == waitReady) && !lifecycle.StartRequested(ws)
		v.enters(entry)
		v.view, v.OOB = timeless(v.view), true
		v.Limit.W, v.Limit.Running, v.Limit.Entry = timeless(v.Limit.W), allTimeless(v.Limit.Running), entry
		s := livePageOf(v, "wait")
		s.views, s.busy = []view{v.view}, v.Kind == waitLimit || v.Kind == waitLoading || v.Kind == waitSetup
		return s, nil
	}
}
