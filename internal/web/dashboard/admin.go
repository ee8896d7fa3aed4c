package dashboard

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"codehub/api"
	"codehub/internal/postgres"
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
	Paging  paging // of Users
	Find    string // part of the names of Users; empty: all
	More    paging // of Orphans
	Now     time.Time
	OOB     bool
}

// userView is one user in the list.
type userView struct {
	api.Account
	Self   bool // the administrator who views the page
	Locked bool // locked out after wrong passwords
}

// Suspension is why the user is suspended; empty: the user is not.
func (v userView) Suspension() string {
	if v.Suspended == nil {
		return ""
	}
	return *v.Suspended
}

// usedView is how much of a limit a user uses.
type usedView struct {
	Key  string // running, workspaces, bytes or backups; the texts admin.used.<Key>
	Used int64
	api.Limit
}

// Full reports whether the limit is reached.
func (v usedView) Full() bool { return v.Max > 0 && v.Used >= v.Max }

// Size reports that Used is a size.
func (v usedView) Size() bool { return v.Key == "bytes" || v.Key == "backups" }

// N and Most are Used and Max of a number of workspaces.
func (v usedView) N() int    { return int(v.Used) }
func (v usedView) Most() int { return int(v.Max) }

// Uses lists the limits of the user.
func (v userView) Uses() []usedView {
	return []usedView{
		{"running", int64(v.Running), v.Limits.Running},
		{"workspaces", int64(v.Workspaces), v.Limits.Workspaces},
		{"bytes", v.Bytes, v.Limits.Bytes},
		{"backups", v.BackupBytes, v.Limits.Backups},
	}
}

// staleAfter is how long activity may go unrecorded before administrators are warned. It
// exceeds the longest delay of a working flush.
const staleAfter = 3 * time.Minute

// counted is a key and how often it occurs.
type counted struct {
	Key string
	N   int
}

// inOrder lists the counts that are not zero: first the keys of order, then unknown keys,
// which a newer server has written.
func inOrder[S ~string](counts map[string]int, order []S) []counted {
	keys := make([]string, 0, len(counts))
	for _, k := range order {
		keys = append(keys, string(k))
	}
	keys = append(keys, slices.DeleteFunc(slices.Sorted(maps.Keys(counts)), func(k string) bool { return slices.Contains(order, S(k)) })...)
	var out []counted
	for _, k := range keys {
		if n := counts[k]; n > 0 {
			out = append(out, counted{k, n})
		}
	}
	return out
}

// Phases counts the workspaces in each phase.
func (v adminView) Phases() []counted {
	return inOrder(v.Status.Phases, []workspace.Phase{
		workspace.PhaseRunning, workspace.PhaseStandby, workspace.PhaseArchived, workspace.PhasePending, workspace.PhaseError, workspace.PhaseDeleting,
	})
}

// Operations counts the running operations of each kind.
func (v adminView) Operations() []counted {
	return inOrder(v.Status.Operations, workspace.Operations()[1:])
}

// adminPages are the cursors of the lists on the administrators' page, and find a part of the
// names of its users.
type adminPages struct{ users, orphans, find string }

func adminPagesOf(r *http.Request) adminPages {
	return adminPages{users: pageParam(r, "cursor"), orphans: pageParam(r, "orphans"), find: findable(pageParam(r, "find"))}
}

// findable is the text by which users are found; empty if it cannot be a part of a name.
func findable(s string) string {
	if s = strings.TrimSpace(s); len(s) > 255 || !utf8.ValidString(s) || strings.ContainsFunc(s, workspace.Unprintable) {
		return ""
	}
	return s
}

func (d *Dashboard) readAdmin(ctx context.Context, c workspace.Caller, at adminPages) (adminView, error) {
	v := adminView{Now: d.Now(), Find: at.find}
	var err error
	if v.Status, err = d.Admin.AdminStatus(ctx, c); err != nil {
		return v, err
	}
	orphans, err := d.Admin.Orphans(ctx, c, postgres.Page{Limit: pageSize, Cursor: at.orphans})
	if err != nil {
		return v, err
	}
	v.Orphans, v.More = orphans.Orphans, pagingOf("/admin", "orphans", at.orphans, orphans.NextCursor)
	list, err := d.Store.Accounts(ctx, c, postgres.AccountFilter{Query: at.find, Page: postgres.Page{Limit: usersShown, Cursor: at.users}})
	if err != nil {
		return v, err
	}
	for _, a := range list.Users {
		v.Users = append(v.Users, userView{
			Account: a, Self: a.ID == c.UserID, Locked: a.LockedTill != nil && a.LockedTill.After(v.Now),
		})
	}
	v.Stale = v.Status.WatchedUntil == nil || v.Now.Sub(*v.Status.WatchedUntil) > staleAfter
	v.Paging = at.paging(list.NextCursor)
	return v, nil
}

// paging leads to the other pages of users.
func (at adminPages) paging(next string) (p paging) {
	to := func(cursor string) string {
		q := url.Values{}
		for name, v := range map[string]string{"cursor": cursor, "find": at.find} {
			if v != "" {
				q.Set(name, v)
			}
		}
		return strings.TrimSuffix("/admin?"+q.Encode(), "?")
	}
	if next != "" {
		p.Next = to(next)
	}
	if at.users != "" {
		p.First = to("")
	}
	return p
}

// usersShown is how many users a page shows.
const usersShown = 100

func (d *Dashboard) adminPage(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	at := adminPagesOf(r)
	v, err := d.readAdmin(r.Context(), c, at)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	p := d.newPage(r, &c, "admin.title", v)
	p.Nav = "admin"
	query := url.Values{"admin": {"1"}, "cursor": {at.users}}
	for name, v := range map[string]string{"orphans": at.orphans, "find": at.find} {
		if v != "" {
			query.Set(name, v)
		}
	}
	p.Stream = d.streamOf(r, "/dashboard/events?"+query.Encode(), liveAdmin(v), p.Notices)
	p.Toast = d.noted(r, c)
	d.render(w, r, http.StatusOK, "admin", p)
}

// adminRefresh is the refresh interval of the administrators' page: no events announce its
// changes.
const adminRefresh = 5 * time.Second

// followAdmin reads the administrators' page again.
func (d *Dashboard) followAdmin(c workspace.Caller, at adminPages) func(context.Context) (livePage, error) {
	return func(ctx context.Context) (s livePage, err error) {
		v, err := d.readAdmin(ctx, c, at)
		if s = liveAdmin(v); err != nil {
			s, err = liveOver(err)
		}
		s.due = d.Now().Add(adminRefresh)
		return s, err
	}
}

func liveAdmin(v adminView) livePage {
	v.OOB, v.Now = true, time.Time{} // see timeless
	return livePageOf(v, "admin-status", "admin-orphans", "admin-people")
}

// confirmDeadNode lets the workspaces of a node that does not respond start elsewhere.
func (d *Dashboard) confirmDeadNode(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	if r.PostFormValue("confirm") != "yes" {
		d.fail(w, r, workspace.Errorf(workspace.CodeInvalid, "Confirm that the machine is off."))
		return
	}
	_, err := d.Admin.ConfirmDeadNode(r.Context(), c, r.PathValue("node"))
	if err != nil && workspace.CodeOf(err) != workspace.CodeNotFound { // not found: it responds again, or another administrator was first
		d.fail(w, r, err)
		return
	}
	d.redirect(w, r, notedAt("/admin", "dead_node", ""))
}
