package dashboard

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"codehub/internal/lifecycle"
	"codehub/internal/workspace"
)

// listFeed keeps the list: one card at a time, or the whole list when
// workspaces come or go.
type listFeed struct {
	feedBase
	q     listQuery
	shape string
	order []placement
}

// placement is a workspace's place in the list: whether it counts against the
// running limits decides which part of the list it is in.
type placement struct {
	id   string
	slot bool
}

// steady keeps the order that the page has while the same workspaces are in the
// same parts of the list: each use of a workspace would otherwise move cards under
// the pointer.
func (f *listFeed) steady(views []view) {
	at := make(map[placement]int, len(f.order))
	for i, p := range f.order {
		at[p] = i
	}
	same := len(views) == len(f.order)
	order := make([]placement, len(views))
	for i, v := range views {
		order[i] = placement{v.ID, lifecycle.HoldsSlot(v.W)}
		_, known := at[order[i]]
		same = same && known
	}
	if !same {
		f.order = order
		return
	}
	slices.SortFunc(views, func(a, b view) int {
		return at[placement{a.ID, lifecycle.HoldsSlot(a.W)}] - at[placement{b.ID, lifecycle.HoldsSlot(b.W)}]
	})
}

func (f *listFeed) next(ctx context.Context) ([]byte, bool, error) {
	l, err := f.d.readList(ctx, f.c, f.q)
	if err != nil {
		return nil, false, err
	}
	n := notices{Trouble: f.d.trouble(), Now: f.d.Now()}
	n.add(l.running, f.d.TTL)
	return f.show(l, n)
}

// show returns what has to be sent for the page to show l and n.
func (f *listFeed) show(l listView, n notices) ([]byte, bool, error) {
	busy, said := false, ""
	settle := func(views []view) []view {
		out := make([]view, len(views))
		for i, v := range views {
			out[i] = still(v)
			busy = busy || v.Tone == toneBusy
			said += f.announce(v)
		}
		return out
	}
	l.Views, l.Deleted = settle(l.Views), settle(l.Deleted)
	f.steady(l.Views)
	html := map[string]string{}
	names := []string{"usage"}
	var err error
	if html["usage"], err = f.execute("usage-oob", l); err != nil {
		return nil, false, err
	}
	for _, v := range slices.Concat(l.Views, l.Deleted) {
		name := "card-oob"
		if v.Deleted {
			name = "gone-oob"
		}
		names = append(names, v.ID)
		if html[v.ID], err = f.execute(name, v); err != nil {
			return nil, false, err
		}
	}
	if names, err = f.withNotices(names, html, n); err != nil {
		return nil, false, err
	}
	out := f.fresh(names, html)
	if shape := shapeOf(l); shape != f.shape {
		f.shape = shape
		l.OOB = true
		whole, err := f.execute("workspaces", l)
		if err != nil {
			return nil, false, err
		}
		out = append([]byte(whole), html["trouble"]+html["ending"]...)
	}
	return append(out, said...), busy, nil
}

// shapeOf is which workspaces the list shows, where and in what order.
func shapeOf(l listView) string {
	var b strings.Builder
	for _, v := range l.Views {
		b.WriteString(v.ID)
	}
	b.WriteString("|")
	for _, v := range l.Deleted {
		b.WriteString(v.ID)
	}
	b.WriteString("|" + l.Next + strconv.FormatBool(l.Empty()))
	return b.String()
}

// detailFeed keeps a workspace's own page.
type detailFeed struct {
	feedBase
	id workspace.ID
}

func (f *detailFeed) next(ctx context.Context) ([]byte, bool, error) {
	ws, err := f.d.Store.Workspace(ctx, f.c, f.id)
	if err != nil {
		return f.gone(err)
	}
	v, err := f.d.readDetail(ctx, f.c, ws)
	if err != nil {
		return nil, false, err
	}
	n, err := f.d.readNotices(ctx, f.c)
	if err != nil {
		return nil, false, err
	}
	return f.show(v, n)
}

// show returns what has to be sent for the page to show v and n.
func (f *detailFeed) show(v detailView, n notices) ([]byte, bool, error) {
	v.view, v.OOB = still(v.view), true
	var err error
	html := map[string]string{}
	names := []string{"panel", "archives", "facts"}
	for _, name := range names {
		if html[name], err = f.execute(name, v); err != nil {
			return nil, false, err
		}
	}
	if names, err = f.withNotices(names, html, n); err != nil {
		return nil, false, err
	}
	said := f.announce(v.view)
	return append(f.fresh(names, html), said...), v.Tone == toneBusy, nil
}

// gone says, once, that the workspace is not there any more.
func (f *detailFeed) gone(err error) ([]byte, bool, error) {
	if workspace.CodeOf(err) != workspace.CodeNotFound {
		return nil, false, err
	}
	html, err := f.execute("panel-gone", nil)
	if err != nil {
		return nil, false, err
	}
	return f.fresh([]string{"panel"}, map[string]string{"panel": html}), false, nil
}

// noticesFeed keeps what every page has, on a page with nothing else to keep.
type noticesFeed struct{ feedBase }

func (f *noticesFeed) next(ctx context.Context) ([]byte, bool, error) {
	n, err := f.d.readNotices(ctx, f.c)
	if err != nil {
		return nil, false, err
	}
	html := map[string]string{}
	names, err := f.withNotices(nil, html, n)
	if err != nil {
		return nil, false, err
	}
	return f.fresh(names, html), false, nil
}

// waitFeed keeps the proxy's pages.
type waitFeed struct {
	feedBase
	id workspace.ID
	// forRoom: somebody waits for the limits to let it start.
	forRoom bool
}

func (f *waitFeed) next(ctx context.Context) ([]byte, bool, error) {
	ws, err := f.d.Store.Workspace(ctx, f.c, f.id)
	var v waitView
	switch {
	case workspace.CodeOf(err) == workspace.CodeNotFound:
		v = waitView{Kind: waitGone}
	case err != nil:
		return nil, false, err
	default:
		if v, err = f.d.waitOf(ctx, f.c, ws, f.forRoom); err != nil {
			return nil, false, err
		}
	}
	// Once it was let in, or something else became of it, nobody waits for room.
	f.forRoom = f.forRoom && (v.Kind == waitLimit || v.Kind == waitReady)
	v.view, v.OOB = still(v.view), true
	v.Limit.W = still(v.Limit.W)
	for i, other := range v.Limit.Running {
		v.Limit.Running[i] = still(other)
	}
	html, err := f.execute("wait", v)
	if err != nil {
		return nil, false, err
	}
	said := ""
	if v.Kind != waitGone {
		said = f.announce(v.view)
	}
	n, err := f.d.readNotices(ctx, f.c)
	if err != nil {
		return nil, false, err
	}
	fragments := map[string]string{"wait": html}
	names, err := f.withNotices([]string{"wait"}, fragments, n)
	if err != nil {
		return nil, false, err
	}
	busy := v.Tone == toneBusy || v.Kind == waitLimit || v.Kind == waitLoading
	return append(f.fresh(names, fragments), said...), busy, nil
}
