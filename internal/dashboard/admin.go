package dashboard

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"codehub/api"
	"codehub/internal/workspace"
)

// admin passes only administrators' requests to h.
func (d *Dashboard) admin(h callerHandler) callerHandler {
	return func(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
		switch {
		case d.Admin == nil:
			d.noPage(w, r)
		case !c.Admin:
			d.message(w, r, http.StatusForbidden, "admins_only")
		default:
			h(w, r, c)
		}
	}
}

// adminView is the administrators' page.
type adminView struct {
	Status  api.AdminStatus
	Orphans []api.Orphan
	Stale   bool // activity has not been recorded for a while
	Users   []userView
	Next    string // address of the next page of users; empty on the last
	First   bool   // the first page of users
	Now     time.Time
	OOB     bool
}

// userView is one user in the list.
type userView struct {
	api.Account
	Self    bool // the administrator who views the page
	Locked  bool // locked out after wrong passwords
	PerUser int  // the server's limit
}

// Limit is the user's running limit, 0 for none.
func (p userView) Limit() int {
	if p.MaxRunning != nil {
		return *p.MaxRunning
	}
	return p.PerUser
}

// staleAfter is how long activity may go unrecorded before administrators are warned. It
// exceeds the longest delay of a working flush.
const staleAfter = 3 * time.Minute

// counted is a key and how often it occurs.
type counted struct {
	Key string
	N   int
}

// inOrder lists the counts that are not zero: first the keys of order, then all others.
func inOrder(counts map[string]int, order []string) []counted {
	var out []counted
	for _, k := range append(order, slices.DeleteFunc(slices.Sorted(maps.Keys(counts)), func(k string) bool { return slices.Contains(order, k) })...) {
		if n := counts[k]; n > 0 {
			out = append(out, counted{k, n})
		}
	}
	return out
}

// Phases counts the workspaces in each phase.
func (v adminView) Phases() []counted {
	return inOrder(v.Status.Phases, []string{"RUNNING", "STANDBY", "ARCHIVED", "PENDING", "ERROR", "DELETING"})
}

// Operations counts the running operations of each kind.
func (v adminView) Operations() []counted {
	return inOrder(v.Status.Operations, []string{"PROVISIONING", "STARTING", "STOPPING", "ARCHIVING", "RESTORING", "CREATE_EMPTY_ARCHIVE", "DELETING"})
}

func (d *Dashboard) readAdmin(ctx context.Context, c workspace.Caller, cursor string) (adminView, error) {
	v := adminView{Now: d.Now(), First: cursor == ""}
	var err error
	if v.Status, err = d.Admin.AdminStatus(ctx, c); err != nil {
		return v, err
	}
	if v.Orphans, err = d.Admin.Orphans(ctx, c); err != nil {
		return v, err
	}
	list, err := d.Admin.Accounts(ctx, c, cursor)
	if err != nil {
		return v, err
	}
	for _, a := range list.Users {
		v.Users = append(v.Users, userView{
			Account: a, Self: a.ID == c.UserID, PerUser: v.Status.PerUser, Locked: a.LockedTill != nil && a.LockedTill.After(v.Now),
		})
	}
	v.Stale = v.Status.WatchedUntil == nil || v.Now.Sub(*v.Status.WatchedUntil) > staleAfter
	if list.NextCursor != "" {
		v.Next = listQuery{cursor: list.NextCursor}.address("/admin")
	}
	return v, nil
}

func (d *Dashboard) adminPage(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	cursor := r.URL.Query().Get("cursor")
	v, err := d.readAdmin(r.Context(), c, cursor)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	p := d.newPage(r, &c, "admin.title", v)
	p.Nav = "admin"
	feed := &adminFeed{feedBase: d.newFeed(r, c), cursor: cursor}
	shown, _, err := feed.show(v, p.Notices, adminParts...)
	p.Stream = streamOf("/dashboard/events?"+url.Values{"admin": {"1"}, "cursor": {cursor}}.Encode(), shown, err)
	p.Toast = d.noted(r, c)
	d.render(w, r, http.StatusOK, "admin", p)
}

// adminRefresh is the refresh interval of the administrators' page: no events announce its
// changes.
const adminRefresh = 5 * time.Second

// adminFeed updates the administrators' page.
type adminFeed struct {
	feedBase
	cursor string
}

func (f *adminFeed) next(ctx context.Context) ([]byte, bool, error) {
	f.change = f.d.Now().Add(adminRefresh)
	n, err := f.d.readNotices(ctx, f.c)
	if err != nil {
		return nil, false, err
	}
	v, err := f.d.readAdmin(ctx, f.c, f.cursor)
	switch {
	case workspace.CodeOf(err) == workspace.CodeForbidden:
		// The user stopped being an administrator after the stream began.
		return f.show(v, n, "admin-over")
	case err != nil:
		return nil, false, err
	}
	return f.show(v, n, adminParts...)
}

// adminParts are the fragments of the page.
var adminParts = []string{"admin-status", "admin-orphans", "admin-people"}

// show returns the fragments among parts that have changed since they were sent.
func (f *adminFeed) show(v adminView, n notices, parts ...string) ([]byte, bool, error) {
	v.OOB, v.Now = true, time.Time{} // see timeless
	html := map[string]string{}
	for _, name := range parts {
		var err error
		if html[name], err = f.execute(name, v); err != nil {
			return nil, false, err
		}
	}
	names, err := f.withNotices(parts, html, n)
	if err != nil {
		return nil, false, err
	}
	f.change = f.d.Now().Add(adminRefresh)
	return f.fresh(names, html), false, nil
}
