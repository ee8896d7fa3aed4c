package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// allPageSize is the number of workspaces on a page of the table of all workspaces.
const allPageSize = 50

// allQuery selects a part of the table. It is the query of its address.
type allQuery struct {
	q, state, owner, image, sort, unused, cursor string
	desc, deleted                                bool
}

// unusedChoices are the choices of days without activity.
var unusedChoices = []string{"7", "30", "90"}

func allQueryOf(v url.Values) allQuery {
	text := func(name string) string {
		s := strings.TrimSpace(v.Get(name))
		if len(s) > 255 || !utf8.ValidString(s) || strings.ContainsFunc(s, workspace.Unprintable) {
			return ""
		}
		return s
	}
	q := allQuery{q: text("q"), owner: text("owner"), image: text("image"), sort: v.Get("sort"), cursor: v.Get("cursor"), desc: v.Get("order") == "desc", deleted: v.Get("deleted") != ""}
	if s := v.Get("state"); slices.Contains(allStates, s) {
		q.state = s
	}
	if !slices.Contains(postgres.Sorts(), q.sort) {
		q.sort, q.desc = postgres.SortLastUse, true
	}
	if u := v.Get("unused"); slices.Contains(unusedChoices, u) {
		q.unused = u
	}
	return q
}

// allStates are the states that the table can be filtered by. Each is also the text of its
// choice, state.<State>; busy stands for all operations.
var allStates = []string{"running", "stopped", "archived", "error", "pending", "busy"}

// filter is the query for the store.
func (q allQuery) filter(now time.Time) postgres.AnyFilter {
	f := postgres.AnyFilter{Query: q.q, Owner: q.owner, Image: q.image, Deleted: q.deleted, Sort: q.sort, Descending: q.desc, Page: postgres.Page{Limit: allPageSize, Cursor: q.cursor}}
	switch q.state {
	case "":
	case "busy":
		for _, s := range lifecycle.States() {
			if s.Busy() {
				f.State = append(f.State, s)
			}
		}
	default:
		f.State = []lifecycle.State{lifecycle.State(q.state)}
	}
	switch q.unused {
	case "7":
		f.UnusedSince = now.AddDate(0, 0, -7)
	case "30":
		f.UnusedSince = now.AddDate(0, 0, -30)
	case "90":
		f.UnusedSince = now.AddDate(0, 0, -90)
	}
	return f
}

// values is the query of an address with it.
func (q allQuery) values() url.Values {
	v := url.Values{}
	for name, s := range map[string]string{"q": q.q, "state": q.state, "owner": q.owner, "image": q.image, "sort": q.sort, "unused": q.unused, "cursor": q.cursor} {
		if s != "" {
			v.Set(name, s)
		}
	}
	if q.desc {
		v.Set("order", "desc")
	}
	if q.deleted {
		v.Set("deleted", "1")
	}
	return v
}

func (q allQuery) address() string { return "/admin/workspaces?" + q.values().Encode() }

// allRow is a workspace in the table.
type allRow struct {
	view
	postgres.AnyWorkspace
	ByOwner string // address of the owner's workspaces
	OOB     bool
}

// Measured reports whether the size of the workspace is known.
func (r allRow) Measured() bool { return r.HomeBytes != nil || r.ArchivesBytes != nil }

// CPUHours and MemoryHours are the use of the last days, as numbers.
func (r allRow) CPUHours() float64    { return r.Spent.CPUSeconds / 3600 }
func (r allRow) MemoryHours() float64 { return r.Spent.MemorySeconds / 3600 / (1 << 30) }

// LastUse is when the workspace was last used.
func (r allRow) LastUse() time.Time {
	if at := r.AnyWorkspace.LastAccessAt; at != nil {
		return *at
	}
	return r.AnyWorkspace.CreatedAt
}

// column is a column of the table by which it can be sorted.
type column struct {
	Key     string // the text all.<Key>
	Address string // sorts by it
	Sorted  string // ascending, descending, or empty
	Number  bool
}

