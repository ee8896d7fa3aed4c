package dashboard

import (
	"context"
	"net/http"
	"slices"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// notices are on every page: at the top the problem that keeps workspaces from changing, the
// caller's workspaces that are about to stop and the administrators' banner, and in the header the
// number of the caller's notices.
type notices struct {
	Trouble string
	Endings []ending
	News    postgres.News
	Now     time.Time
	OOB     bool

	due time.Time // when to refresh, such as when the next one is about to stop; zero for no need
}

// endingRefresh is how often a workspace that is about to stop is checked for activity, which
// is not always an event.
const endingRefresh = 5 * time.Second

// ending is a workspace that is about to stop because it is idle.
type ending struct {
	ID, Name string
	At       time.Time
}

// Key identifies this ending, so that screen readers announce it once.
func (e ending) Key() string { return e.ID + " " + e.At.UTC().Format(time.RFC3339) }

// readNotices reads the caller's notices.
func (d *Dashboard) readNotices(ctx context.Context, c workspace.Caller) (notices, error) {
	n := notices{Trouble: d.trouble(), Now: d.Now()}
	rows, err := d.Store.RunningOf(ctx, c.UserID)
	if err != nil {
		return n, err
	}
	n.add(rows, d.TTL())
	n.News, err = d.Store.News(ctx, c)
	return n, err
}

// Asked are the notices that wait for an answer, so that every page shows them.
func (n notices) Asked() []postgres.Notice {
	i := slices.IndexFunc(n.News.Notices, func(of postgres.Notice) bool { return of.Kind != postgres.NoticeAsked })
	if i < 0 {
		return n.News.Notices
	}
	return n.News.Notices[:i] // they come first
}

// inbox lists the user's notices.
func (d *Dashboard) inbox(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	n, err := d.readNotices(r.Context(), c)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	if isHTMX(r) {
		d.fragments(w, r, http.StatusOK, part{"notice-list", n})
		return
	}
	p := d.newPage(r, &c, "notices.title", n)
	p.Nav = "notices"
	d.render(w, r, http.StatusOK, "notices", p)
}

// dismissNotice removes one of the user's notices.
func (d *Dashboard) dismissNotice(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	if err := d.Store.DismissNotice(r.Context(), c, r.PathValue("notice")); err != nil && workspace.CodeOf(err) != workspace.CodeNotFound {
		d.refuse(w, r, c, "", err)
		return
	}
	if !isHTMX(r) {
		d.redirect(w, r, "/notices")
		return
	}
	n := d.noticesFor(r, c)
	n.OOB = true
	d.fragments(w, r, http.StatusOK, part{"bell", n}, part{"notice-list", n})
}

// add adds the workspaces of rows that are about to stop.
func (n *notices) add(rows []workspace.Workspace, ttl workspace.TTL) {
	for _, w := range rows {
		at, ends := lifecycle.EndsAt(w, ttl)
		if !ends || w.Phase != workspace.PhaseRunning {
			continue
		}
		from := at.Add(-warnBefore(lifecycle.TTLOf(w, ttl).Standby))
		if !n.Now.Before(from) {
			n.Endings = append(n.Endings, ending{string(w.ID), w.Name, at})
			from = n.Now.Add(endingRefresh)
		}
		if n.due.IsZero() || from.Before(n.due) {
			n.due = from
		}
	}
}

// noticesFor is readNotices for a page, which is shown even if they cannot be read.
func (d *Dashboard) noticesFor(r *http.Request, c workspace.Caller) notices {
	n, err := d.readNotices(r.Context(), c)
	if err != nil && r.Context().Err() == nil {
		d.Log.Warn("list workspaces that are about to stop failed", "err", err)
	}
	return n
}

// stay restarts a workspace's idle timer.
func (d *Dashboard) stay(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err == nil {
		ws, err = d.Store.Stay(r.Context(), c, ws.ID)
	}
	if err != nil {
		d.refuse(w, r, c, "", err) // the form's from is fromAny
		return
	}
	if !isHTMX(r) {
		d.redirect(w, r, notedAt("/", "stay", ws.ID))
		return
	}
	// The page's stream redraws the rest.
	n := d.noticesFor(r, c)
	n.OOB = true
	d.fragments(w, r, http.StatusOK, part{"ending", n}, part{"toast-oob", d.toast(r, c, "stay", ws.ID, fromList)})
}
