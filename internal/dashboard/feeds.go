package dashboard

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"codehub/internal/workspace"
)

// listFeed keeps the list: one card at a time, or the whole list when
// workspaces come or go.
type listFeed struct {
	feedBase
	q     listQuery
	shape string
}

func (f *listFeed) next(ctx context.Context) ([]byte, bool, error) {
	l, err := f.d.readList(ctx, f.c, f.q)
	if err != nil {
		return nil, false, err
	}
	busy, said := false, ""
	for i, v := range l.Views {
		l.Views[i] = f.still(v)
		busy = busy || v.Tone == toneBusy
		said += f.announce(v)
	}
	for i, v := range l.Deleted {
		l.Deleted[i] = f.still(v)
		busy = busy || v.Tone == toneBusy
		said += f.announce(v)
	}
	html := map[string]string{}
	names := []string{"usage"}
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
	out := f.fresh(names, html)
	if shape := shapeOf(l); shape != f.shape {
		f.shape = shape
		l.OOB = true
		whole, err := f.execute("workspaces", l)
		if err != nil {
			return nil, false, err
		}
		out = []byte(whole)
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
	v := f.d.detailOf(ws)
	v.view, v.OOB = f.still(v.view), true
	html := map[string]string{}
	names := []string{"panel", "facts"}
	for _, name := range names {
		if html[name], err = f.execute(name, v); err != nil {
			return nil, false, err
		}
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

// waitFeed keeps the proxy's pages.
type waitFeed struct {
	feedBase
	id workspace.ID
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
		if v, err = f.d.waitOf(ctx, f.c, ws); err != nil {
			return nil, false, err
		}
	}
	v.view, v.OOB = f.still(v.view), true
	for i, other := range v.Limit.Running {
		v.Limit.Running[i] = f.still(other)
	}
	html, err := f.execute("wait", v)
	if err != nil {
		return nil, false, err
	}
	said := ""
	if v.Kind != waitGone {
		said = f.announce(v.view)
	}
	busy := v.Tone == toneBusy || v.Kind == waitLimit || v.Kind == waitLoading
	return append(f.fresh([]string{"wait"}, map[string]string{"wait": html}), said...), busy, nil
}