// allView is the table of all workspaces.
type allView struct {
	Rows    []allRow
	Total   int
	Bytes   int64
	Columns []column
	Paging  paging
	Form    allForm
	Days    int
	Now     time.Time
	OOB     bool
}

// allForm is the filter above the table.
type allForm struct {
	Q, State, Owner, Image, Sort, Unused string
	Desc, Deleted                        bool
	States, Choices                      []string
	Filtered                             bool
}

func (d *Dashboard) readAll(ctx context.Context, c workspace.Caller, q allQuery) (allView, error) {
	list, err := d.Store.AnyWorkspaces(ctx, c, q.filter(d.Now()))
	if err != nil {
		return allView{}, err
	}
	v := allView{Total: list.Total, Bytes: list.Bytes, Days: postgres.UsageDays, Now: d.Now(), Form: allForm{
		Q: q.q, State: q.state, Owner: q.owner, Image: q.image, Sort: q.sort, Unused: q.unused, Desc: q.desc, Deleted: q.deleted,
		States: allStates, Choices: unusedChoices, Filtered: q.q+q.state+q.owner+q.image+q.unused != "" || q.deleted,
	}}
	for _, w := range list.Workspaces {
		v.Rows = append(v.Rows, d.allRowOf(w))
	}
	for _, key := range []string{postgres.SortName, postgres.SortOwner, postgres.SortState, postgres.SortBytes, postgres.SortLastUse} {
		to := q
		to.cursor, to.sort, to.desc = "", key, key == postgres.SortBytes || key == postgres.SortLastUse
		col := column{Key: key, Number: key == postgres.SortBytes}
		if q.sort == key {
			col.Sorted = map[bool]string{false: "ascending", true: "descending"}[q.desc]
			to.desc = !q.desc
		}
		col.Address = to.address()
		v.Columns = append(v.Columns, col)
	}
	first, next := q, q
	first.cursor, next.cursor = "", list.NextCursor
	if list.NextCursor != "" {
		v.Paging.Next = next.address()
	}
	if q.cursor != "" {
		v.Paging.First = first.address()
	}
	return v, nil
}

func (d *Dashboard) allRowOf(w postgres.AnyWorkspace) allRow {
	return allRow{view: d.viewOf(w.Workspace, fromAny), AnyWorkspace: w, ByOwner: allQuery{owner: w.Owner, sort: postgres.SortBytes, desc: true}.address()}
}

func (d *Dashboard) allWorkspaces(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	q := allQueryOf(r.URL.Query())
	v, err := d.readAll(r.Context(), c, q)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	p := d.newPage(r, &c, "all.title", v)
	p.Nav = "admin"
	query := q.values()
	query.Set("all", "1")
	p.Stream = d.streamOf(r, "/dashboard/events?"+query.Encode(), liveAll(v), p.Notices)
	p.Toast = d.noted(r, c)
	d.render(w, r, http.StatusOK, "all", p)
}

// allPace bounds how often a table of all workspaces is read again.
const allPace = time.Second

// followAll reads the table again: rows change, or all of it when rows come, go or move.
func (d *Dashboard) followAll(c workspace.Caller, q allQuery) func(context.Context) (livePage, error) {
	return func(ctx context.Context) (livePage, error) {
		v, err := d.readAll(ctx, c, q)
		if err != nil {
			return liveOver(err)
		}
		return liveAll(v), nil
	}
}

// liveOver tells a user who is no administrator any more.
func liveOver(err error) (livePage, error) {
	if workspace.CodeOf(err) != workspace.CodeForbidden {
		return livePage{}, err
	}
	return livePageOf(nil, "admin-over"), nil
}

func liveAll(v allView) livePage {
	v.Now, v.OOB, v.Rows = time.Time{}, true, slices.Clone(v.Rows) // see timeless
	shape := v.Paging.Next
	var rows []part
	for i := range v.Rows {
		row := &v.Rows[i]
		row.view = timeless(row.view)
		shape += " " + row.view.ID
		alone := *row
		alone.OOB = true
		rows = append(rows, part{"all-row", alone})
	}
	s := livePageOf(v, "all-sum", "all-table")
	s.regions[1].shape, s.regions[1].rows = shape+".", rows
	return s
}
