package dashboard

import (
	"context"
	"net/http"
	"time"

	"codehub/internal/lifecycle"
	"codehub/internal/workspace"
)

// notices is what every page says above its own: what keeps workspaces from
// changing, and which of the caller's are about to stop.
type notices struct {
	Trouble string
	Endings []ending
	Now     time.Time
	OOB     bool

	due time.Time // when to look again: the next one will be about to stop, say; zero for no need
}

// endingRefresh is how often is looked whether what is about to stop was used
// after all: not each use is an event.
const endingRefresh = 5 * time.Second

// ending is a workspace that is about to stop, as nobody uses it.
type ending struct {
	ID, Name string
	At       time.Time
}

// Said names this very ending, so that it is said once to those who do not
// see it.
func (e ending) Said() string { return e.ID + " " + e.At.UTC().Format(time.RFC3339) }

// readNotices reads what to tell the caller on whatever page.
func (d *Dashboard) readNotices(ctx context.Context, c workspace.Caller) (notices, error) {
	n := notices{Trouble: d.trouble(), Now: d.Now()}
	rows, err := d.Store.RunningOf(ctx, c.UserID)
	if err != nil {
		return n, err
	}
	n.add(rows, d.TTL)
	return n, nil
}

// add takes those of the workspaces that are about to stop.
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

// noticesFor is readNotices for a page, which does not fail for it.
func (d *Dashboard) noticesFor(r *http.Request, c workspace.Caller) notices {
	n, err := d.readNotices(r.Context(), c)
	if err != nil && r.Context().Err() == nil {
		d.Log.Warn("looking for workspaces that are about to stop failed", "err", err)
	}
	return n
}

// stay has a workspace stay as if it was used now.
func (d *Dashboard) stay(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err == nil {
		ws, err = d.Store.Stay(r.Context(), c, ws.ID)
	}
	if err != nil {
		d.refuse(w, r, c, "", err) // the form says fromAny
		return
	}
	if !isHTMX(r) {
		d.redirect(w, r, notedAt("/", "stay", ws.ID))
		return
	}
	// What else shows of it is drawn by the page's stream.
	n := d.noticesFor(r, c)
	n.OOB = true
	d.fragments(w, r, http.StatusOK, part{"ending", n}, part{"toast-oob", d.toast(r, c, "stay", ws.ID, fromList)})
}
