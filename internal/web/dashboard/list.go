package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
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
	p.Stream = d.streamOf(r, q.address("/dashboard/events"), new(cardOrder).live(l), p.Notices)
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

// placement is a workspace's place in the list. Workspaces that count against the running
// limits are in a part of their own.
type placement struct {
	id   string
	slot bool
}

// cardOrder is the order of the cards on a page.
type cardOrder []placement

// steady keeps the page's order while each part of the list has the same workspaces. Otherwise
// every activity would move cards under the pointer.
func (o *cardOrder) steady(views []view) {
	at := make(map[placement]int, len(*o))
	for i, p := range *o {
		at[p] = i
	}
	same := len(views) == len(*o)
	order := make([]placement, len(views))
	for i, v := range views {
		order[i] = placement{v.ID, lifecycle.HoldsSlot(v.W)}
		_, known := at[order[i]]
		same = same && known
	}
	if !same {
		*o = order
		return
	}
	slices.SortFunc(views, func(a, b view) int {
		return at[placement{a.ID, lifecycle.HoldsSlot(a.W)}] - at[placement{b.ID, lifecycle.HoldsSlot(b.W)}]
	})
}

// followList reads the list again: single cards change, or all of it when workspaces come or go.
func (d *Dashboard) followList(c workspace.Caller, q listQuery) func(context.Context) (livePage, error) {
	order := new(cardOrder)
	return func(ctx context.Context) (livePage, error) {
		l, err := d.readList(ctx, c, q)
		if err != nil {
			return livePage{}, err
		}
		n := notices{Trouble: d.trouble(), Now: d.Now()}
		n.add(l.running, d.TTL())
		n.News, err = d.Store.News(ctx, c)
		s := order.live(l)
		s.notices = &n
		return s, err
	}
}

// live is what the list shows.
func (o *cardOrder) live(l listView) livePage {
	l.Views, l.Deleted, l.OOB, l.Builds.OOB = allTimeless(l.Views), allTimeless(l.Deleted), true, true
	o.steady(l.Views)
	list := region{part: part{"workspaces", l}, shape: shapeOf(l), rows: []part{{"usage-oob", l}}}
	for _, v := range l.Views {
		list.rows = append(list.rows, part{"card-oob", v})
	}
	for _, v := range l.Deleted {
		list.rows = append(list.rows, part{"gone-oob", v})
	}
	builds := region{part: part{"builds", l.Builds}, shape: l.Builds.shape()}
	for _, image := range l.Builds.Images {
		image.OOB = true
		builds.rows = append(builds.rows, part{"build", image})
	}
	return livePage{regions: []region{builds, list}, views: slices.Concat(l.Views, l.Deleted), busy: len(builds.rows) > 0}
}

// shapeOf describes which workspaces the list shows, where and in what order.
func shapeOf(l listView) string {
	var b strings.Builder
	for _, v := range l.Views {
		b.WriteString(v.ID)
	}
	b.WriteString("|")
	for _, v := range l.Deleted {
		b.WriteString(v.ID)
	}
	b.WriteString("|" + l.Next + "|" + l.Older.Next + strconv.FormatBool(l.Empty()))
	return b.String()
}
