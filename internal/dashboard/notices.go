package dashboard

import (
	"context"
	"net/http"
	"time"

	"codehub/internal/lifecycle"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// notices are at the top of every page: the problem that keeps workspaces from changing, and
// the caller's workspaces that are about to stop.
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

// noticesShown is how many of a user's notices a page shows.
const noticesShown = 3

// Told are the notices that the page shows.
func (n notices) Told() []postgres.Notice {
	return n.News.Notices[:min(len(n.News.Notices), noticesShown)]
}

// More is how many notices the page does not show.
func (n notices) More() int { return len(n.News.Notices) - len(n.Told()) }

// dismissNotice removes one of the user's notices.
func (d *Dashboard) dismissNotice(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	if err := d.Store.DismissNotice(r.Context(), c, r.PathValue("notice")); err != nil && workspace.CodeOf(err) != workspace.CodeNotFound {
		d.refuse(w, r, c, "", err)
		return
	}
	if !isHTMX(r) {
		d.redirect(w, r, "/")
		return
	}
	n := d.noticesFor(r, c)
	n.OOB = true
	d.fragments(w, r, http.StatusOK, part{"told", n})
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
