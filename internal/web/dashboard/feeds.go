package dashboard

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// listFeed updates the list: single cards, or the whole list when workspaces come or go.
type listFeed struct {
	feedBase
	q      listQuery
	shape  string
	order  []placement
	builds string // the shape of the part with the images that the server makes
}

// placement is a workspace's place in the list. Workspaces that count against the running
// limits are in a part of their own.
type placement struct {
	id   string
	slot bool
}

// steady keeps the page's order while each part of the list has the same workspaces. Otherwise
// every activity would move cards under the pointer.
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
	n.add(l.running, f.d.TTL())
	if n.News, err = f.d.Store.News(ctx, f.c); err != nil {
		return nil, false, err
	}
	return f.show(l, n)
}

// show returns the fragments of l and n that have changed since they were sent.
func (f *listFeed) show(l listView, n notices) ([]byte, bool, error) {
	busy, announced := false, ""
	settle := func(views []view) []view {
		out := make([]view, len(views))
		for i, v := range views {
			out[i] = timeless(v)
			busy = busy || v.Tone == toneBusy
			announced += f.announce(v)
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
	builds := ""
	for _, image := range l.Builds.Images {
		busy = true
		image.OOB = true
		name := "build " + image.Name
		names = append(names, name)
		if html[name], err = f.execute("build", image); err != nil {
			return nil, false, err
		}
		builds += html[name]
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
		out = append([]byte(whole), builds+html["trouble"]+html["ending"]+html["told"]+html["bell"]...)
	}
	if shape := l.Builds.shape(); shape != f.builds {
		f.builds = shape
		l.Builds.OOB = true
		whole, err := f.execute("builds", l.Builds)
		if err != nil {
			return nil, false, err
		}
		out = append([]byte(whole), out...)
	}
	return append(out, announced...), busy, nil
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

// detailFeed updates a workspace's page.
type detailFeed struct {
	feedBase
	id     workspace.ID
	cursor string // of its archives
	ports  *portWatcher
}

func (f *detailFeed) stale() bool { return f.ports.changed.Swap(false) }

func (f *detailFeed) next(ctx context.Context) ([]byte, bool, error) {
	n, err := f.d.readNotices(ctx, f.c)
	if err != nil {
		return nil, false, err
	}
	ws, err := f.d.Store.Workspace(ctx, f.c, f.id)
	if lost := lostMessage(err); lost != "" {
		return f.gone(lost, n)
	}
	if err != nil {
		return nil, false, err
	}
	v, err := f.d.readDetail(ctx, f.c, ws, f.cursor)
	if err != nil {
		return nil, false, err
	}
	v.Listed = f.ports.read(ctx, ws)
	return f.show(v, n)
}

// show returns the fragments of v and n that have changed since they were sent.
func (f *detailFeed) show(v detailView, n notices) ([]byte, bool, error) {
	v.view, v.OOB, v.Connect.OOB = timeless(v.view), true, true
	var err error
	html := map[string]string{}
	names := []string{"panel", "connect-oob", "ports", "archives", "facts"}
	for _, name := range names {
		if html[name], err = f.execute(name, v); err != nil {
			return nil, false, err
		}
	}
	if names, err = f.withNotices(names, html, n); err != nil {
		return nil, false, err
	}
	if end := v.Listed.firstEnd(); !end.IsZero() {
		// The database, by whose clock a share ends, may be behind.
		if next := f.d.Now().Add(time.Second); end.Before(next) {
			end = next
		}
		if f.change.IsZero() || end.Before(f.change) {
			f.change = end
		}
	}
	announced := f.announce(v.view)
	return append(f.fresh(names, html), announced...), v.Tone == toneBusy, nil
}

// lostMessage returns the message for a user whose workspace no longer exists, or was handed over;
// "": the error says neither.
func lostMessage(err error) string {
	switch workspace.CodeOf(err) {
	case workspace.CodeNotFound:
		return "not_found"
	case workspace.CodeForbidden:
		return "forbidden"
	}
	return ""
}

// gone shows, once, why the page's workspace is not there.
func (f *feedBase) gone(message string, n notices) ([]byte, bool, error) {
	html := map[string]string{}
	var err error
	if html["panel"], err = f.execute("panel-gone", message); err != nil {
		return nil, false, err
	}
	names, err := f.withNotices([]string{"panel"}, html, n)
	if err != nil {
		return nil, false, err
	}
	return f.fresh(names, html), false, nil
}

// noticesFeed updates the notices of a page without other live content.
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

// waitFeed updates the proxy's pages.
type waitFeed struct {
	feedBase
	id       workspace.ID
	follower *logFollower
	entry    string
	// awaitsLimit reports that the page waits for the running limit.
	awaitsLimit bool
}

func (f *waitFeed) log() <-chan output { return f.follower.out }

func (f *waitFeed) next(ctx context.Context) ([]byte, bool, error) {
	ws, err := f.d.Store.Workspace(ctx, f.c, f.id)
	var v waitView
	switch {
	case lostMessage(err) != "":
		v = waitView{Kind: waitGone, Lost: lostMessage(err)}
	case err != nil:
		return nil, false, err
	default:
		if v, err = f.d.waitOf(ctx, f.c, ws, f.awaitsLimit); err != nil {
			return nil, false, err
		}
		switch ws.Conditions.Get(workspace.ContainerReady).Reason {
		case workspace.ReasonContainerStarting, workspace.ReasonContainerReady:
			if ws.Operation == workspace.OpStarting && v.Kind == waitLoading {
				f.follower.start(ctx)
			}
		}
	}
	if v.Kind != waitGone {
		v.Entry, v.Limit.Entry = f.entry, f.entry
	}
	// After it was allowed to start, or changed otherwise, it no longer waits for the limit.
	f.awaitsLimit = f.awaitsLimit && (v.Kind == waitLimit || v.Kind == waitReady) && !lifecycle.StartRequested(ws)
	v.view, v.OOB = timeless(v.view), true
	v.Limit.W = timeless(v.Limit.W)
	for i, other := range v.Limit.Running {
		v.Limit.Running[i] = timeless(other)
	}
	html, err := f.execute("wait", v)
	if err != nil {
		return nil, false, err
	}
	announced := ""
	if v.Kind != waitGone {
		announced = f.announce(v.view)
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
	return append(f.fresh(names, fragments), announced...), busy, nil
}
