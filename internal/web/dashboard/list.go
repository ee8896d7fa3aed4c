package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// pageSize is the number of workspaces on one page of the list.
const pageSize = 50

// listView is the list of workspaces.
type listView struct {
	Views   []view
	Deleted []view
	Query   string
	Next    string // address of the next page of the list; empty on the last
	First   bool   // the first page, which also shows deleted workspaces
	Older   paging // of Deleted
	Running int
	Max     int // 0 for none
	OOB     bool
	Quota   quotaView // of workspaces
	Image   string    // of workspaces created without one
	Builds  buildsView

	running []workspace.Workspace // the caller's own that count against the limits
}

// Empty reports whether the caller has no workspace at all.
func (l listView) Empty() bool { return len(l.Views) == 0 && l.Query == "" && l.First }

// listQuery selects a part of the list.
type listQuery struct {
	q, cursor string
	deleted   string // cursor of the deleted workspaces; empty: the other ones come first
}

func listQueryOf(v url.Values) listQuery {
	q := strings.TrimSpace(v.Get("q"))
	if len(q) > 200 || !utf8.ValidString(q) {
		q = ""
	}
	return listQuery{q: q, cursor: v.Get("cursor"), deleted: v.Get("deleted")}
}

// address is the path with this query.
func (q listQuery) address(path string) string {
	v := url.Values{}
	if q.q != "" {
		v.Set("q", q.q)
	}
	if q.cursor != "" {
		v.Set("cursor", q.cursor)
	}
	if q.deleted != "" {
		v.Set("deleted", q.deleted)
	}
	if len(v) == 0 {
		return path
	}
	return path + "?" + v.Encode()
}

func (d *Dashboard) list(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	q := listQueryOf(r.URL.Query())
	l, err := d.readList(r.Context(), c, q)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	p := d.newPage(r, &c, "list.title", l)
	p.Nav = "workspaces"
	feed := &listFeed{feedBase: d.newFeed(r, c), q: q}
	shown, _, err := feed.show(l, p.Notices)
	p.Stream = streamOf(q.address("/dashboard/events"), shown, err)
	p.Toast = d.noted(r, c)
	d.render(w, r, http.StatusOK, "list", p)
}

// readList reads the caller's part of the list.
func (d *Dashboard) readList(ctx context.Context, c workspace.Caller, q listQuery) (listView, error) {
	l := listView{Query: q.q, First: q.cursor == "" && q.deleted == "", Image: d.DefaultImage, Builds: d.builds(c)}
	if q.deleted == "" {
		rows, next, err := d.Store.ListWorkspaces(ctx, c, postgres.Filter{Query: q.q, Recent: true, Limit: pageSize, Cursor: q.cursor})
		if err != nil {
			return listView{}, err
		}
		for _, w := range rows {
			l.Views = append(l.Views, d.viewOf(w, fromList).to(c))
		}
		if next != "" {
			l.Next = listQuery{q: q.q, cursor: next}.address("/")
		}
	}
	if l.First || q.deleted != "" {
		gone, next, err := d.Store.ListWorkspaces(ctx, c, postgres.Filter{Query: q.q, Deleted: true, Limit: pageSize, Cursor: q.deleted})
		if err != nil {
			return listView{}, err
		}
		for _, w := range gone {
			l.Deleted = append(l.Deleted, d.viewOf(w, fromList).to(c))
		}
		if next != "" {
			l.Older.Next = listQuery{q: q.q, deleted: next}.address("/")
		}
		if q.deleted != "" {
			l.Older.First = listQuery{q: q.q}.address("/")
		}
	}
	var err error
	if l.running, err = d.Store.RunningOf(ctx, c.UserID); err != nil {
		return listView{}, err
	}
	l.Running = len(l.running)
	var quotas postgres.Quotas
	quotas, err = d.Store.Quotas(ctx, c)
	if err != nil {
		return listView{}, err
	}
	l.Quota = quotaView{quotas.Workspaces, quotas.MaxWorkspaces}
	l.Max = quotas.MaxRunning
	return l, nil
}
